#!/bin/bash
# first-hour.sh DIR: tests common tasks of a new user: builds, git, SQLite, PostgreSQL, rsync, tar.
set -euo pipefail
top=$(realpath "$(dirname "$0")/..")
dir=$(mktemp -d "$(realpath "$1")/first-hour.XXXXXX")
outside=$(mktemp -d)
chmod 755 "$dir" "$outside"
sockets=
cleanup() {
    [ -z "$sockets" ] || as_postgres "$pg/pg_ctl" -D "$dir/pg" stop -m immediate > /dev/null 2>&1 || true
    rm -rf "$dir" "$outside" "$sockets"
}
trap cleanup EXIT
# Reports a failure of any command: many commands are silent.
set -E
trap 'echo "first-hour: FAILED: line $LINENO: $BASH_COMMAND" >&2' ERR
cd "$dir"

step() { echo "first-hour: $*"; }
fail() {
    echo "first-hour: FAILED: $*" >&2
    exit 1
}

# Packs 200 C files outside, unpacks them here, builds them, touches one, and builds again.
build_c() {
    step 'untar and build a C program'
    local n
    mkdir "$outside/proj"
    for n in $(seq 200); do
        printf '#include "all.h"\nint f%d(int x) { return x + %d; }\n' "$n" "$n" > "$outside/proj/f$n.c"
        echo "int f$n(int);"
    done > "$outside/proj/all.h"
    {
        printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int x = 0;\n'
        for n in $(seq 200); do echo "x = f$n(x);"; done
        printf 'printf("%%d\\n", x); return 0; }\n'
    } > "$outside/proj/main.c"
    printf 'prog: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n%%.o: %%.c all.h\n\t$(CC) -O1 -c -o $@ $<\n' \
        > "$outside/proj/Makefile"
    tar -C "$outside" -czf "$outside/proj.tar.gz" proj
    tar -xzf "$outside/proj.tar.gz"
    make -C proj -j4 -s
    [ "$(proj/prog)" = 20100 ] || fail 'the program prints the wrong sum'
    [ -z "$(make -C proj -q && echo)" ] || fail 'make rebuilds a program that is up to date'
    sleep 0.05
    touch proj/f7.c
    [ "$(make -C proj | grep -c -- '-c -o')" = 1 ] || fail 'make does not rebuild exactly the touched file'
    make -C proj -q || fail 'the program is not up to date after make'
}

build_rust() {
    step 'build a Rust program'
    mkdir -p hello/src
    cp "$top/rust-toolchain.toml" hello/ 2> /dev/null || true
    printf '[package]\nname = "hello"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > hello/Cargo.toml
    echo 'fn main() { println!("hello from {}", env!("CARGO_PKG_NAME")); }' > hello/src/main.rs
    (cd hello && env -u CARGO_TARGET_DIR cargo build --offline --quiet)
    [ "$(hello/target/debug/hello)" = 'hello from hello' ] || fail 'the program prints something else'
}

use_git() {
    step 'git: commits, clone, gc, fsck'
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q -b main repo
    (
        cd repo
        for n in $(seq 60); do
            mkdir -p "dir$((n % 7))"
            echo "line $n" >> "dir$((n % 7))/file$((n % 13))"
            head -c 2000 /dev/urandom > "blob$((n % 9))"
            git add -A
            git commit -q -m "commit $n"
        done
        git checkout -q -b side HEAD~20
        echo side > side
        git add side
        git commit -q -m side
        git checkout -q main
        git merge -q -m merge side
    )
    git clone -q --no-local repo clone
    git clone -q repo linked # with hard links
    for r in repo clone linked; do
        git -C "$r" gc -q --aggressive --prune=now
        git -C "$r" fsck --strict --no-progress
        [ -z "$(git -C "$r" status --porcelain)" ] || fail "$r is not clean"
    done
    diff -r --exclude=.git repo clone || fail 'the clone differs'
}

use_sqlite() {
    step 'SQLite: WAL and DELETE'
    for mode in WAL DELETE; do
        db=db-$mode.sqlite
        [ "$(sqlite3 "$db" "PRAGMA journal_mode=$mode;")" = "${mode,,}" ] || fail "no journal mode $mode"
        sqlite3 "$db" 'CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); CREATE INDEX i ON t(v);'
        # Two concurrent writers, to use its locks.
        for w in 1 2; do
            for n in $(seq 40); do
                echo '.timeout 20000'
                echo "BEGIN IMMEDIATE; INSERT INTO t(v) VALUES('$w-$n'), (hex(randomblob(3000))); COMMIT;"
            done | sqlite3 "$db" > /dev/null &
        done
        wait
        [ "$(sqlite3 "$db" 'SELECT count(*) FROM t;')" = 160 ] || fail "$mode: rows are missing"
        sqlite3 "$db" 'DELETE FROM t WHERE id % 3 = 0; VACUUM;'
        [ "$(sqlite3 "$db" 'PRAGMA integrity_check;')" = ok ] || fail "$mode: integrity check"
    done
}

as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$sockets" "$@"
    else
        "$@"
    fi
}

use_postgres() {
    pg=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | sort -V | tail -1)
    [ -n "$pg" ] || { step 'PostgreSQL: not installed, skipped' && return; }
    step 'PostgreSQL: initdb, pgbench, crash, recovery, checksums'
    sockets=$(mktemp -d) # a socket's path is short
    mkdir pg
    chmod 700 pg
    [ "$(id -u)" != 0 ] || chown postgres: pg "$sockets"
    (
        cd / # not a directory that the server's user may not enter
        as_postgres "$pg/initdb" -D "$dir/pg" --data-checksums -A trust -U postgres > "$outside/initdb.log" ||
            fail "initdb: $(tail -5 "$outside/initdb.log")"
    )
    start() {
        (cd / && as_postgres "$pg/pg_ctl" -D "$dir/pg" -w -t 60 -l "$dir/pg/log" \
            -o "-c listen_addresses='' -c unix_socket_directories='$sockets'" start > /dev/null) ||
            fail "PostgreSQL does not start: $(tail -5 "$dir/pg/log")"
    }
    sql() { as_postgres "$pg/psql" -h "$sockets" -U postgres -Atqc "$1"; }
    start
    as_postgres "$pg/pgbench" -h "$sockets" -U postgres -i -s 2 -q postgres > "$outside/pgbench.log" 2>&1 ||
        fail "pgbench -i: $(tail -5 "$outside/pgbench.log")"
    as_postgres "$pg/pgbench" -h "$sockets" -U postgres -c 4 -T 5 postgres > "$outside/pgbench.log" 2>&1 ||
        fail "pgbench: $(tail -5 "$outside/pgbench.log") $(tail -5 "$dir/pg/log")"
    before=$(sql 'SELECT count(*) FROM pgbench_history')
    [ "$before" -gt 0 ] || fail 'pgbench did nothing'
    (cd / && as_postgres "$pg/pg_ctl" -D "$dir/pg" -w stop -m immediate > /dev/null)
    start # recovers from its log
    [ "$(sql 'SELECT count(*) FROM pgbench_history')" = "$before" ] || fail 'transactions were lost'
    [ "$(sql 'SELECT sum(abalance) FROM pgbench_accounts')" = "$(sql 'SELECT sum(bbalance) FROM pgbench_branches')" ] ||
        fail 'balances do not agree'
    (cd / && as_postgres "$pg/pg_ctl" -D "$dir/pg" -w stop -m fast > /dev/null)
    (cd / && as_postgres "$pg/pg_checksums" --check -D "$dir/pg" > /dev/null) || fail 'a page checksum is wrong'
    rm -rf "$sockets"
    sockets=
}

use_rsync() {
    step 'rsync in and out: hard links, ACLs, extended attributes, checksums'
    local from=$outside/tree n
    mkdir -p "$from/sub/deep" "$from/empty"
    for n in $(seq 100); do head -c "$((n * n * 11))" /dev/urandom > "$from/sub/f$n"; done
    ln "$from/sub/f10" "$from/hard"
    ln "$from/sub/f10" "$from/sub/deep/hard"
    ln -s ../sub/f1 "$from/empty/link"
    ln -s nowhere "$from/dangling"
    mkfifo "$from/fifo"
    printf 'x' > "$from/name with
newline"
    chmod 4711 "$from/sub/f1"
    chmod 1777 "$from/empty"
    touch -d '1999-12-31 23:59:59.123456789' "$from/sub/f2"
    setfattr -n user.colour -v green "$from/sub/f3"
    setfattr -n user.colour -v blue "$from/sub"
    setfacl -m u:60001:rw,g:61009:r "$from/sub/f4"
    setfacl -d -m u:60001:rwx "$from/sub/deep"
    [ "$(id -u)" != 0 ] || { mknod "$from/null" c 1 3 && chown -h 60001:61001 "$from/sub/f5" "$from/dangling"; }
    local flags=(-aHAX --checksum --numeric-ids --delete)
    same() {
        local out
        out=$(rsync "${flags[@]}" -n -i "$1/" "$2/")
        [ -z "$out" ] || fail "rsync sees differences between $1 and $2: $out"
    }
    rsync "${flags[@]}" "$from/" tree/
    same "$from" tree
    [ "$(stat -c %h tree/hard)" = 3 ] || fail 'hard links were not preserved'
    rsync "${flags[@]}" tree/ "$outside/back/"
    same "$from" "$outside/back"
    (cd "$from" && find . -type f -print0 | sort -z | xargs -0 sha256sum) > "$outside/a"
    (cd tree && find . -type f -print0 | sort -z | xargs -0 sha256sum) > "$outside/b"
    cmp "$outside/a" "$outside/b" || fail 'sums differ'
    # Syncs again after changes, with updates in place and deletions.
    rm "$from/sub/f7"
    echo more >> "$from/sub/f100"
    rsync "${flags[@]}" --inplace "$from/" tree/
    same "$from" tree
}

use_tar() {
    step 'tar with sparse files, extended attributes and ACLs'
    mkdir sparse
    truncate -s 1G sparse/big
    echo start | dd of=sparse/big conv=notrunc status=none
    echo middle | dd of=sparse/big bs=1M seek=512 conv=notrunc status=none
    setfattr -n user.note -v preserved sparse/big
    setfacl -m u:60001:r sparse/big
    tar --sparse --xattrs --acls -cf "$outside/sparse.tar" sparse
    [ "$(stat -c %s "$outside/sparse.tar")" -lt 10000000 ] || fail 'tar did not see the holes'
    mkdir out
    tar --xattrs --xattrs-include='*' --acls --sparse -C out -xf "$outside/sparse.tar"
    cmp sparse/big out/sparse/big || fail 'the sparse file differs'
    [ "$(du -k out/sparse/big | cut -f1)" -lt 10000 ] || fail 'the holes were filled'
    [ "$(getfattr --only-values -n user.note out/sparse/big)" = preserved ] || fail 'the attribute is gone'
    grep -q '^user:60001:r--' <<< "$(getfacl -cn out/sparse/big)" || fail 'the ACL is gone'
}

remove_all() {
    step 'remove everything'
    cd /
    rm -rf "$dir"
    [ ! -e "$dir" ] || fail 'rm -rf has left files'
}

build_c
build_rust
use_git
use_sqlite
use_postgres
use_rsync
use_tar
remove_all
echo 'first-hour: passed'

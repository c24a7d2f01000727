#!/bin/bash
# migrate-test.sh: a mounted file system moves to another store under load: to a directory, to a
# RADOS cluster (where its packages are installed) and back; migrations of stopped stores; kills in
# the middle. FILES=10000 is the number of files.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${BUILD:-target/release}/espalier")
files=${FILES:-10000}
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt"
load=
cleanup() {
    exec 6>&- 7>&-
    [ -z "$load" ] || kill "$load" 2> /dev/null || true
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    [ -z "${CEPH_CONF:-}" ] || scripts/ceph-cluster.sh down "$work/ceph" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "migrate-test: $*" >&2
    tail -n 20 "$work"/*.log >&2 2> /dev/null || true
    exit 1
}
mount_it() { "$bin" mount --log-file "$work/mount.log" --log info "$@"; }
server() { "$bin" status --json "$mnt" | jq .pid; }

# Creates, appends, renames and removes files; every fifth one is synced and recorded.
: > "$work/synced"
begin_load() { # name
    (
        mkdir -p "$mnt/$1"
        for n in $(seq 1000000); do
            seq "$n" $((n + n % 1000)) > "$mnt/$1/f$n" || exit
            echo "$n" >> "$mnt/$1/log"
            [ $((n % 3)) != 0 ] || mv "$mnt/$1/f$n" "$mnt/$1/m$n"
            [ $((n % 4)) != 0 ] || rm -f "$mnt/$1/f$((n - 2))"
            # Big files that grow and are rewritten.
            [ $((n % 7)) != 0 ] || head -c 100000 /dev/urandom >> "$mnt/$1/big$((n % 3))"
            if [ $((n % 5)) = 0 ]; then
                seq "$n" $((n + 300)) > "$mnt/$1/s$n" && sync "$mnt/$1/s$n" && echo "$1/s$n $n" >> "$work/synced"
            fi
        done
    ) 2> /dev/null &
    load=$!
}
end_load() {
    kill "$load" 2> /dev/null || true
    wait "$load" 2> /dev/null || true
    load=
}
check_synced() {
    while read -r path n; do
        cmp -s <(seq "$n" $((n + 300))) "$mnt/$path" || fail "$path was synced and is lost or damaged"
    done < "$work/synced"
}
# sums FILE: a line for each file.
sums() { (cd "$mnt" && find . -type f -printf '%p %s %m %n\n' -exec md5sum {} + | sort) > "$1"; }
refused() { # text, command...
    local text=$1
    shift
    if "$@" > "$work/refused" 2>&1; then fail "$* is not refused"; fi
    grep -q -- "$text" "$work/refused" || fail "$* does not print '$text': $(cat "$work/refused")"
}

# migrate_under_load FROM TO NAME
migrate_under_load() {
    local began pid
    pid=$(server)
    begin_load "$3"
    sleep 1
    began=$(date +%s%N)
    "$bin" migrate "$1" "$2" > "$work/migrated" || fail "migrate $1 $2"
    echo "$(cat "$work/migrated" | head -n 1) in $((($(date +%s%N) - began) / 1000000)) ms"
    sleep 1
    end_load
    [ "$(server)" = "$pid" ] || fail 'another process serves the mount'
    "$bin" status "$mnt" > "$work/status"
    grep -q "store *$2 (moved from" "$work/status" || fail "status: $(head -n 1 "$work/status")"
    check_synced
    sums "$work/before"
    "$bin" umount "$mnt"
    "$bin" fsck "$2"
    refused "has moved to $2" mount_it --foreground "$1" "$mnt"
    refused 'has moved to' "$bin" fsck "$1"
    mount_it "$2" "$mnt"
    sums "$work/after"
    cmp "$work/before" "$work/after" || fail "files differ in $2: $(diff "$work/before" "$work/after" | head)"
    check_synced
    # The same command has nothing to do.
    "$bin" migrate "$1" "$2" > /dev/null
}

section "a mount with $files files moves to another directory under load"
"$bin" mkfs --journal 16M "$work/a" > /dev/null
mount_it "$work/a" "$mnt"
mkdir "$mnt/many"
seq "$files" | (cd "$mnt/many" && split -l 1 -a 4 -)
head -c 30M /dev/urandom > "$mnt/large"
truncate -s 3G "$mnt/sparse"
refused 'inside the source or its mount' "$bin" migrate "$work/a" "$mnt/new/backup"
refused 'inside the source or its mount' "$bin" migrate "$work/a" "$work/a/new"
migrate_under_load "$work/a" "$work/b" first

section 'the switch waits for a big file that the kernel writes itself'
exec 7>> "$mnt/large" 6<> "$mnt/large"
if "$bin" status --json "$mnt" | jq -e .passthrough > /dev/null; then
    "$bin" migrate "$work/b" "$work/c" > /dev/null 6>&- 7>&- &
    migration=$!
    for _ in $(seq 20); do
        echo more >&7
        sleep 0.1
    done
    kill -0 "$migration" 2> /dev/null || fail 'the migration has not waited'
    exec 6>&- 7>&-
    # It may be mapped until the kernel forgets it.

    for _ in $(seq 100); do
        kill -0 "$migration" 2> /dev/null || break
        sleep 0.1
    done
    wait "$migration" || fail 'the migration has failed'
    [ "$(tail -c 100 "$mnt/large" | grep -c '^more$')" = 20 ] || fail 'bytes that the kernel has written are lost'
else
    exec 6>&- 7>&-
    "$bin" migrate "$work/b" "$work/c" > /dev/null
fi

section 'killed during a migration'
store=$work/c
for round in 1 2 3 4; do
    begin_load "kill$round"
    sleep 0.5
    pid=$(server)
    "$bin" migrate "$store" "$work/k$round" > "$work/killed" 2>&1 &
    migration=$!
    sleep "0.$((RANDOM % 8))"
    kill -9 "$pid"
    end_load
    wait "$migration" && ended=yes || ended=no
    if mount_it "$store" "$mnt" 2> "$work/refused"; then
        # Resumed while it is mounted.
        check_synced
        begin_load "again$round"
        "$bin" migrate "$store" "$work/k$round" > /dev/null
        end_load
        "$bin" umount "$mnt"
        which=source
    else
        grep -q 'has moved to' "$work/refused" || fail "neither: $(cat "$work/refused")"
        "$bin" migrate "$store" "$work/k$round" > /dev/null
        which=destination
    fi
    store=$work/k$round
    "$bin" fsck "$store"
    mount_it "$store" "$mnt"
    check_synced
    echo "round $round: killed, the $which was whole; the command ended: $ended"
done

section 'a stopped store; another one at the destination; stop and continue'
sums "$work/before"
"$bin" umount "$mnt"
"$bin" mkfs "$work/other" > /dev/null
refused 'is a store already' "$bin" migrate "$store" "$work/other"
"$bin" migrate --force "$store" "$work/other"
refused 'has moved to' "$bin" migrate "$store" "$work/more"
"$bin" fsck "$work/other"
mount_it "$work/other" "$mnt"
sums "$work/after"
cmp "$work/before" "$work/after" || fail 'files differ after a migration of a stopped store'

if PATH=$PATH:/usr/sbin command -v ceph-mon ceph-osd ceph rados > /dev/null; then
    section 'to a RADOS cluster and back under load'
    export CEPH_CONF=$work/ceph/ceph.conf
    scripts/ceph-cluster.sh up "$work/ceph" esp
    migrate_under_load "$work/other" rados:esp/home rados
    migrate_under_load rados:esp/home "$work/home" back
else
    echo 'migrate-test: skipped the part with RADOS: there is no Ceph; scripts/setup.sh test installs it where it can'
fi
"$bin" umount "$mnt"
echo 'migrate-test: passed'

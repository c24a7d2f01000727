#!/bin/bash
# cluster-test.sh: two mounts of one server behave as two processes on one machine, also while the
# server is killed and restarted. Connections without permission are refused with a reason.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
export BUILD
bin=$BUILD/espalier conformance=$BUILD/espalier-conformance
work=$(mktemp -d)
chmod 755 "$work" # other users access the mounts
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    exec 8>&- 9<&-
    umount "$work/second" "$a/top/mounted" 2> /dev/null || true
    for mount in "$a" "$b" "$work/c"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    for cluster in "$work"/cluster "$work"/other; do "$bin" cluster down "$cluster" > /dev/null 2>&1 || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/cluster-functions.sh

# With the usual limit of open files, which the server raises.
up() {
    ulimit -Sn 1024
    "$bin" cluster up "$work/cluster" > "$work/up" < /dev/null
}

section 'make a cluster'
"$bin" cluster init "$work/cluster" --listen 127.0.0.1:17440 --label tested
refused 'is not empty' "$bin" cluster init "$work/cluster"
refused 'no cluster' "$bin" cluster up "$work/a"
if "$bin" cluster status "$work/cluster"; then fail 'status reports a cluster that was not started'; fi
up
grep -q 'espalier://127.0.0.1:17440/' <<< "$("$bin" cluster status "$work/cluster")"
url=$("$bin" cluster status "$work/cluster" --json | sed 's/^{.*"url":"\([^"]*\)"}$/\1/')
is "$url" espalier://127.0.0.1:17440/
credentials=$work/cluster/clients/admin
is "$(stat -c %a "$credentials/key.pem")" 600
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
"$bin" mount "$url" "$b" -o "credentials=$credentials" --log-file "$work/b.log"
grep -q '2 clients' <<< "$("$bin" cluster status "$work/cluster")"

section 'refused connections'
refused 'credentials=DIR' "$bin" mount "$url" "$work"
refused "server's configuration" "$bin" mount "$url" "$work" -o "credentials=$credentials,memory=64M"
refused 'requires TLS' "$bin" mount "$url" "$work" -o insecure
refused 'nothing listens' "$bin" mount espalier://127.0.0.1:17439/ "$work" -o "credentials=$credentials"
refused 'espalier://HOST:PORT/' "$bin" mount espalier://nowhere "$work" -o "credentials=$credentials"
"$bin" cluster init "$work/other" --listen 127.0.0.1:17441 > /dev/null
refused 'authority' "$bin" mount "$url" "$work" -o "credentials=$work/other/clients/admin"
refused 'server' "$bin" mount "$url" "$work" -o "credentials=$work/cluster/server-0"
refused 'is there already' "$bin" cluster client "$work/cluster" admin
printf 'GET / HTTP/1.0\r\n\r\n' > "$work/http"
timeout 10 bash -c "cat '$work/http' > /dev/tcp/127.0.0.1/17440" || true
head -c 100000 /dev/urandom | timeout 10 bash -c 'cat > /dev/tcp/127.0.0.1/17440' 2> /dev/null || true

section 'each mount observes the changes of the other'
for round in 1 2 3; do
    echo "$round" > "$a/file"
    is "$(cat "$b/file")" "$round"
    echo "more" >> "$b/file"
    is "$(tail -n 1 "$a/file")" more
    is "$(stat -c %s "$a/file")" "$(stat -c %s "$b/file")"
    mkdir "$a/dir"
    mv "$b/file" "$b/dir/moved"
    if [ -e "$a/file" ]; then fail 'the old name exists after a rename'; fi
    is "$(ls "$a/dir")" moved
    ln "$a/dir/moved" "$a/linked"
    is "$(stat -c %h "$b/linked")" 2
    chmod 640 "$b/linked"
    is "$(stat -c %a "$a/dir/moved")" 640
    setfattr -n user.color -v "$round" "$a/linked"
    is "$(getfattr --only-values -n user.color "$b/dir/moved")" "$round"
    truncate -s 5 "$a/linked"
    is "$(stat -c %s "$b/dir/moved")" 5
    ln -s dir "$b/symlink"
    is "$(ls "$a/symlink/")" moved
    rm "$a/symlink" "$b/linked" "$a/dir/moved"
    is "$(ls "$b/dir")" ''
    rmdir "$b/dir"
    is "$(ls -A "$a")" ''
    # Big files are in a stream.
    head -c 3000000 /dev/urandom > "$a/big"
    cmp "$a/big" "$b/big"
    printf XYZ | dd of="$b/big" bs=1 seek=1000000 conv=notrunc status=none
    is "$(dd if="$a/big" bs=1 skip=1000000 count=3 status=none)" XYZ
    truncate -s 1500000 "$a/big"
    is "$(wc -c < "$b/big")" 1500000
    rm "$b/big"
done

section 'writes to a program remove its set-user-ID bit'
other=(setpriv --reuid 1234 --regid 1234 --clear-groups)
for n in 1 2 3 4 5 6; do
    # Every other program is big, and each mount writes to three.
    { cat /usr/bin/id; head -c $((n % 2 * 200000)) /dev/zero; } > "$a/id"
    chmod 4777 "$a/id"
    # Both mounts cache the program.
    is "$("${other[@]}" "$a/id" -u) $("${other[@]}" "$b/id" -u)" '0 0'
    if [ "$n" -le 3 ]; then writer=$a reader=$b; else writer=$b reader=$a; fi
    "${other[@]}" sh -c 'printf x >> "$1"' sh "$writer/id"
    is "$("${other[@]}" "$writer/id" -u) $("${other[@]}" "$reader/id" -u)" '1234 1234'
    is "$(stat -c %a "$a/id") $(stat -c %a "$b/id")" '777 777'
    rm "$a/id"
done

section 'changes by both mounts at once'
mkdir "$a/shared"
for mount in "$a" "$b"; do
    (
        cd "$mount/shared"
        for n in $(seq 200); do
            echo "$n" > "${mount##*/}-$n"
            echo "$n" >> log
            mv "${mount##*/}-$n" "moved-${mount##*/}-$n"
        done
    ) &
done
wait %1 %2
is "$(find "$a/shared" -name 'moved-*' | wc -l)" 400
diff <(cd "$a/shared" && ls -l --time-style=full-iso) <(cd "$b/shared" && ls -l --time-style=full-iso)
# The server determines the offset of O_APPEND writes, so that no mount overwrites another's.
is "$(wc -l < "$a/shared/log")" 400

section 'another mount on top survives renames and a restart'
mkdir "$a/top" "$a/top/mounted"
mount -t tmpfs tmpfs "$a/top/mounted"
stays() { mountpoint -q "$a/top/mounted" || fail "the mount on top was detached by $1"; }
for n in $(seq 30); do
    touch "$b/top/$n" "$a/top/$n-here" & mv "$a/top" "$a/moved" & wait
    mv "$a/moved" "$a/top"
done
stays 'changes at both mounts'
kill_server 0
up
until_true reconnected
touch "$b/top/again" "$a/top/too"
stays 'a restart of the server'
umount "$a/top/mounted"
rm -r "$a/top"

section 'locks'
: > "$a/lock"
# locked MOUNT: succeeds if the lock is held.
locked() { ! flock -n "$1/lock" true; }
unlocked() { flock -n "$1/lock" true; }
mkfifo "$work/go"
(
    flock 7
    read -r _ < "$work/go"
) 7>> "$a/lock" &
holder=$!
until_true locked "$b"
locked "$a" || fail 'the lock is not visible at the mount that holds it'
(
    flock 7
    echo second > "$b/order"
) 7>> "$b/lock" &
waiter=$!
kill_server 0
up
locked "$b" || fail 'the restart of the server has released the lock'
if [ -e "$a/order" ]; then fail 'two processes hold the lock'; fi
echo go > "$work/go"
wait "$holder" "$waiter"
is "$(cat "$a/order")" second
until_true unlocked "$a"
# fcntl locks: each writer must see the other's writes.
sqlite3 "$a/db" 'CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);'
writers=()
for mount in "$a" "$b"; do
    {
        echo '.timeout 300000'
        for n in $(seq 50); do echo "INSERT INTO t(v) VALUES('$mount $n');"; done
    } | sqlite3 "$mount/db" > /dev/null &
    writers+=($!)
done
wait "${writers[@]}"
is "$(sqlite3 "$b/db" 'SELECT count(*) FROM t; PRAGMA integrity_check;' | tr '\n' ' ')" '100 ok '
rm "$a/lock" "$a/order" "$b/db"

section 'races'
"$conformance" "$a" --race "${SEED:-1}" --beside "$b" > "$work/race" || { cat "$work/race"; fail 'no order of the operations explains their results'; }
"$conformance" "$a" --pieces "${SEED:-1}" --beside "$b" --rounds 6 > "$work/pieces" || { cat "$work/pieces"; fail 'a read does not return the written bytes'; }
"$conformance" "$a" --follow "${SEED:-1}" --beside "$b" --rounds 3 > "$work/follow" || { cat "$work/follow"; fail 'a follower reads other bytes'; }

section 'kill the server under load'
mkdir "$a/work"
printf before > "$a/unlinked"
exec 8>> "$a/unlinked" 9< "$a/unlinked"
rm "$a/unlinked"
(
    cd "$a/work"
    for n in $(seq 1500); do
        mkdir "dir-$n"
        echo "$n" > "dir-$n/file"
        mv "dir-$n/file" "dir-$n/moved"
        [ "$(cat "dir-$n/moved")" = "$n" ] || exit 1
        if [ $((n % 2)) = 0 ]; then rm -r "dir-$n"; fi
    done
) &
writer=$!
for _ in 1 2 3 4; do
    sleep 1
    kill_server 0
    sleep 0.3
    up
done
wait "$writer" || fail 'an acknowledged change is missing'
printf ' after' >&8
is "$(cat <&9)" 'before after'
exec 8>&- 9<&-
is "$(find "$b/work" -name moved | wc -l)" 750
is "$(find "$b/work" -mindepth 1 -maxdepth 1 | wc -l)" 750
for n in 1 751 1499; do is "$(cat "$b/work/dir-$n/moved")" "$n"; done
rm -r "$b/work" "$a/shared"

section 'signals while there is no server'
echo text > "$b/asked"
kill_server 0
# The program handles these alarms, which must not make its calls fail.
perl -MTime::HiRes=setitimer,ITIMER_REAL -e '
    my $alarms = 0;
    $SIG{ALRM} = sub { $alarms++ };
    setitimer(ITIMER_REAL, 0.02, 0.02);
    stat($ARGV[0]) or die "stat: $!";
    open(my $file, "<", $ARGV[0]) or die "open: $!";
    sysread($file, my $text, 100) or die "read: $!";
    # An alarm after the end of the handler would kill the program.
    setitimer(ITIMER_REAL, 0);
    print "$text", $alarms > 0 ? "alarmed\n" : "";
' "$a/asked" > "$work/asked" &
asker=$!
# A fatal signal interrupts a waiting call.
(exec cat "$a/asked") > "$work/cat" 2>&1 &
victim=$!
sleep 1
kill -TERM "$victim"
if wait "$victim"; then fail 'a read has succeeded without a server'; fi
up
wait "$asker" || fail 'a handled signal has made a call fail'
is "$(cat "$work/asked")" text$'\n'alarmed
rm "$b/asked"

section 'POSIX'
mkdir "$a/conformance"
"$conformance" "$a/conformance" > "$work/conformance" || { grep -v ' ok ' "$work/conformance"; fail 'not POSIX'; }
tail -n 1 "$work/conformance"
rm -rf "$b/conformance"
mkdir "$a/pjdfstest" "$work/second"
mount -t tmpfs tmpfs "$work/second"
scripts/pjdfstest.sh "$a/pjdfstest" "$work/second" || fail 'not POSIX'
umount "$work/second"
rm -rf "$b/pjdfstest"

section 'many clients'
"$bin" bench --native "$url" -o "credentials=$credentials" --clients 200 --files 5 --idle 2000 > "$work/many" ||
    fail "$(cat "$work/many")"
grep -q native/unlink "$work/many"

section 'a read-only client'
"$bin" cluster client "$work/cluster" reader > /dev/null
printf '\n[clients.reader]\nread_only = true\n' >> "$work/cluster/server-0/server.toml"
echo text > "$a/text"
umount "$b"
"$bin" cluster down "$work/cluster"
up
"$bin" mount "$url" "$b" -o "credentials=$work/cluster/clients/reader" --log-file "$work/b.log"
is "$(cat "$b/text")" text
refused 'Read-only file system' sh -c "echo more >> '$b/text'"
refused 'Read-only file system' rm "$b/text"
is "$(cat "$a/text")" text

section 'reload the configuration and refuse a connected client'
flock "$b/text" sleep 1000 & locker=$!
is_locked() { ! flock -n "$a/text" true; }
until_true is_locked
cp "$work/cluster/server-0/server.toml" "$work/toml"
server=$(pid 0)
echo nonsense > "$work/cluster/server-0/server.toml"
refused 'is no server' "$bin" cluster reload "$work/cluster"
kill -HUP "$server"
cp "$work/toml" "$work/cluster/server-0/server.toml"
sed -i '/^\[clients.reader\]/{n;s/.*/read_only = false/}' "$work/cluster/server-0/server.toml"
"$bin" cluster reload "$work/cluster"
writes() { echo more >> "$b/text"; }
until_true writes
# Reloads the settings of commits and payloads under the existing mounts.
sed -i -E '/^(high_watermark|eager_bytes) =/d; 1i high_watermark = 1\neager_bytes = 0' "$work/cluster/server-0/server.toml"
: > "$work/cluster/server-0/log"
"$bin" cluster reload "$work/cluster"
until_true grep -q 'eager_bytes and ranks are as the configuration says' "$work/cluster/server-0/log"
head -c 200000 /dev/urandom > "$work/bytes"
cp "$work/bytes" "$a/bytes"
cmp "$work/bytes" "$b/bytes"
rm "$a/bytes"
cp "$work/toml" "$work/cluster/server-0/server.toml"
sed -i '/^\[clients.reader\]/{n;s/.*/refused = true/}' "$work/cluster/server-0/server.toml"
"$bin" cluster reload "$work/cluster"
# The locks of the refused client are released immediately.
until_true flock -n "$a/text" true
refused 'is not to connect' "$bin" mount "$url" "$work" -o "credentials=$work/cluster/clients/reader"
kill "$locker"
umount -f "$b" 2> /dev/null || umount -l "$b" 2> /dev/null || true

section 'restrict a client to a subtree'
"$bin" cluster client "$work/cluster" guest > /dev/null
printf '\n[clients.guest]\nsubtree = "/projects/a"\n' >> "$work/cluster/server-0/server.toml"
mkdir -p "$a/projects/a/dir" "$a/secret"
echo theirs > "$a/projects/a/dir/file"
echo ours > "$a/secret/file"
"$bin" cluster down "$work/cluster"
up
"$bin" mount "$url" "$b" -o "credentials=$work/cluster/clients/guest" --log-file "$work/b.log"
is "$(ls "$b")" dir
is "$(cat "$b/dir/file")" theirs
echo new > "$b/new"
is "$(cat "$a/projects/a/new")" new
echo more >> "$a/projects/a/new"
is "$(tail -n 1 "$b/new")" more
mv "$b/new" "$b/dir/"
is "$(ls "$a/projects/a/dir" | tr '\n' ' ')" 'file new '
mv "$a/secret/file" "$a/projects/a/was-secret"
is "$(cat "$b/was-secret")" ours
kill_server 0
up
is "$(cat "$b/dir/new" | head -n 1)" new
rm -r "$b/dir" "$b/was-secret"
is "$(ls -A "$a/projects/a")" ''
umount "$b"
mv "$a/projects/a" "$a/projects/b"
refused 'restricted to' "$bin" mount "$url" "$b" -o "credentials=$work/cluster/clients/guest"
"$bin" mount "$url" "$b" -o "credentials=$credentials" --log-file "$work/b.log"

section 'unmounting ends the session'
has_sessions() { grep -q "\"sessions\":$1," <<< "$("$bin" status "$work/cluster/server-0/store" --json)"; }
until_true has_sessions 2
umount "$b"
# The client ends its session, which does not have to expire.
until_true has_sessions 1

section 'messages'
# Leases that do not expire during this section, however slow the machine.
sed -i 's/^\(lease\|session\)_seconds = .*/\1_seconds = 600/' "$work/other/server-0/server.toml"
"$bin" cluster up "$work/other" > /dev/null < /dev/null
c=$work/c
mkdir "$c"
for mount in "$b" "$c"; do
    "$bin" mount espalier://127.0.0.1:17441/ "$mount" -o "credentials=$work/other/clients/admin" --log-file "$mount.log"
done
sent() {
    "$bin" status "$c" --counters | awk '$1 == "sent.requests" { print $2 }'
}
# costs LIMIT COMMAND...: checks that the command sends at most LIMIT requests.
costs() {
    local limit=$1 before spent
    shift
    before=$(sent)
    "$@"
    spent=$(($(sent) - before))
    [ "$spent" -le "$limit" ] || fail "$* costs $spent requests instead of $limit: $("$bin" status "$c" --counters)"
}
create_1000() { for n in $(seq 1000); do : > "$c/counted/$n"; done; }
stat_1000() {
    # Drops the kernel's caches, so that the client gets all requests.
    sync && echo 2 > /proc/sys/vm/drop_caches
    (cd "$c/counted" && printf '%s\n' $(seq 1000) | xargs stat > /dev/null)
}
remove_1000() { (cd "$c/counted" && printf '%s\n' $(seq 1000) | xargs rm); }
list_1000() { is "$(find "$c/counted" -mindepth 1 -printf '%f %s\n' | sort -n | md5sum)" "$(seq -f '%.0f 0' 1000 | md5sum)"; }
mkdir "$c/counted"
# Includes the allocations of inode numbers.
costs 1010 create_1000
costs 10 stat_1000
costs 4 list_1000
# Changes by another client revoke the leases, and are visible.
[ "$(ls "$b/counted" | wc -l)" = 1000 ]
chmod 600 "$c/counted/7"
is "$(stat -c %a "$b/counted/7")" 600
costs 10 stat_1000
costs 1010 remove_1000
is "$(ls "$b/counted")" ''
grep -q 'connected; ' <<< "$("$bin" status "$c")"
"$bin" umount "$c"

section 'without leases'
# costs_more COMMAND...: the command sends at least one request.
costs_more() {
    local before
    before=$(sent)
    "$@"
    [ "$(sent)" -gt "$before" ] || fail "$* sends no request"
}
caching() {
    "$bin" mount espalier://127.0.0.1:17441/ "$c" -o "credentials=$work/other/clients/admin,cache=$1" --log-file "$c.log"
}
stat_one() { stat -c %a "$c/one" > "$work/mode"; }
refused 'cache= takes' caching sometimes
caching none
echo one > "$c/one"
costs_more stat_one
costs_more cat "$c/one"
for mode in 600 640 644; do
    chmod "$mode" "$b/one"
    is "$(stat -c %a "$c/one")" "$mode"
    echo "$mode" >> "$b/one"
    is "$(tail -n 1 "$c/one")" "$mode"
    mv "$b/one" "$b/other"
    is "$(ls "$c")" "$(ls "$b")"
    mv "$c/other" "$c/one"
done
is "$("$bin" status "$c" --counters | awk '$1 == "received.revocations" { print $2 }')" 0
"$bin" umount "$c"
# With cache=ttl: the client uses cached replies for that time without requests.
caching ttl:3600s
stat_one
chmod 600 "$b/one"
costs 0 stat_one
is "$(cat "$work/mode")" 644
is "$(tail -n 1 "$c/one")" 644
echo bytes > "$b/one"
is "$(head -c 5 "$c/one")" bytes
"$bin" umount "$c"
# Another client creates files under names that this client caches as missing.
caching ttl:20s
in_use() { "$bin" status "$work/other/server-0/store" --json | jq .files; }
open_it() { python3 -c 'import os, sys; os.close(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR))' "$1"; }
echo target > "$b/target"
before=$(in_use)
for n in $(seq 20); do
    if [ -e "$c/dir-$n" ] || [ -e "$c/link-$n" ] || [ -e "$c/fifo-$n" ] || [ -e "$c/made-$n" ]; then fail 'a new name exists before its creation'; fi
    mkdir "$b/dir-$n"
    ln -s target "$b/link-$n"
    ln -s "made-by-$n" "$b/made-$n"
    mkfifo "$b/fifo-$n"
    refused 'Is a directory' open_it "$c/dir-$n"
    is "$(echo more >> "$c/link-$n"; wc -l < "$b/target")" $((n + 1))
    open_it "$c/made-$n"
    [ -f "$b/made-by-$n" ] || fail "the open did not create the symbolic link's target"
    open_it "$c/fifo-$n"
    rm "$b/link-$n" "$b/fifo-$n" "$b/made-$n" "$b/made-by-$n"
    rmdir "$b/dir-$n"
done
as_before() { [ "$(in_use)" = "$before" ]; }
until_true as_before
"$bin" umount "$c"
caching ttl:100ms
stat_one
chmod 644 "$b/one"
changed() { [ "$(stat -c %a "$c/one")" = 644 ]; }
until_true changed
"$bin" umount "$c"
"$bin" umount "$b"
"$bin" cluster down "$work/other"

section 'experiments of the papers on servers'
refused 'no experiment' "$bin" paper nothing
# Interrupts an experiment in each of its steps; all servers that it started must end.
mkdir "$work/ended"
for seconds in 0.5 1 1.5 2 3; do
    if TMPDIR="$work/ended" timeout "$seconds" "$bin" paper kuhn-fig5.1 > "$work/outcome" 2>&1; then fail 'an experiment has succeeded in spite of the signal'; fi
    is "$(ls "$work/ended")" ''
    is "$(pgrep -fc -- "--config $work/ended")" 0
done
for experiment in carns-fig4 carns-table1 carns-unstuff; do
    # Exit status 1: a claim of the paper does not hold, which may be the load of this machine.
    "$bin" paper "$experiment" --quick --json --out "$work/paper" > "$work/outcome" || [ $? = 1 ]
    grep -q '"place":"machine"' "$work/outcome"
    grep -q '"holds":' "$work/outcome"
    grep -q "<h2[^>]*>$experiment" "$work/paper/index.html"
done

section 'unmount without a server'
kill_server 0
timeout 60 umount -f "$a" || timeout 60 umount -l "$a"
up
"$bin" cluster down "$work/cluster"
"$bin" fsck "$work/cluster/server-0/store"
echo 'cluster-test: passed'

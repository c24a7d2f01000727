#!/bin/bash
# cluster-data-test.sh: big files are striped over the data servers of a cluster, are equal on all
# mounts, and survive the death of any server. Unreferenced datafiles are freed. Clients access data
# servers directly as long as their capabilities are valid.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
conformance=$(realpath "${BUILD:-target/release}/espalier-conformance")
work=$(mktemp -d)
chmod 755 "$work" # other users access the mounts
cluster=$work/cluster
a=$work/a b=$work/b c=$work/c
mkdir "$a" "$b" "$c"
stopped=
cleanup() {
    [ -z "$stopped" ] || kill -CONT "$stopped" 2> /dev/null || true
    for mount in "$a" "$b" "$c"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/cluster-functions.sh

# sent MOUNT COUNTER: the number of messages that the mount has sent.
sent() {
    "$bin" status "$1" --counters | awk -v what="sent.$2" '$1 == what { print $2 }'
}

# datafiles: the number of datafiles on all servers.
datafiles() {
    find "$cluster"/server-*/data/streams -type f | wc -l
}

no_datafiles() {
    [ "$(datafiles)" = "$1" ]
}

section 'make a cluster of four servers'
"$bin" cluster init "$cluster" --servers 4 --listen 127.0.0.1:17470 --label tested > /dev/null
# Small strips, and fewer servers per file than there are.
sed -i 's/^stripe_width = .*/stripe_width = 3\nstripe_strip = "12K"/' "$cluster/server-0/server.toml"
up
url=espalier://127.0.0.1:17470/
credentials=$cluster/clients/admin
refused 'serves no metadata' "$bin" mount espalier://127.0.0.1:17471/ "$a" -o "credentials=$credentials"
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
"$bin" mount "$url" "$b" -o "credentials=$credentials" --log-file "$work/b.log"

section 'big files are striped, and equal on all mounts'
head -c 5000000 /dev/urandom > "$work/bytes"
for n in 1 2 3 4; do cp "$work/bytes" "$a/big-$n"; done
for n in 1 2 3 4; do cmp "$work/bytes" "$b/big-$n"; done
# These bytes did not pass through the metadata server.
for mount in "$a" "$b"; do
    is "$(sent "$mount" streams)" 0
    [ "$(sent "$mount" data)" -ge 4 ] || fail "$mount sends no requests to data servers"
done
is "$(datafiles)" 12
is "$(stat -c %s "$b/big-1")" 5000000
is "$(du -B1 --apparent-size "$b/big-1" | cut -f 1)" 5000000
[ "$(stat -c %b "$b/big-1")" -ge 9700 ] || fail 'stat reports too few blocks'

section 'times are final, and equal on all mounts'
mkdir "$a/times"
for bytes in 100 30000 200000 3000000; do
    head -c "$bytes" "$work/bytes" > "$a/times/new-$bytes"
    head -c "$bytes" "$work/bytes" > "$a/times/set-$bytes"
    touch -d @5 "$a/times/set-$bytes"
    dd if="$work/bytes" of="$a/times/after-a-hole-$bytes" bs="$bytes" count=1 seek=290000 oflag=seek_bytes status=none
done
times() { (cd "$1/times" && stat -c '%n %y %z' -- *); }
times "$a" > "$work/times"
tar -C "$a" -g "$work/snapshot" -cf "$work/times.tar" times
for mount in "$b" "$a" "$b"; do
    times "$mount" | diff "$work/times" - || fail "times differ at $mount"
    sleep 0.5
done
is "$(tar -C "$a" -g "$work/snapshot" -cvf "$work/times.tar" times | grep -c 'times/.')" 0
rm -r "$a/times"
truncate -s 100 "$b/big-2"
cmp <(head -c 100 "$work/bytes") "$a/big-2"
truncate -s 2000000 "$b/big-2"
is "$(tail -c +101 "$a/big-2" | tr -d '\0' | wc -c)" 0
is "$(wc -c < "$a/big-2")" 2000000
printf XYZ | dd of="$a/big-3" bs=1 seek=7000000 conv=notrunc status=none
is "$(tail -c +5000001 "$b/big-3" | tr -d '\0')" XYZ
printf END >> "$b/big-3"
is "$(tail -c 6 "$a/big-3")" XYZEND
touch -d '2001-02-03 04:05:06' "$a/big-4"
is "$(date -r "$b/big-4" +%F)" 2001-02-03
touch -d '2100-02-03 04:05:06' "$a/big-4"
is "$(date -r "$b/big-4" +%F)" 2100-02-03
printf X | dd of="$a/big-4" bs=1 seek=2000000 conv=notrunc status=none
is "$(date -r "$b/big-4" +%Y)" "$(date +%Y)"
for n in $(seq 300); do echo "a $n" >> "$a/log"; done &
for n in $(seq 300); do echo "b $n" >> "$b/log"; done
wait $!
is "$(wc -l < "$a/log")" 600
is "$(getfattr --absolute-names --only-values -n user.espalier.rbytes "$a")" "$(find "$a" -type f -printf '%s\n' | awk '{s += $1} END {print s}')"
# Each mount reads the other's writes while both have the file open.
cp "$work/bytes" "$a/shared"
exec 7<> "$a/shared" 8<> "$b/shared"
for n in $(seq 100); do
    [ $((n % 2)) = 0 ] && to=7 from=8 || to=8 from=7
    printf '%05d' "$n" | dd "of=/proc/self/fd/$to" bs=5 seek=$((n * 4000)) conv=notrunc status=none
    is "$(dd "if=/proc/self/fd/$from" bs=5 skip=$((n * 4000)) count=1 status=none)" "$(printf '%05d' "$n")"
done
exec 7<&- 8<&-
rm "$a"/big-* "$a/log" "$a/shared"
until_true no_datafiles 0

section 'trace a write on the client, the metadata server and the data servers'
"$bin" trace "$a" "$cluster" --op write --seconds 2 --out "$work/trace.json" --out "$work/trace.svg" > "$work/traced" &
while kill -0 $! 2> /dev/null; do cp "$work/bytes" "$a/traced" && rm "$a/traced"; done
wait $!
for step in 'ask data server [0-3]: write' 'data server [0-3], store'; do
    grep -q "$step" "$work/traced" || fail "no step '$step': $(cat "$work/traced")"
done
# Each traced request also has its receiver's span.
unanswered='[.traceEvents[].args | select(.id != null and .id.from != .id.to)] | group_by(.id) | map(select(length == 1 and .[0].place == .[0].id.from))'
is "$(jq -c "$unanswered" "$work/trace.json")" '[]'
grep -q 'rank 0 .* create' <<< "$("$bin" trace "$work/trace.json" --op create)" || fail 'a saved trace cannot be read'
grep -q 'data server' "$work/trace.svg"

section 'espalier ls and ls print the same'
mkdir "$a/listed"
cp "$work/bytes" "$a/listed/big"
ln -s big "$a/listed/link"
mkfifo -m 640 "$a/listed/fifo"
mkdir -m 1777 "$a/listed/dir"
touch -d '2001-02-03 04:05:06' "$a/listed/old"
is "$("$bin" ls -l "${url}listed" -o "credentials=$credentials")" "$(LC_ALL=C ls -l "$a/listed")"
is "$("$bin" ls -l "$b/listed")" "$(LC_ALL=C ls -l "$a/listed")"
is "$("$bin" ls "${url}listed" -o "credentials=$credentials" --json | jq -r '.[0].name')" big
refused 'No such file' "$bin" ls "${url}none" -o "credentials=$credentials"
rm -r "$a/listed"
until_true no_datafiles 0

section 'policies of directories determine the layout of files'
# attributes DIR: the policy attributes that are set on the directory.
attributes() {
    getfattr --absolute-names -d -m '^user.espalier' "$1" | sed -n 's/^user.espalier.//p' | tr -d '"' | tr '\n' ' '
}
# layout_of FILE KEY: a value of the file's layout.
layout_of() {
    "$bin" layout "$1" --json | jq -c ".$2"
}
mkdir "$a/hints"
is "$(attributes "$a/hints")" ''
setfattr -n user.espalier.num_dfiles -v 1 "$a/hints"
mkdir "$b/hints/inherits"
is "$(attributes "$b/hints/inherits")" 'num_dfiles=1 '
cp "$work/bytes" "$b/hints/inherits/file"
is "$(layout_of "$a/hints/inherits/file" 'servers|length')" 1
is "$(layout_of "$a/hints/inherits/file" dist_params)" '"strip_size:12288"'
"$bin" policy "$a/hints" --set dist_name=basic --unset num_dfiles
cp "$work/bytes" "$a/hints/basic"
is "$(layout_of "$b/hints/basic" dist_name)" '"basic"'
"$bin" policy "$b/hints" --set dist_name=varstrip --set 'dist_params=strips:0:128K;1:64K;3:1K'
is "$(attributes "$a/hints")" 'dist_name=varstrip dist_params=strips:0:128K;1:64K;3:1K '
is "$("$bin" policy "$a/hints" --json | jq -c '[.policy.dist_name, .effective.num_dfiles]')" '["varstrip",3]'
grep -q '^num_dfiles  *3  *of the server' <<< "$("$bin" policy "$a/hints")"
cp "$work/bytes" "$b/hints/varstrip"
is "$(layout_of "$a/hints/varstrip" servers)" '[0,1,3]'
file=$(printf %x "$(stat -c %i "$a/hints/varstrip")")
is "$(for n in 0 1 2 3; do find "$cluster/server-$n/data/streams" -type f -name "$file" -printf '%s '; done)" '3336000 1638400 25600 '
# A file keeps the policy that applied at its creation.
echo small > "$a/hints/moved"
mv "$b/hints/moved" "$b/moved"
"$bin" policy "$a/hints" --file /dev/null
is "$(attributes "$b/hints")" ''
cat "$work/bytes" >> "$a/moved"
is "$(layout_of "$b/moved" dist_name)" '"varstrip"'
for file in inherits/file basic varstrip; do
    cmp "$work/bytes" "$a/hints/$file"
    cmp "$work/bytes" "$b/hints/$file"
    truncate -s 150000 "$b/hints/$file"
    truncate -s 400000 "$a/hints/$file"
    cmp <(head -c 150000 "$work/bytes"; head -c 250000 /dev/zero) "$b/hints/$file"
    printf END >> "$b/hints/$file"
    is "$(tail -c 3 "$a/hints/$file")" END
done
refused 'num_dfiles is a number, 1 to 1024, and not `0`' "$bin" policy "$a/hints" --set num_dfiles=0
refused "invalid value 'stripes'" "$bin" policy "$a/hints" --unset stripes
refused 'Invalid argument' setfattr -n user.espalier.dist_name -v raid "$a/hints"
grep -q 'dist_name is basic, simple_stripe or varstrip, and not `raid`' "$cluster/server-0/log" || fail 'the log has no reason for the refusal'
rm -r "$a/hints" "$a/moved"
until_true no_datafiles 0

# All servers are on one disk here: the reported size is a multiple of the disk's.
size_of() {
    df -B1 --output=size "$1" | tail -n 1
}
has_room() {
    [ "$(size_of "$a")" -ge $((4 * $(size_of "$work"))) ]
}
until_true has_room

section 'POSIX'
mkdir "$a/conformance"
mapfile -t cases < <(without_large_cases "$conformance")
"$conformance" "$a/conformance" "${cases[@]}" > "$work/conformance" || { grep -v ' ok ' "$work/conformance"; fail 'not POSIX'; }
tail -n 1 "$work/conformance"
rm -rf "$b/conformance"
pieces() { "$conformance" "$a" --pieces "${SEED:-1}" --beside "$b" --rounds "$1" > "$work/pieces" || { cat "$work/pieces"; fail 'a read does not return the written bytes'; }; }
pieces 10
"$conformance" "$a" --follow "${SEED:-1}" --beside "$b" --rounds 3 > "$work/follow" || { cat "$work/follow"; fail 'a follower reads other bytes'; }
until_true no_datafiles 0

section 'kill servers under load'
writer() {
    local mount=$1 n
    for n in $(seq 25); do
        cp "$work/bytes" "$mount/${mount##*/}-$n"
        printf more >> "$mount/${mount##*/}-$n"
        cmp -n 5000000 "$work/bytes" "$mount/${mount##*/}-$n" || return 1
        [ $((n % 3)) = 0 ] || rm "$mount/${mount##*/}-$n"
    done
}
writer "$a" & first=$!
writer "$b" & second=$!
pieces 10 & third=$!
for victim in 1 0 2 3 0 1; do
    sleep 1
    kill_server "$victim"
    sleep 0.3
    up
done
wait "$first" || fail 'a file that was written at the first mount is missing or wrong'
wait "$second" || fail 'a file that was written at the second mount is missing or wrong'
wait "$third" || fail 'a read does not return the written bytes'
for n in 3 24; do
    for from in a b; do
        cmp <(cat "$work/bytes"; printf more) "$b/$from-$n"
        cmp "$a/$from-$n" "$b/$from-$n"
    done
done
is "$(find "$a" -type f | wc -l)" 16
until_true no_datafiles 48

section 'stop a data server'
cp "$work/bytes" "$a/synced"
sync "$a/synced"
# on_server NUMBER: a file of which that server has a datafile.
on_server() {
    local file
    for file in "$b"/a-*; do
        if ls "$cluster/server-$1"/data/streams/*/"$(printf %x "$(stat -c %i "$file")")" > /dev/null 2>&1; then
            echo "$file"
            return
        fi
    done
    fail "server $1 has no datafile"
}
mkdir "$a/held"
file=$(on_server 2)
# At one mount: a rename between mounts would copy the file to other servers.
mv "$file" "$b/held/big"
echo other > "$a/held/other"
file=$(on_server 2)
# Drops the file from the kernel's page cache.
dd if="$file" iflag=nocache count=0 status=none
exec 8< "$file"
kill_server 2
echo small > "$a/small"
is "$(cat "$b/small")" small
cat "$file" > "$work/read" & reader=$!
# Waits until the reader has opened the file and reads its pages.
sleep 1
truncate -s 5000004 "$file" & truncates=$!
cat <&8 > "$work/interrupted" & reads=$!
sleep 1
[ -e "/proc/$reader" ] || fail 'a file was read while one of its servers was down'
for interrupted in "$reads" "$truncates"; do
    kill "$interrupted"
    until_true test ! -e "/proc/$interrupted"
    if wait "$interrupted"; then fail 'an interrupted call has succeeded'; fi
done
exec 8<&-
[ -e "/proc/$reader" ] || fail 'the signal has ended another reader'
ls "$a" > "$work/listed"
grep -q small "$work/listed"
# A wait for a file's size does not block its directory, even at a mount that has not cached it.
"$bin" mount "$url" "$c" -o "credentials=$credentials" --log-file "$work/c.log"
stat "$c/held/big" > "$work/size" & stats=$!
sleep 1
[ -e "/proc/$stats" ] || fail 'the size was returned while one of its servers was down'
for change in "touch $c/held/new" "mv $c/held/new $c/held/newer" "rm $c/held/other $c/held/newer"; do
    timeout 10 $change || fail "'$change' waits for a data server"
done
up
wait "$stats" || fail 'stat fails after the server has started again'
grep -q 'Size: 5000004' "$work/size" || fail "$(cat "$work/size")"
umount "$c"
wait "$reader" || fail 'the reader fails after the server has started again'
cmp <(cat "$work/bytes"; printf more) "$work/read"
cmp "$work/bytes" "$b/synced"
rm -r "$a"/a-* "$b"/b-* "$a/held"
until_true no_datafiles 3

section 'a client is stopped, loses its session, and continues'
sed -i 's/^\(lease\|session\)_seconds = .*/\1_seconds = 12/' "$cluster/server-0/server.toml"
kill_server 0
up
"$bin" mount "$url" "$c" -o "credentials=$credentials" --log-file "$work/c.log"
cp "$work/bytes" "$c/late"
mkfifo "$work/began" "$work/go-on"
# No other process has the file open: its exit would wait for the stopped mount.
{
    exec 7<> "$c/late"
    flock -n 7
    printf first >&7
    echo > "$work/began"
    read -r _ < "$work/go-on"
    printf LATE! >&7
} 2> "$work/late" & late=$!
read -r _ < "$work/began"
# The capability is valid, and the next write is pending when the mount stops.
stopped=$("$bin" status "$c" --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
[ -n "$stopped" ] || fail 'the mount has no process'
kill -STOP "$stopped"
# The threads stop one by one, and each could still write until it stops.
has_stopped() { [ -z "$(grep -L '^State:.T' /proc/"$stopped"/task/*/status)" ]; }
until_true has_stopped
echo > "$work/go-on"
# The lock is free when no write of the stopped client can be executed.
timeout 120 flock "$b/late" head -c 5 "$b/late" > "$work/locked" || fail 'the lock of the stopped client is not released'
is "$(cat "$work/locked")" first
rm "$b/late"
until_true no_datafiles 3
kill -CONT "$stopped"
stopped=
if wait "$late"; then fail 'a write with an expired capability has succeeded'; fi
# The late write has created no datafile.
no_datafiles 3 || fail 'a removed datafile is back'
umount "$c"

section 'remove a file while its servers are down, and kill the metadata server'
exec 8< "$a/synced"
rm "$b/synced"
cmp "$work/bytes" <(cat <&8)
kill_server 3
kill_server 1
exec 8<&-
sleep 1
no_datafiles 0 && fail 'datafiles were removed from servers that do not run'
kill_server 0
up
until_true no_datafiles 0

section 'drain and remove a data server'
on_drained() {
    find "$cluster/server-3/data/streams" -type f | wc -l
}
for n in 1 2 3 4; do cp "$work/bytes" "$a/moved-$n"; done
ln "$a/moved-1" "$a/linked"
truncate -s 50000000 "$a/moved-2"
printf END >> "$a/moved-2"
times=$(stat -c %Y "$a"/moved-*)
umount "$a" "$b"
"$bin" cluster down "$cluster"
[ "$(on_drained)" -ge 2 ] || fail 'server 3 has too few datafiles to test the drain'
refused 'set drain = true' "$bin" cluster drain "$cluster" --server 3
refused 'number 7' "$bin" cluster drain "$cluster" --server 7
sed -i '/^\[\[data\]\]/{n;s/^number = 3$/&\ndrain = true/}' "$cluster/server-0/server.toml"
up
there=$(on_drained)
refused 'in use' "$bin" cluster drain "$cluster" --server 3
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
for n in 5 6 7 8; do cp "$work/bytes" "$a/moved-$n"; done
is "$(on_drained)" "$there"
umount "$a"
"$bin" cluster down "$cluster"
is "$("$bin" cluster drain "$cluster" --server 3 | head -n 1)" "moved $there files"
is "$(on_drained)" 0
"$bin" cluster fsck "$cluster"
is "$("$bin" cluster drain "$cluster" --server 3 | head -n 1)" 'moved 0 files'
sed -i '/^\[\[data\]\]/{N;/\nnumber = 3$/{N;N;d}}' "$cluster/server-0/server.toml"
mv "$cluster/server-3" "$work/gone"
up
for mount in "$a" "$b"; do
    "$bin" mount "$url" "$mount" -o "credentials=$credentials" --log-file "$work/${mount##*/}.log"
done
for n in 1 3 4 5 6 7 8; do cmp "$work/bytes" "$a/moved-$n"; done
cmp "$work/bytes" "$b/linked"
cmp -n 5000000 "$work/bytes" "$a/moved-2"
is "$(tail -c +5000001 "$b/moved-2" | tr -d '\0')" END
[ "$(stat -c %b "$b/moved-2")" -le 20000 ] || fail 'the drain has filled holes'
is "$(stat -c %Y "$a"/moved-[1-4])" "$times"
umount "$a" "$b"
"$bin" cluster down "$cluster"
sed -i '/^\[\[data\]\]/{n;s/^number = 2$/&\ndrain = true/}' "$cluster/server-0/server.toml"
refused '8 files are on all other data servers' "$bin" cluster drain "$cluster" --server 2

section 'fsck finds an unreferenced datafile; a cluster'"'"'s store is no local store'
"$bin" cluster fsck "$cluster"
# A datafile without an inode.
mkdir -p "$cluster/server-2/data/streams/02"
printf lost > "$cluster/server-2/data/streams/02/99902"
if "$bin" cluster fsck "$cluster" > "$work/found"; then fail 'fsck does not report an unreferenced datafile'; fi
grep -q 'inode 628994: has a datafile on data server 2' "$work/found"
refused 'lie on data servers' "$bin" dump "$cluster/server-0/store" "$work/dump"
refused 'lie on data servers' "$bin" mount "$cluster/server-0/store" "$a"
echo 'cluster-data-test: passed'

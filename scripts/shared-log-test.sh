#!/bin/bash
# shared-log-test.sh: a shared log on two mounts of a cluster with two metadata servers: writers on both
# mounts, hosts that are killed and that hang, a metadata server that is killed, holes and trims.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
hosts=()
cleanup() {
    [ ${#hosts[@]} = 0 ] || kill -9 "${hosts[@]}" 2> /dev/null || true
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

port=17860
"$bin" cluster init "$cluster" --insecure --listen "127.0.0.1:$port" --servers 2 --ranks 2
up
for mount in "$a" "$b"; do
    "$bin" mount "espalier://127.0.0.1:$port/" "$mount" -o insecure --log-file "$mount.log"
done
mkdir "$a/logs"

# write MOUNT LOG SOURCE NAME COUNT: appends lines; the positions are in $work/NAME.positions.
write() {
    seq -f "$4-%.0f" "$5" | "$bin" log append "$1/logs/$2" --numbers "$3" > "$work/$4.positions"
    paste "$work/$4.positions" <(seq -f "$4-%.0f" "$5") > "$work/$4.acknowledged"
}

# check LOG NAMES...: each acknowledged entry is at its position, and nothing is there twice, at both mounts.
check() {
    local log=$1 name position tail
    shift
    tail=$("$bin" log tail "$a/logs/$log")
    while position=$("$bin" log read "$a/logs/$log" --from 0 --positions | wc -l); [ "$position" -lt "$tail" ]; do
        "$bin" log fill "$a/logs/$log" "$position" > /dev/null
    done
    for mount in "$a" "$b"; do "$bin" log read "$mount/logs/$log" --positions > "$work/read.${mount##*/}"; done
    cmp "$work/read.a" "$work/read.b" || fail 'the mounts read different logs'
    [ -z "$(grep -v filled "$work/read.a" | cut -f 2 | sort | uniq -d)" ] || fail 'an entry is in the log twice'
    for name; do
        [ -z "$(sort "$work/$name.acknowledged" | comm -23 - <(sort "$work/read.a"))" ] || fail "entries of $name are lost"
    done
}

section 'writers with leases on both mounts'
write "$a" leases lease one 100 &
one=$!
write "$b" leases lease two 100
wait $one
check leases one two
is "$("$bin" log tail "$a/logs/leases")" "$(wc -l < "$work/read.a")"

section 'hosts on both mounts'
"$bin" log append "$a/logs/hosted" < /dev/null
"$bin" log host "$a/logs" --name a > "$work/host.a" 2>&1 &
hosts+=($!)
"$bin" log host "$b/logs" --name b > "$work/host.b" 2>&1 &
hosts+=($!)
until_true grep -q listens "$work/host.a"
until_true grep -q listens "$work/host.b"
write "$a" hosted direct three 60 &
three=$!
write "$b" hosted a four 60
wait $three
check hosted three four

section 'the host that holds the sequencer is killed'
held_by() { "$bin" log hosts "$a/logs" | awk '/^[ab] / { host = $1 } / hosted:/ { print host }' | grep -x "$1" > /dev/null; }
held_by_any() { held_by a || held_by b; }
until_true held_by_any
holder=0
if held_by b; then holder=1; fi
(sleep 1; kill -9 "${hosts[holder]}") &
killed=$!
write "$b" hosted direct five 600
wait $killed
# The writer may have ended before the kill.
write "$b" hosted direct after 20
check hosted three four five after

section 'the other one, which has taken over, hangs'
if [ $holder = 0 ]; then until_true held_by b; else until_true held_by a; fi
kill -STOP "${hosts[1 - holder]}"
before=$("$bin" log seal "$a/logs/hosted")
write "$a" hosted lease six 20
kill -CONT "${hosts[1 - holder]}"
[ "$(head -n 1 "$work/six.positions")" -ge "$before" ] || fail 'a position below the seal'
write "$b" hosted direct seven 20
check hosted three four five after six seven

section 'a metadata server is killed'
(sleep 1; kill_server 0; up) &
killed=$!
write "$a" leases lease eight 600
wait $killed
check leases one two eight

section 'trims'
"$bin" log trim "$b/logs/leases" 200
refused 'trimmed' "$bin" log read "$a/logs/leases" --from 199
is "$("$bin" log read "$a/logs/leases" | wc -l)" "$(grep -c . "$work/eight.positions")"
refused 'beyond the end' "$bin" log trim "$b/logs/leases" 1000000
section 'end'
echo 'shared-log-test: passed'

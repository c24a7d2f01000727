#!/bin/bash
# metrics-test.sh: the metrics of a mount equal the executed operations, in every output format, and
# a slow operation is logged with the reason of its wait.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mkdir "$work/mnt" "$work/slow"
stopped=
cleanup() {
    [ -z "$stopped" ] || kill -CONT "$stopped" || true
    "$bin" umount --force "$work/slow" 2> /dev/null || true
    "$bin" umount --force "$work/mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

fail() {
    echo "metrics-test: $*" >&2
    exit 1
}
scrape() { # the socket
    curl --silent --show-error --fail --unix-socket "$1" http://localhost/metrics > "$work/scrape"
}
# The value of a series in the scraped text, by name and labels.
value() { awk -v name="$1" '$1 == name { print $2; found = 1 } END { exit !found }' "$work/scrape"; }
count() { value "espalier_operation_duration_seconds_count{operation=\"$1\"}"; }

"$bin" mkfs --journal 16M "$work/data" > /dev/null
"$bin" mount -o "metrics=unix:$work/socket" "$work/data" "$work/mnt"

# Operations on names reach the server once each; the kernel caches only lookups.
mkdir "$work/mnt/d"
for number in $(seq 20); do echo "$number" > "$work/mnt/d/$number"; done
for number in $(seq 20); do mv "$work/mnt/d/$number" "$work/mnt/d/m$number"; done
sync "$work/mnt/d/m1"
for number in $(seq 15); do rm "$work/mnt/d/m$number"; done
rmdir "$work/mnt/d" 2> /dev/null && fail 'rmdir has removed a directory that is not empty'

scrape "$work/socket"
for expected in mkdir=1 create=20 write=20 rename=20 fsync=1 unlink=15 rmdir=1; do
    found=$(count "${expected%=*}")
    [ "$found" = "${expected#*=}" ] || fail "expected $expected, found $found"
done
[ "$(value 'espalier_operation_errors_total{operation="rmdir"}')" = 1 ] || fail 'the failed rmdir is not counted'
[ "$(count lookup)" -ge 1 ] || fail 'no lookup is counted'
[ "$(value 'espalier_inodes')" = 7 ] || fail "$(value 'espalier_inodes') inodes instead of 7"
[ "$(value 'espalier_journal_syncs_total')" -ge 1 ] || fail 'the fsync synced nothing'
# The fsync waited for the journal, and the create did not.
awk '$1 == "espalier_operation_stage_seconds_total{operation=\"fsync\",stage=\"journal\"}" && $2 > 0 { found = 1 }
    END { exit !found }' "$work/scrape" || fail 'the fsync has no wait for the journal'
[ "$(value 'espalier_operation_stage_seconds_total{operation="create",stage="journal"}')" = 0.0 ] ||
    fail 'the create has a wait for the journal'

# Every line is a comment or a sample, each series occurs once, and each family has a type.
awk '
    /^# TYPE / { type[$3] = $4; next }
    /^# (HELP|UNIT|EOF)/ { next }
    !/^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.eE+-]+$/ { print "malformed: " $0; bad = 1; next }
    {
        if (seen[$1]++) { print "twice: " $0; bad = 1 }
        family = $1
        sub(/\{.*/, "", family)
        short = family
        sub(/_(total|bucket|sum|count)$/, "", short)
        if (!(family in type) && !(short in type)) { print "no type: " $0; bad = 1 }
    }
    END { exit bad }' "$work/scrape" || fail 'malformed metrics'
[ "$(tail -n 1 "$work/scrape")" = '# EOF' ] || fail 'the metrics have no end'
# The buckets of each histogram are cumulative and end with its count.
awk '
    /_bucket\{/ { if ($2 < last[FILENAME]) bad = 1; last[FILENAME] = $2 }
    /_count\{/ { last[FILENAME] = 0 }
    END { exit bad }' "$work/scrape" || fail 'a histogram shrinks'

code=$(curl --silent --output /dev/null --write-out '%{http_code}' --unix-socket "$work/socket" http://localhost/)
[ "$code" = 404 ] || fail "a wrong path gives $code"

"$bin" status --json "$work/mnt" > "$work/status"
grep -q '"name":"rename","count":20,"errors":0' "$work/status" || fail 'status --json has no 20 renames'
grep -q '"name":"rmdir","count":1,"errors":1' "$work/status" || fail 'status --json has no failed rmdir'
"$bin" status "$work/mnt" | grep -Eq '^rename +20 ' || fail 'status has no 20 renames'

# Operations are attributed to processes and directories while a viewer is active. The load runs
# until it appears.
mkdir "$work/mnt/busy"
while [ ! -e "$work/seen" ]; do
    for number in $(seq 50); do : > "$work/mnt/busy/$number"; done
    rm "$work/mnt/busy/"*
done &
load=$!
"$bin" top --once --json --interval 1 "$work/mnt" > "$work/top"
"$bin" top --once --interval 1 "$work/mnt" > "$work/top.txt"
touch "$work/seen"
wait "$load"
grep -q "\"pid\":$load,\"command\":\"metrics-test.sh\"" "$work/top" || fail 'top does not show the process'
grep -q '"path":"/busy"' "$work/top" || fail 'top does not show the directory'
grep -q '"name":"create"' "$work/top" || fail 'top does not show the operation'
grep -Eq "$load +metrics-test.sh" "$work/top.txt" || fail 'the table does not show the process'
grep -Eq ' /busy$' "$work/top.txt" || fail 'the table does not show the directory'
# The counters for balancers need no viewer.
for source in "$work/mnt" "$work/data"; do
    "$bin" balancer metrics --json "$source" > "$work/load"
    jq -e '.directories[0] | .path == "/busy" and .iwr > 50 and .rank == 0' "$work/load" > /dev/null ||
        fail "$source: the hottest directory is not /busy: $(cat "$work/load")"
    jq -e '.ranks | length == 1 and .[0].auth > 100 and .[0].req > 10' "$work/load" > /dev/null ||
        fail "$source: the rank has no load: $(cat "$work/load")"
done
scrape "$work/socket"
awk '$1 == "espalier_load_auth" && $2 > 100 { found = 1 } END { exit !found }' "$work/scrape" || fail 'no load is scraped'
"$bin" top --once "$work" 2> "$work/error" && fail 'top accepts a directory of another file system'
grep -q 'no Espalier file system is mounted' "$work/error" || fail "top's error has no reason"

# An address in use is reported, and the mount fails.
"$bin" mkfs --journal 4M "$work/mnt/data" > /dev/null
"$bin" mount -o "metrics=unix:$work/socket" "$work/mnt/data" "$work/slow" 2> "$work/error" && fail 'two mounts serve metrics at one address'
grep -q 'choose another address' "$work/error" || fail "the error has no advice: $(cat "$work/error")"
! grep -q " $work/slow " /proc/mounts || fail 'the failed mount is in /proc/mounts'

# A store inside another mount: while the outer server is stopped, nothing becomes durable.
"$bin" mount -o "slow=100,metrics=unix:$work/socket2" "$work/mnt/data" "$work/slow"
echo data > "$work/slow/file"
stopped=$("$bin" status --json "$work/mnt" | grep -o '"pid":[0-9]*' | cut -d: -f2)
kill -STOP "$stopped"
{ echo more >> "$work/slow/file" && sync "$work/slow/file"; } &
syncing=$!
for _ in $(seq 60); do
    scrape "$work/socket2"
    [ "$(value espalier_waiting_operations)" = 0 ] || break
    sleep 1
done
sleep 0.5
kill -CONT "$stopped"
stopped=
wait "$syncing"
for _ in $(seq 60); do
    grep -q 'slow operation ' "$work/mnt/data/log" && break
    sleep 1
done
grep -E 'WARN .*slow operation operation="?fsync"? inode=2 path="/file" pid=[0-9]+ .*journal_ms=[0-9]{3,}' \
    "$work/mnt/data/log" || fail "no slow fsync in the log: $(cat "$work/mnt/data/log")"
"$bin" umount "$work/slow"
"$bin" umount "$work/mnt"
[ ! -e "$work/socket" ] || fail 'the socket exists after unmounting'
"$bin" fsck "$work/data" > /dev/null
echo 'metrics-test: passed'

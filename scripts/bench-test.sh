#!/bin/bash
# bench-test.sh PROGRAM DIR: the benchmark runs in a directory and against the floor, and prints
# results. The speed does not matter here.
set -euo pipefail
bin=$1
dir=$2
report=$(mktemp)
trap 'rm -f "$report"' EXIT
groups=paper,mdtest,small,durable,big,tree
floors() { grep -c fuse.espalier-floor /proc/mounts || true; }
before=$(floors)
"$bin" bench "$dir" --floor --phases "$groups" --procs 2 --files 50 --bytes 8K --runs 2 --json > "$report"
jq -e '
    (.phases | length == 34)
    and all(.phases[]; .ops_per_s > 0 and .ratio > 0 and (.against[0].ratios | length == 2))
    and all(.phases[] | select(.name | startswith("tree/") | not); .p50_us > 0 and .p99_us >= .p50_us)
    and .sides[1].file_system == "fuse.espalier-floor"' "$report" > /dev/null
# Only on a mounted Espalier file system.
if grep -q " $(realpath "$dir") fuse.espalier " /proc/mounts; then
    "$bin" bench "$dir" --phases bulk --files 50 --runs 1 --json > "$report"
    jq -e '.phases | length == 4 and all(.[]; .ops_per_s > 0)' "$report" > /dev/null
fi
# One directory for all processes, a command that empties caches, and a counter.
called=$(mktemp -d)
"$bin" bench "$dir" --phases small,synced --shared --procs 2 --files 20 --runs 1 --json \
    --uncache "echo >> $called/uncache;:" \
    --counters "echo >> $called/counters; echo calls \$((40 * \$(wc -l < $called/counters)));:" > "$report"
[ "$(wc -l < "$called/uncache")" = 2 ] # both uncached phases of `small`
rm -r "$called"
# The counter rises by 40 from before a phase to its end: by 1 for each of 40 files.
jq -e '
    (.phases | length == 9)
    and all(.phases[] | select(.name | contains("readdir") | not); .operations == 40 and .counts.calls == 1)
    and all(.phases[] | select(.name | contains("readdir")); .operations == 80)' "$report" > /dev/null
[ "$(floors)" = "$before" ]
[ -z "$(find "$dir" -maxdepth 1 -name 'espalier-bench-*')" ]
echo 'bench-test: passed'

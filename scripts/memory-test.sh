#!/bin/bash
# memory-test.sh [FILES]: the memory of a mount stays within its limit for any number of files.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
files=${1:-100000}
work=$(mktemp -d)
mkdir "$work/mnt"
cleanup() {
    "$bin" umount --force "$work/mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
"$bin" mkfs "$work/data" > /dev/null
"$bin" mount -o memory=32M "$work/data" "$work/mnt"

figure() { "$bin" status --json "$work/mnt" | grep -o "\"$1\":[0-9]*" | cut -d: -f2; }
check() {
    local cache rss
    cache=$(figure cache_bytes)
    rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$(figure pid)/status")
    echo "$1: cache $cache bytes, resident at most $rss KiB"
    # The cache has a fifth of the 32M; the process has 160M for everything else. Without a limit
    # the cache would reach 40M.
    [ "$cache" -lt $((20 << 20)) ] && [ "$rss" -lt $((192 << 10)) ]
}

for directory in $(seq 1 $((files / 10000))); do
    mkdir "$work/mnt/$directory"
    (cd "$work/mnt/$directory" && seq 1 10000 | xargs touch)
done
check created
[ "$(find "$work/mnt" -type f -size 0 | wc -l)" = "$files" ]
check listed
cat "$work"/mnt/*/1 "$work"/mnt/*/10000
rm -r "$work/mnt/1" "$work/mnt/2"
[ "$(find "$work/mnt" -type f | wc -l)" = $((files - 20000)) ]
check removed
"$bin" umount "$work/mnt"
"$bin" fsck "$work/data"

#!/bin/bash
# full-test.sh: a full disk causes ENOSPC without losses, and is usable again after removals.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mkdir "$work/disk" "$work/mnt"
mount -t tmpfs -o size=300m tmpfs "$work/disk"
cleanup() {
    "$bin" umount --force "$work/mnt" 2> /dev/null || true
    umount "$work/disk" || umount -l "$work/disk" || true
    rm -rf "$work"
}
trap cleanup EXIT
"$bin" mkfs --journal 16M "$work/disk/data" > /dev/null
"$bin" mount "$work/disk/data" "$work/mnt"
cd "$work/mnt"

fill() { # command that fails when the disk is full
    local number=0
    while "$@" "$number" 2> "$work/error"; do
        number=$((number + 1))
        [ "$number" -lt 100000 ] || { echo 'full-test: the disk does not fill' >&2; exit 1; }
    done
    grep -q 'No space left on device' "$work/error"
    echo "$number"
}
small() { head -c 30000 /dev/zero | tr '\0' x > "small$1"; }
big() { head -c 8000000 /dev/zero > "big$1"; }

echo before > first
sync first
bigs=$(fill big)
rm big*
# A removal frees space when it is durable, and free space is checked once a second.
for _ in $(seq 60); do
    small first 2> /dev/null && break
    sleep 1
done
# Allocated space is usable, also after the end of the file.
fallocate -l 30000 allocated
: > beyond
fallocate -n -l 30000 beyond
fallocate -l 8000000 large
for file in allocated beyond large; do
    [ "$(stat -c %b "$file")" -ge 58 ] || { echo "full-test: nothing is allocated for $file" >&2; exit 1; }
done
smalls=$(fill small)
payload() { head -c "$1" /dev/zero | tr '\0' y; }
# Changes fail until the checkpoint that filled the disk is complete.
overwrite() { # file, bytes
    for _ in $(seq 20); do
        payload "$2" | dd of="$1" conv=notrunc,fsync status=none 2> /dev/null && return
        sleep 1
    done
    echo "full-test: the allocated space of $1 cannot be written" >&2
    return 1
}
for _ in 1 2 3; do
    overwrite allocated 30000
    overwrite beyond 30000
    overwrite large 8000000
done
# A checkpoint may have freed space for a small file.
! payload 8000000 | dd of=denied conv=fsync status=none 2> "$work/error"
grep -q 'No space left on device' "$work/error"
# No file is lost, and files can be removed.
[ "$(cat first)" = before ]
cmp <(payload 30000) allocated
cmp <(payload 30000) beyond
cmp <(payload 8000000) large
[ "$(wc -c < small1)" = 30000 ]
rm small*
for _ in $(seq 60); do
    [ "$(stat -f -c %a .)" -gt 40000 ] && break
    sleep 1
done
echo again > later
sync later
cd /
"$bin" umount "$work/mnt"
"$bin" fsck "$work/disk/data"
"$bin" mount "$work/disk/data" "$work/mnt"
[ "$(cat "$work/mnt/first" "$work/mnt/later")" = "$(printf 'before\nagain')" ]
cmp <(payload 30000) "$work/mnt/allocated"
cmp <(payload 30000) "$work/mnt/beyond"
"$bin" umount "$work/mnt"
echo "full-test: passed ($bigs files of 8 MB, $smalls of 30 KB)"

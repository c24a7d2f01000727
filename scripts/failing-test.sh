#!/bin/bash
# failing-test.sh: a disk that fails under a mount. Existing files stay readable, no change that may
# be lost is acknowledged, and unmounting works; after the disk is repaired, the next mount has
# everything that was synced.
#
# The store is on an ext4 on a loop device, whose file is on a small FUSE file system that fails on
# request.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-target/release}
bin=$(realpath "$BUILD/espalier")
work=$(mktemp -d)
cleanup() {
    : > "$work/control"
    "$bin" umount --force "$work/mnt" 2> /dev/null || umount -l "$work/mnt" 2> /dev/null || true
    remove_disk
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/disk-functions.sh
mkdir "$work/mnt"

fail() {
    echo "failing-test: $*" >&2
    cat "$work/log" >&2 || true
    exit 1
}
await() { # command: until it succeeds
    for _ in $(seq 600); do
        if "$@"; then return; fi
        sleep 0.1
    done
    fail "does not succeed within a minute: $*"
}
detach() {
    umount "$work/disk"
    losetup -d "$loop"
    loop=
}
# Succeeds if the last error is of a kind that a failing disk may cause.
refused() { grep -Eq 'Input/output error|Read-only file system' "$work/error"; }
cannot() { ! "$@" 2> "$work/error" && refused; }
has_failed() { ! { echo more >> "$work/mnt/more" && sync "$work/mnt/more"; } 2> "$work/error" && refused; }
contents() { yes "$1" 2> /dev/null | head -c "$2" || true; } # the pipe breaks when there is enough
# Checks the contents of all synced files, or of those whose name begins with a word.
check_synced() {
    while read -r name size; do
        [[ $name == "${1:-}"* ]] || continue
        cmp -s <(contents "$name" "$size") "$work/mnt/$name" || fail "$name was synced, but is lost or damaged"
    done < "$work/synced"
}
put() { # name, bytes
    contents "$1" "$2" > "$work/mnt/$1" && sync "$work/mnt/$1" && echo "$1 $2" >> "$work/synced"
}

: > "$work/synced"
attach "$work/image"
"$bin" mkfs --journal 16M "$work/disk/data" > /dev/null
detach

for kind in writes all; do
    "$failing" "$work/image" "$work/below" "$work/control" &
    disk=$!
    await test -e "$work/below/disk"
    attach "$work/below/disk"
    "$bin" mount --log-file "$work/log" "$work/disk/data" "$work/mnt"
    for number in $(seq 50); do put "small-$kind-$number" $((number * 500)); done
    put "big-$kind" 3000000
    # Reads the files of earlier rounds into memory.
    check_synced
    echo "$kind" > "$work/control"
    # Writes may stay in memory for a while, but a sync fails soon, and all later changes fail.
    await has_failed
    cannot touch "$work/mnt/new" || fail "a create succeeds on a failing disk"
    cannot rm "$work/mnt/small-$kind-1" || fail "a removal succeeds on a failing disk"
    # Cached files are readable; if only writes fail, all files are.
    if [ "$kind" = all ]; then check_synced small; else check_synced; fi
    grep -q '"failure": *"' <<< "$("$bin" status --json "$work/mnt")" || fail 'the status does not report the failure'
    grep -Eq 'cannot be written|the store failed' "$work/log" || fail 'the log does not report the failure'
    # The repaired disk has lost data: the mount must not acknowledge changes.
    : > "$work/control"
    cannot touch "$work/mnt/new" || fail 'a create succeeds after a failure'
    if grep -q 'cannot be written' "$work/log"; then
        cannot sync "$work/mnt/more" || fail 'a sync succeeds after one that failed'
    fi
    echo "$kind" > "$work/control"
    started=$SECONDS
    timeout 120 "$bin" umount "$work/mnt" || true
    took=$((SECONDS - started))
    if grep -q " $work/mnt " /proc/mounts || [ "$took" -gt 60 ]; then fail "unmounting took $took s"; fi
    : > "$work/control"
    # Drops the kernel's caches of the broken disk, to test what is on it.
    await umount "$work/disk"
    losetup -d "$loop"
    loop=
    await umount "$work/below"
    wait "$disk"
    attach "$work/image"
    "$bin" fsck "$work/disk/data" > "$work/fsck" || fail "fsck: $(cat "$work/fsck")"
    "$bin" mount --log-file "$work/log" "$work/disk/data" "$work/mnt"
    check_synced
    put "after-$kind" 1000
    rm -f "$work/mnt/more"
    "$bin" umount "$work/mnt"
    "$bin" fsck "$work/disk/data" > "$work/fsck" || fail "fsck: $(cat "$work/fsck")"
    detach
    rm "$work/log"
    echo "failing-test: $kind fail: unmounted in $took s; $(wc -l < "$work/synced") synced files are there"
done
echo 'failing-test: passed'

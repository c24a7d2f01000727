#!/bin/bash
# dump-test.sh: what is dumped and loaded again is the same tree, to the last hard link, hole and attribute.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${TARGET:-target}/release/espalier")
work=$(mktemp -d)
mkdir "$work/a" "$work/b"
cleanup() {
    "$bin" umount --force "$work/a" 2> /dev/null || true
    "$bin" umount --force "$work/b" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

"$bin" mkfs "$work/one" > /dev/null
"$bin" mount "$work/one" "$work/a"
cp -a crates docs "$work/a"
ln "$work/a/docs/format.md" "$work/a/link"
ln -s docs "$work/a/symlink"
mkfifo "$work/a/fifo"
mknod "$work/a/null" c 1 3
truncate -s 1T "$work/a/sparse"
dd if=/dev/urandom of="$work/a/sparse" bs=64k seek=100 count=3 conv=notrunc status=none
head -c 3000000 /dev/urandom > "$work/a/big"
touch -d '2001-02-03 04:05:06.789' "$work/a/big" "$work/a/link"
chmod 4711 "$work/a/big"
setfattr -n user.color -v green "$work/a/link"
setfacl -m u:nobody:r-x,d:g:nogroup:rwx "$work/a/docs"
"$bin" umount "$work/a"

"$bin" dump "$work/one" "$work/dump"
"$bin" load "$work/dump" "$work/two"
"$bin" fsck "$work/two"
"$bin" mount -o ro "$work/one" "$work/a"
"$bin" mount -o ro "$work/two" "$work/b"
# What differs is listed, and must be nothing; the sparse file is too long to be read in full.
differences=$(rsync -aHAXn --checksum --delete --itemize-changes --exclude=/sparse "$work/a/" "$work/b/")
[ -z "$differences" ] || { echo "$differences"; exit 1; }
[ "$(stat -c '%s %b' "$work/a/sparse")" = "$(stat -c '%s %b' "$work/b/sparse")" ]
cmp <(dd if="$work/a/sparse" bs=64k skip=99 count=5 status=none) <(dd if="$work/b/sparse" bs=64k skip=99 count=5 status=none)
"$bin" umount "$work/a"
"$bin" umount "$work/b"

head -c "$(($(stat -c %s "$work/dump") - 100))" "$work/dump" > "$work/cut"
if "$bin" load "$work/cut" "$work/three" 2> "$work/error"; then exit 1; fi
grep -q 'damaged or was cut off' "$work/error"
if "$bin" mount "$work/three" "$work/a" 2> "$work/error"; then exit 1; fi
grep -q 'not completely made' "$work/error"
if "$bin" load docs/format.md "$work/four" 2> "$work/error"; then exit 1; fi
grep -q 'no dump' "$work/error"
echo 'dump-test: passed'

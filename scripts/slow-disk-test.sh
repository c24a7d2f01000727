#!/bin/bash
# slow-disk-test.sh: a server's disk that does not answer for a while. Reads from it wait; other
# requests of the mount do not.
#
# The server's store is on an ext4 on a loop device, whose file is on a small FUSE file system that
# blocks reads on request.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-target/release}
bin=$(realpath "$BUILD/espalier")
work=$(mktemp -d)
cluster=$work/disk/cluster mnt=$work/mnt
. scripts/cluster-functions.sh
cleanup() {
    : > "$work/control"
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    remove_disk
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/disk-functions.sh
mkdir "$mnt"

"$failing" "$work/image" "$work/below" "$work/control" &
until_true test -e "$work/below/disk"
attach "$work/below/disk"
"$bin" cluster init "$cluster" --listen 127.0.0.1:17500 > /dev/null
up
"$bin" mount espalier://127.0.0.1:17500/ "$mnt" -o "credentials=$cluster/clients/admin" --log-file "$work/mount.log"
for n in 1 2; do head -c 3000000 /dev/urandom > "$work/bytes-$n"; cp "$work/bytes-$n" "$mnt/big-$n"; done
sync "$mnt"/big-*
# Drops the caches.
find "$cluster"/server-0 -path "*/streams/*" -type f -size +2M |
    while read -r stream; do sync "$stream" && dd if="$stream" iflag=nocache count=0 status=none; done
read -r _ < "$mnt/big-2" || true # reads its beginning into memory

is_blocked() {
    : > "$work/control" # the servers' logs are on this disk, too
    fail "$* while the disk blocks a read"
}
echo stuck > "$work/control"
dd if="$mnt/big-1" of="$work/read" bs=1M iflag=direct status=none &
reader=$!
sleep 0.5
begun=$(date +%s%N)
timeout -k 1 20 touch "$mnt/made" || is_blocked 'a create does not finish'
timeout -k 1 20 ls -l "$mnt" > /dev/null || is_blocked 'a listing does not finish'
timeout -k 1 20 dd if="$mnt/big-2" bs=4K count=1 iflag=direct of="$work/first" status=none || is_blocked 'a read of cached bytes does not finish'
cmp -n 4096 "$work/first" "$work/bytes-2"
echo "slow-disk-test: other requests took $((($(date +%s%N) - begun) / 1000000)) ms"
[ -e "/proc/$reader" ] || is_blocked 'the reader has ended'
: > "$work/control"
wait "$reader"
cmp "$work/read" "$work/bytes-1"
echo 'slow-disk-test: passed'

# disk-functions.sh: shared by the tests of failing and slow disks: an ext4 on a loop device, whose
# file is on a small FUSE file system that fails or blocks on request. Tests set $BUILD and $work
# first, and call remove_disk at the end.

failing=$(realpath "$BUILD/espalier-failing-disk")
loop=

attach() { # file: its ext4, mounted
    loop=$(losetup --find --show "$1")
    mount "$loop" "$work/disk"
}

# Cleans up at the end of a test.
remove_disk() {
    umount "$work/disk" 2> /dev/null || umount -l "$work/disk" 2> /dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" || true
    umount "$work/below" 2> /dev/null || umount -l "$work/below" 2> /dev/null || true
}

if ! losetup -f > /dev/null 2>&1; then
    echo "$(basename "$0" .sh): skipped, because this machine has no loop devices"
    exit
fi
mkdir "$work/below" "$work/disk"
truncate -s 400M "$work/image"
mkfs.ext4 -q -F "$work/image"
: > "$work/control"

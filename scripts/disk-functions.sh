# disk-functions.sh: what the tests of failing and slow disks share: an ext4 on a loop device, whose file is on a small FUSE file
# system that fails or is slow when it is told to. They set $BUILD and $work before they use it, and end with remove_disk.

failing=$(realpath "$BUILD/espalier-failing-disk")
loop=

attach() { # file: its ext4, mounted
    loop=$(losetup --find --show "$1")
    mount "$loop" "$work/disk"
}

# What is left of it, when the test ends.
remove_disk() {
    umount "$work/disk" 2> /dev/null || umount -l "$work/disk" 2> /dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" || true
    umount "$work/below" 2> /dev/null || umount -l "$work/below" 2> /dev/null || true
}

if ! losetup -f > /dev/null 2>&1; then
    echo "$(basename "$0" .sh): skipped, for there are no loop devices here"
    exit
fi
mkdir "$work/below" "$work/disk"
truncate -s 400M "$work/image"
mkfs.ext4 -q -F "$work/image"
: > "$work/control"

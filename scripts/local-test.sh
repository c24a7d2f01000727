#!/bin/bash
# local-test.sh: on a mount of a local store: pjdfstest, the conformance cases over both transports,
# random operations against the model, first-hour.sh, the benchmark, and mount(8).
#
# TARGET_DIR=/some/dir tests another file system, such as ext4, in that directory instead.
# ONLY="pjdfstest conformance model first-hour bench helpers" selects parts.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh

BUILD=$(realpath "${BUILD:-target/release}")
export BUILD # the programs' directory
bin=$BUILD/espalier
conformance=$BUILD/espalier-conformance
only=${ONLY:-pjdfstest conformance model first-hour bench helpers}

work=$(mktemp -d)
chmod 755 "$work" # other users access the mount
mkdir "$work/second" "$work/mnt"
mount -t tmpfs -o size=512m tmpfs "$work/second"
mounted=
uring=/sys/module/fuse/parameters/enable_uring
uring_before=
# A mount that starts holds this lock while it sets the switch.
[ ! -w "$uring" ] || uring_before=$(flock "$uring" cat "$uring")
[ -n "$uring_before" ] || echo "local-test: no $uring: only device queues are tested"
cleanup() {
    [ -z "$mounted" ] || "$bin" umount "$work/mnt" || umount -l "$work/mnt" || true
    umount "$work/second" || umount -l "$work/second" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

# until_inside PID: waits until the process has the mount's root as working directory, or has ended.
until_inside() {
    until [ ! -e "/proc/$1" ] || [ "$(readlink "/proc/$1/cwd")" = "$work/mnt" ]; do sleep 0.01; done
}

if [ -n "${TARGET_DIR:-}" ]; then
    # A mount point is best: otherwise pjdfstest omits the cases that remount the file system.
    dir=$TARGET_DIR
else
    "$bin" mkfs "$work/data"
    "$bin" mount -o allow_other "$work/data" "$work/mnt"
    mounted=yes
    dir=$work/mnt
fi

part() {
    case " $only " in *" $1 "*) section "$1" ;; *) return 1 ;; esac
}

if part pjdfstest; then
    scripts/pjdfstest.sh "$dir" "$work/second"
fi
if part conformance; then
    "$conformance" "$dir"
    if [ -n "$mounted" ]; then
        # The mount has restored the kernel's switch.
        [ -z "$uring_before" ] || "$bin" status "$work/mnt" | grep '^transport *uring'
        [ -z "$uring_before" ] || [ "$(flock "$uring" cat "$uring")" = "$uring_before" ]
        # The same cases over the other transport.
        "$bin" umount "$work/mnt"
        mounted=
        "$bin" mount -o allow_other,transport=queues "$work/data" "$work/mnt"
        mounted=yes
        ls "$work/mnt" > /dev/null # the mount determines its transport with the first request
        "$bin" status "$work/mnt" | grep '^transport *queues'
        "$conformance" "$dir"
        "$bin" umount "$work/mnt"
        mounted=
        "$bin" mount -o allow_other "$work/data" "$work/mnt"
        mounted=yes
    fi
fi
if part model; then
    "$conformance" "$dir" --model 1 --runs 100 --steps 1000
    "$conformance" "$dir" --model 1 --runs 20 --steps 2000 --threads 4
    "$conformance" "$dir" --pieces 1 --rounds 6
    "$conformance" "$dir" --follow 1 --rounds 3
    # SEED=$RANDOM tests other operations; a failure prints how to repeat it.
    "$conformance" "$dir" --model "${SEED:-7}" --runs 20 --steps 1000
fi
if part first-hour; then
    scripts/first-hour.sh "$dir"
fi
if part bench; then
    scripts/bench-test.sh "$(realpath "$bin")" "$dir"
fi

if [ -n "$mounted" ]; then
    section 'umount, fsck'
    "$bin" umount "$work/mnt"
    mounted=
    "$bin" fsck "$work/data"
fi
if [ -z "${TARGET_DIR:-}" ]; then
    if part helpers; then
        mount -t fuse.espalier -o noatime,nofail "$work/data" "$work/mnt"
        mounted=yes
        grep -q " $work/mnt fuse.espalier .*noatime" /proc/mounts
        umount "$work/mnt"
        mounted=
        # Generic mount options are accepted; a remount refuses those that it cannot change.
        mount -t fuse.espalier -o nodiratime,nosymfollow,lazytime,iversion,X-any,nofail "$work/data" "$work/mnt"
        mounted=yes
        grep -q " $work/mnt fuse.espalier .*nodiratime.*nosymfollow" /proc/mounts
        touch -a -d @1000 "$work/mnt"
        ls "$work/mnt" > /dev/null
        [ "$(stat -c %X "$work/mnt")" = 1000 ]
        mount -o remount,nosuid "$work/mnt"
        grep -q " $work/mnt fuse.espalier .*nosuid.*nodiratime" /proc/mounts
        if mount -o remount,noatime "$work/mnt" 2> "$work/refused"; then exit 1; fi
        grep -q 'mount it anew' "$work/refused"
        umount "$work/mnt"
        mounted=
        if "$bin" mount -o nonsense "$work/data" "$work/mnt"; then exit 1; fi
        # Permissions of directories are checked by the kernel only: the option is refused.
        if "$bin" mount -o nodefault_permissions "$work/data" "$work/mnt"; then exit 1; fi
        "$bin" mount "$work/data" "$work/mnt"
        mounted=yes
        # A mount on top survives a lookup by a user without permission.
        mkdir -p "$work/mnt/closed/top"
        mount -t tmpfs tmpfs "$work/mnt/closed/top"
        chmod 700 "$work/mnt/closed"
        if setpriv --reuid=1234 --regid=1234 --clear-groups stat "$work/mnt/closed/top" 2> /dev/null; then exit 1; fi
        mountpoint -q "$work/mnt/closed/top"
        umount "$work/mnt/closed/top"
        rm -r "$work/mnt/closed"
        # umount waits briefly for processes that are about to leave, and refuses if others remain.
        (cd "$work/mnt" && exec sleep 0.2) &
        until_inside "$!"
        "$bin" umount "$work/mnt"
        mounted=
        "$bin" mount "$work/data" "$work/mnt"
        mounted=yes
        (cd "$work/mnt" && exec sleep 60) &
        user=$!
        until_inside "$user"
        # --timeout forces unresponsive mounts only, not one that is in use.
        if "$bin" umount --timeout 1 "$work/mnt" 2> "$work/refused"; then exit 1; fi
        grep -q 'end what uses it' "$work/refused"
        kill "$user"
        wait "$user" 2> /dev/null || true
        "$bin" umount "$work/mnt"
        mounted=
        # A store can be mounted while the server of its last mount still writes; not while mounted.
        for round in 1 2 3 4 5; do
            "$bin" mount "$work/data" "$work/mnt"
            mounted=yes
            for file in $(seq 2000); do echo "$round" > "$work/mnt/drained$file"; done
            if [ "$round" = 1 ]; then
                if "$bin" mount "$work/data" "$work/second" 2> "$work/refused"; then exit 1; fi
                grep -q 'in use' "$work/refused"
            fi
            umount "$work/mnt"
            mounted=
        done
        # Waits until the server process has ended, which still writes to the store.
        "$bin" mount "$work/data" "$work/mnt"
        mounted=yes
        "$bin" umount "$work/mnt"
        mounted=
    fi
fi
echo 'local-test: passed'

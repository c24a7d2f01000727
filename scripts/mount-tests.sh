#!/bin/bash
# Tests on a mount: pjdfstest, our conformance cases over both transports, the model, a user's first hour, and fsck at
# the end.
#
# TARGET_DIR=/some/dir tests that directory's file system instead of a mount of ours (try it on ext4).
# ONLY="pjdfstest conformance model first-hour bench helpers metrics dump cluster-dump usage policy replay cluster data small bare ranks bulk repair full failing slow memory kill powerloss" picks parts.
# LANES=1 runs the scripts one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=$(realpath "${BUILD:-target/release}")
export BUILD # where the programs are
bin=$BUILD/espalier
conformance=$BUILD/espalier-conformance
only=${ONLY:-pjdfstest conformance model first-hour bench helpers metrics dump cluster-dump usage policy replay cluster data small bare ranks bulk repair full failing slow memory kill powerloss}

if [ "$(id -u)" != 0 ]; then
    echo 'mount-tests: must run as root: other users, device nodes and trusted.* need it' >&2
    exit 1
fi

work=$(mktemp -d)
chmod 755 "$work" # other users must reach the mount
mkdir "$work/second" "$work/mnt"
mount -t tmpfs -o size=512m tmpfs "$work/second"
mounted=
# mount(8) finds the program by this name; remounting needs it too.
helper=/sbin/mount.fuse.espalier
if [ -e "$helper" ]; then helper=; else ln -s "$(realpath "$bin")" "$helper"; fi
uring=/sys/module/fuse/parameters/enable_uring
uring_before=$(cat "$uring" 2> /dev/null || true)
[ -n "$uring_before" ] || echo "mount-tests: no $uring: only device queues are tested"
cleanup() {
    [ -z "$helper" ] || rm -f "$helper"
    [ -z "$mounted" ] || "$bin" umount "$work/mnt" || umount -l "$work/mnt" || true
    umount "$work/second" || umount -l "$work/second" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

if [ -n "${TARGET_DIR:-}" ]; then
    # Also through a mount point of its own, as pjdfstest remounts what it finds there.
    dir=$TARGET_DIR
else
    "$bin" mkfs "$work/data"
    "$bin" mount -o allow_other "$work/data" "$work/mnt"
    mounted=yes
    dir=$work/mnt
fi

part() {
    case " $only " in *" $1 "*) echo "== $1 (after $SECONDS s)" ;; *) return 1 ;; esac
}

if part pjdfstest; then
    scripts/pjdfstest.sh "$dir" "$work/second"
fi
if part conformance; then
    "$conformance" "$dir"
    if [ -n "$mounted" ]; then
        # The mount has turned the kernel's switch on for itself alone.
        [ -z "$uring_before" ] || "$bin" status "$work/mnt" | grep '^transport *uring'
        [ "$(cat "$uring" 2> /dev/null || true)" = "$uring_before" ]
        # The same over the transport that was not chosen.
        "$bin" umount "$work/mnt"
        mounted=
        "$bin" mount -o allow_other,transport=queues "$work/data" "$work/mnt"
        mounted=yes
        ls "$work/mnt" > /dev/null # the transport is known when the first request has been answered
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
    # SEED=$RANDOM goes where nobody has been: a failure prints how to replay it.
    "$conformance" "$dir" --model "${SEED:-7}" --runs 20 --steps 1000
fi
if part first-hour; then
    scripts/first-hour.sh "$dir"
fi
if part bench; then
    scripts/bench-test.sh "$(realpath "$bin")" "$dir"
fi

if [ -n "$mounted" ]; then
    echo '== umount, fsck'
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
        # Options of all file systems are taken; a remount refuses what it cannot change.
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
        # The kernel has to check who may search a directory.
        if "$bin" mount -o nodefault_permissions "$work/data" "$work/mnt"; then exit 1; fi
        "$bin" mount "$work/data" "$work/mnt"
        mounted=yes
        # What is mounted on top stays, whoever may not look.
        mkdir -p "$work/mnt/closed/top"
        mount -t tmpfs tmpfs "$work/mnt/closed/top"
        chmod 700 "$work/mnt/closed"
        if setpriv --reuid=1234 --regid=1234 --clear-groups stat "$work/mnt/closed/top" 2> /dev/null; then exit 1; fi
        mountpoint -q "$work/mnt/closed/top"
        umount "$work/mnt/closed/top"
        rm -r "$work/mnt/closed"
        # Whoever is about to leave is waited for, and nobody else.
        (cd "$work/mnt" && exec sleep 0.2) &
        sleep 0.1
        "$bin" umount "$work/mnt"
        mounted=
        "$bin" mount "$work/data" "$work/mnt"
        mounted=yes
        (cd "$work/mnt" && exec sleep 60) &
        user=$!
        sleep 0.1
        # It is not forced, either, where that would be done to one that does not answer.
        if "$bin" umount --timeout 1 "$work/mnt" 2> "$work/refused"; then exit 1; fi
        grep -q 'end what uses it' "$work/refused"
        kill "$user"
        wait "$user" 2> /dev/null || true
        "$bin" umount "$work/mnt"
        mounted=
        # Mounted again while the server still writes out what there was; but not while it is mounted.
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
    fi
    # Two at a time, the longest first: they wait for disks, for servers that come back, and for time to pass. Each prints what it has to
    # say when it is over. None begins after one has failed, and how that one ended is said again when the other is over.
    run_part() {
        local name=$1 script=$2 began=$SECONDS result=0
        "scripts/$script.sh" > "$work/$name.log" 2>&1 < /dev/null || result=255
        echo "== $name ($((SECONDS - began)) s)"
        cat "$work/$name.log"
        [ "$result" = 0 ] || { echo "== $name failed"; tail -n 12 "$work/$name.log"; } >> "$work/failed"
        return "$result"
    }
    export -f run_part
    export work
    while read -r name script; do
        case " $only " in *" $name "*) echo "$name $script" ;; esac
    done << 'EOF' | xargs -r -P "${LANES:-2}" -L 1 bash -c 'run_part "$@"' run_part || { cat "$work/failed"; exit 1; }
powerloss powerloss-test
ranks cluster-ranks-test
small small-files-test
cluster cluster-test
data cluster-data-test
bare bare-test
bulk bulk-test
failing failing-test
slow slow-disk-test
usage usage-test
repair repair-test
dump dump-test
cluster-dump cluster-dump-test
kill kill-test
full full-test
memory memory-test
metrics metrics-test
policy policy-test
replay replay-test
EOF
fi
echo "mount-tests: all passed ($SECONDS s)"

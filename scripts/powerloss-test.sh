#!/bin/bash
# powerloss-test.sh [WORKLOAD...]: simulates loss of power at many points of recorded workloads, and
# again during recovery.
#
# The store is on an ext4 in a loop device whose image is served by `espalier-powerloss record`,
# which records every write and flush. For each of POINTS= points of the record (chosen by SEED=)
# the test builds a disk that a loss of power could leave: all flushed writes, and some of the
# others, in any order, torn. The disk must mount, contain everything that was acknowledged as
# durable, and be clean.
#
# powerloss-test.sh replay DIR POINT SEED: repeats a failed point.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
power=$BUILD/espalier-powerloss
points=${POINTS:-10}
seed=${SEED:-1}

export RUST_BACKTRACE=0 # failed checks need no backtrace

if ! losetup -f > /dev/null 2>&1; then
    echo 'powerloss-test: skipped, because this machine has no loop devices'
    exit
fi
work=$(mktemp -d)
disk=$work/disk mnt=$work/mnt recorder=$work/recorder
mkdir "$disk" "$mnt" "$recorder"
cleanup() {
    local at
    "$bin" umount --force "$mnt" 2> /dev/null || true
    [ ! -e "$disk/cluster" ] || "$bin" cluster down "$disk/cluster" > /dev/null 2>&1 || true
    for at in "$mnt" "$disk" "$recorder"; do
        ! mountpoint -q "$at" 2> /dev/null || umount "$at" 2> /dev/null || umount -l "$at" || true
    done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

fail() {
    echo "powerloss-test: $*" >&2
    exit 1
}

unmount() { # a loop device may release its image a moment after the unmount of its file system
    local attempt
    for attempt in $(seq 100); do
        ! umount "$1" 2> /dev/null || return 0
        sleep 0.1
    done
    fail "cannot unmount $1 (attempt $attempt)"
}

disk_mount() { mount -o loop,nodiscard "$1" "$disk"; }

make_disk() { # image, size
    truncate -s "$2" "$1"
    mkfs.ext4 -q -F -b 4096 -J size=4 -E nodiscard "$1"
}

# Runs a command on a recorded disk: image, record, command. Leaves the image as the command left
# it.
record() {
    local image=$1 record=$2 pid
    shift 2
    "$power" record "$image" "$record" "$recorder" &
    pid=$!
    until mountpoint -q "$recorder"; do
        kill -0 "$pid" || fail 'the recorder ended'
        sleep 0.05
    done
    disk_mount "$recorder/disk"
    "$@"
    unmount "$disk"
    unmount "$recorder"
    wait "$pid"
}

work() { # workload, seed, mount options
    "$bin" mount -o "$3" "$disk/data" "$mnt"
    "$power" work "$1" "$mnt" "$recorder/marks" "$2"
    "$bin" umount "$mnt"
}

# The same workload through a server: workload, seed.
work_served() {
    local server said=$work/served
    printf 'listen = "127.0.0.1:17442"\nstore = "%s"\ninsecure = true\n' "$disk/data" > "$work/server.toml"
    "$bin" serve --config "$work/server.toml" > "$said" 2> "$work/server.log" &
    server=$!
    until grep -q serving "$said"; do
        kill -0 "$server" || fail "the server ended: $(cat "$work/server.log")"
        sleep 0.05
    done
    "$bin" mount -o insecure espalier://127.0.0.1:17442/ "$mnt" --log-file "$work/mount.log"
    "$power" work "$1" "$mnt" "$recorder/marks" "$2"
    "$bin" umount "$mnt"
    kill "$server"
    wait "$server"
}

# A cluster of two servers on the disk, whose files are created with datafiles by a policy.
make_cluster() {
    local server
    "$bin" cluster init "$disk/cluster" --servers 2 --listen 127.0.0.1:17450 > /dev/null
    for server in 0 1; do
        # A restarted server waits until the leases of its previous incarnation have expired.
        sed -i 's/^lease_seconds = .*/lease_seconds = 2/' "$disk/cluster/server-$server/server.toml"
        printf '[policy]\n%s\n' "$1" >> "$disk/cluster/server-$server/server.toml"
    done
}

# Mounts it, runs a command there, and unmounts: command.
on_cluster() {
    "$bin" cluster up "$disk/cluster" > "$work/up"
    "$bin" mount -o credentials="$disk/cluster/clients/admin" espalier://127.0.0.1:17450/ "$mnt" --log-file "$work/mount.log"
    "$@"
    "$bin" umount "$mnt"
    "$bin" cluster down "$disk/cluster" > /dev/null
}

work_cluster() { # workload, seed
    on_cluster "$power" work "$1" "$mnt" "$recorder/marks" "$2"
}

check_marks() {
    "$power" check "$mnt" "$work/lost.marks" > "$work/checked"
}

# A server may be killed while it cleans up after clients, but nothing is lost and no reference
# dangles.
check_cluster() {
    disk_mount "$work/lost"
    on_cluster check_marks
    "$bin" cluster fsck "$disk/cluster" > "$work/fsck" || { cat "$work/fsck" >&2; return 1; }
    unmount "$disk"
}

make() {
    "$bin" mkfs --journal 4M "$disk/data" > /dev/null
    echo made > "$recorder/marks"
}

# The expected result of `load`, made without a loss of power: directory.
make_dump() {
    "$bin" mkfs --journal 4M "$1/source" > /dev/null
    "$bin" mount "$1/source" "$mnt"
    cp -r crates/store docs "$mnt"
    seq 120000 > "$mnt/big"
    truncate -s 1G "$mnt/sparse"
    seq 50000 | dd of="$mnt/sparse" bs=100k seek=5 conv=notrunc status=none
    "$bin" umount "$mnt"
    "$bin" dump "$1/source" "$1/dump" 2> /dev/null
    "$bin" load "$1/dump" "$1/loaded" > /dev/null
    "$bin" dump "$1/loaded" "$1/expected" 2> /dev/null
    rm -r "$1/source" "$1/loaded"
}

load() {
    "$bin" load --interval 64K "$first/dump" "$disk/data" > /dev/null
    echo made > "$recorder/marks"
}

# Resumes an interrupted load, or restarts it if nothing is left.
load_again() {
    "$bin" load --resume --interval 64K "$first/dump" "$disk/data" > /dev/null 2> "$work/refused" ||
        grep -q 'nothing to resume' "$work/refused" ||
        "$bin" load --force --interval 64K "$first/dump" "$disk/data" > /dev/null
    echo made > "$recorder/marks"
}

# Builds the disk after a loss of power in $work/lost: directory with `image`, `marks` and `record`;
# point, seed.
lose() {
    cp --sparse=always "$1/image" "$work/lost"
    cp "$1/marks" "$work/lost.marks"
    "$power" crash "$1/record" "$2" "$3" "$work/lost" "$work/lost.marks"
}

# An interrupted load is not a file system, and resumes: directory with `dump` and `expected`.
check_load() {
    disk_mount "$work/lost"
    if "$bin" mount -o ro "$disk/data" "$mnt" 2> "$work/refused"; then
        "$bin" umount "$mnt"
    else
        [ ! -s "$work/lost.marks" ] || { cat "$work/refused" >&2; return 1; }
        if ! "$bin" load --resume "$1/dump" "$disk/data" > /dev/null 2> "$work/refused"; then
            # The superblock was not complete yet.
            grep -q 'not completely made: use --force' "$work/refused" || { cat "$work/refused" >&2; return 1; }
            "$bin" load --force "$1/dump" "$disk/data" > /dev/null
        fi
    fi
    "$bin" dump "$disk/data" "$work/again" 2> /dev/null
    cmp "$work/again" "$1/expected"
    "$bin" fsck "$disk/data" > "$work/fsck" || { cat "$work/fsck" >&2; return 1; }
    unmount "$disk"
}

check() {
    [ ! -e "$1/dump" ] || { check_load "$1"; return; }
    [ ! -e "$1/cluster" ] || { check_cluster; return; }
    disk_mount "$work/lost"
    if [ "$(cat "$work/lost.marks")" = made ] || [ -s "$work/lost.marks" ]; then
        "$bin" mount "$disk/data" "$mnt"
        grep -qx made "$work/lost.marks" || "$power" check "$mnt" "$work/lost.marks" > "$work/checked"
    elif ! "$bin" mount "$disk/data" "$mnt" 2> "$work/refused"; then
        # An incomplete file system is reported, and can be made again.
        grep -Eq 'mkfs|no file system' "$work/refused" || { cat "$work/refused" >&2; return 1; }
        "$bin" mkfs --force "$disk/data" > /dev/null
        "$bin" mount "$disk/data" "$mnt"
    fi
    "$bin" umount "$mnt"
    "$bin" fsck "$disk/data" > "$work/fsck" || { cat "$work/fsck" >&2; return 1; }
    unmount "$disk"
}

try() { # directory, point, seed
    lose "$@"
    check "$1" & # in a subshell, which an error ends
    if ! wait "$!"; then
        local saved
        saved=$(mktemp -d "${TMPDIR:-/tmp}/espalier-powerloss.XXXXXX")
        cp --sparse=always "$1"/* "$saved"
        fail "failed with SEED=$seed; to repeat: scripts/powerloss-test.sh replay $saved $2 $3"
    fi
}

try_all() { # directory, number of points, seed
    local point number=0
    for point in $("$power" points "$1/record" "$2" "$3"); do
        number=$((number + 1))
        try "$1" "$point" "$(($3 + number))"
    done
}

if [ "${1:-}" = replay ]; then
    try "$2" "$3" "$4"
    echo 'powerloss-test: the repeated point passed'
    exit
fi

# Workloads on a cluster: the policy of the created files.
declare -A policies=(
    [no_metafile]='no_metafile = true'
    [by_client]=$'create = "client"\nstuffing = false'
    [no_metafile_by_client]=$'create = "client"\nno_metafile = true'
    [pool]=$'stuffing = false\nprecreation = true'
)
mapfile -t all < <("$power" list)
[ $# -gt 0 ] || set -- mkfs load "${all[@]}" served no_metafile by_client no_metafile_by_client pool
make_disk "$work/empty" 256M
cp --sparse=always "$work/empty" "$work/made"
disk_mount "$work/made"
"$bin" mkfs --journal 4M "$disk/data" > /dev/null
unmount "$disk"
echo "powerloss-test: SEED=$seed POINTS=$points"
for workload in "$@"; do
    first=$work/first second=$work/second
    rm -rf "$first" "$second"
    mkdir "$first" "$second"
    : > "$first/marks"
    if [ "$workload" = mkfs ] || [ "$workload" = load ]; then
        cp --sparse=always "$work/empty" "$first/image"
        cp --sparse=always "$first/image" "$work/scratch"
        making=make
        [ "$workload" = mkfs ] || { making=load; make_dump "$first"; }
        record "$work/scratch" "$first/record" "$making"
    elif [ -n "${policies[$workload]:-}" ]; then
        make_disk "$first/image" 768M
        disk_mount "$first/image"
        make_cluster "${policies[$workload]}"
        unmount "$disk"
        touch "$first/cluster" "$second/cluster"
        cp --sparse=always "$first/image" "$work/scratch"
        record "$work/scratch" "$first/record" work_cluster striped "$seed"
    else
        options=rw
        [ "$workload" != sync ] || options=sync
        cp --sparse=always "$work/made" "$first/image"
        cp --sparse=always "$first/image" "$work/scratch"
        if [ "$workload" = served ]; then
            record "$work/scratch" "$first/record" work_served history "$seed"
        else
            record "$work/scratch" "$first/record" work "$workload" "$seed" "$options"
        fi
    fi
    try_all "$first" "$points" "$seed"
    twice=0
    if [ "$workload" != mkfs ]; then
        # Loses power again during recovery and the following work.
        lose "$first" "$("$power" points "$first/record" 1 "$((seed + 1))")" "$seed"
        mv "$work/lost" "$second/image"
        mv "$work/lost.marks" "$second/marks"
        cp --sparse=always "$second/image" "$work/scratch"
        if [ "$workload" = load ]; then
            cp "$first/dump" "$first/expected" "$second"
            record "$work/scratch" "$second/record" load_again
        elif [ -e "$second/cluster" ]; then
            record "$work/scratch" "$second/record" work_cluster again "$seed"
        else
            record "$work/scratch" "$second/record" work again "$seed" rw
        fi
        twice=$(((points + 4) / 5))
        try_all "$second" "$twice" "$seed"
    fi
    echo "$workload: power lost $points times, and again during recovery $twice times; $(stat -c %s "$first/record") bytes recorded"
done
echo 'powerloss-test: passed'

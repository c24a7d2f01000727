#!/bin/bash
# rados-sides.sh up DIR BIN | down DIR | remount MOUNT | counters MOUNT | flush MOUNT: CephFS and two
# file systems of Espalier in one throw-away Ceph cluster, for comparisons.
#
# `up` mounts DIR/cephfs (one metadata server, ceph-fuse), DIR/served (one server of Espalier and its
# mount) and DIR/embedded (a mount without a server). `remount` empties a client's caches, with
# COLD=1 also that of CephFS's metadata server, as a mount without a server loses it. `counters`
# prints, after a second in which caches may be written and until CephFS has purged removed files,
# what a file system has used, and the OSD for all of them. `flush` waits until a file system has
# written its journal to its tables.
set -euo pipefail
command=${1:?up, down, remount, counters or flush}
mount=$(realpath "${2:?a directory}")
if [ "$command" = up ] || [ "$command" = down ]; then dir=$mount; else dir=$(dirname "$mount"); fi
scripts=$(dirname "$(realpath "$0")")
bin=$dir/espalier
export CEPH_CONF=$dir/ceph/ceph.conf
listen=127.0.0.1:${PORT:-17840}

# Client and server of the file system that is mounted at $mount; an embedded mount is both.
server() {
    case $mount in
    */cephfs) cat "$dir/ceph/mds.pid" ;;
    */served) status | jq .pid ;;
    */embedded) client ;;
    esac
}
client() {
    case $mount in
    */cephfs) cat "$dir/ceph-fuse.pid" ;;
    *) "$bin" status --json "$mount" | jq .pid ;;
    esac
}
status() { # of the server of Espalier that stores the files of $mount
    case $mount in
    */served) "$bin" cluster status --json "$dir/cluster" | jq '.servers[0] | .status + {pid}' ;;
    */embedded) "$bin" status --json "$mount" ;;
    esac
}

mount_it() {
    case $mount in
    */cephfs)
        setsid ceph-fuse -f "$mount" < /dev/null > "$dir/ceph-fuse.log" 2>&1 &
        echo $! > "$dir/ceph-fuse.pid"
        for _ in $(seq 300); do
            if mountpoint -q "$mount"; then return; fi
            sleep 0.1
        done
        echo "rados-sides: ceph-fuse does not mount: see $dir/ceph-fuse.log" >&2
        exit 1
        ;;
    */served) "$bin" mount "espalier://$listen/" "$mount" -o insecure ;;
    */embedded) "$bin" mount rados:esp/embedded "$mount" ;;
    esac
}

unmount_it() {
    local pid
    pid=$(client)
    case $mount in
    */cephfs) umount "$mount" ;;
    *) "$bin" umount "$mount" ;;
    esac
    # Then its session has ended.
    while [ -e "/proc/$pid" ]; do sleep 0.02; done
}

# Microseconds of processor time of a process.
processor() {
    sed 's/.*) //' "/proc/$1/stat" | awk -v ticks="$(getconf CLK_TCK)" '{ print ($12 + $13) * 1000000 / ticks }'
}

# Asks the metadata server of CephFS.
mds() { timeout 300 ceph --admin-daemon "$dir/ceph/mds.asok" "$@"; }
has_purged() {
    # A few directories of its own count as removed.
    mds perf dump | jq -e '.mds_cache.num_strays < 10 and .purge_queue.pq_item_in_journal == 0' > /dev/null
}

osd_counters() {
    timeout 20 ceph --admin-daemon "$dir/ceph/osd-0.asok" perf dump | jq -r '
        "osd_ops \(.osd.op)", "osd_writes \(.osd.op_w)",
        "osd_received \([to_entries[] | select(.key | startswith("AsyncMessenger")).value.msgr_recv_bytes] | add)"'
}

case $command in
up)
    ln -s "$(realpath "${3:?a program}")" "$bin"
    "$scripts/ceph-cluster.sh" up "$dir/ceph" esp
    "$scripts/ceph-cluster.sh" start-mds "$dir/ceph"
    "$bin" mkfs rados:esp/embedded > /dev/null
    "$bin" cluster init "$dir/cluster" --store rados:esp/served --standbys 0 --listen "$listen" --insecure > /dev/null
    "$bin" cluster up "$dir/cluster" > /dev/null
    for mount in "$dir"/{cephfs,served,embedded}; do
        mkdir "$mount"
        mount_it
    done
    ;;
down)
    for mount in "$dir"/{cephfs,served,embedded}; do
        ! mountpoint -q "$mount" || umount "$mount" || umount -l "$mount" || true
    done
    "$bin" cluster down "$dir/cluster" > /dev/null || true
    "$scripts/ceph-cluster.sh" down "$dir/ceph"
    ;;
remount)
    unmount_it
    if [ -n "${COLD:-}" ] && [[ $mount = */cephfs ]]; then mds cache drop 30 > /dev/null; fi
    mount_it
    ;;
counters)
    sleep 1
    for _ in $(seq 100); do ! has_purged || break; done
    [ -z "${FLUSH:-}" ] || "$0" flush "$mount"
    echo "server_us $(processor "$(server)")"
    echo "client_us $(processor "$(client)")"
    echo "osd_us $(processor "$(cat "$dir/ceph/osd-0.pid")")"
    osd_counters
    ;;
flush)
    case $mount in
    */cephfs) mds flush journal > /dev/null ;;
    *) until [ "$(status | jq .figures.cache.dirty_bytes)" = 0 ]; do sleep 0.5; done ;;
    esac
    ;;
esac

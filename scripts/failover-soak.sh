#!/bin/bash
# failover-soak.sh: first-hour.sh at two mounts of three servers and a standby over RADOS, while
# random servers are killed, paused and ended, and an OSD is stopped and started again. SEED=
# selects the faults. Afterwards everything is there, and fsck finds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
work=$(mktemp -d)
chmod 755 "$work"
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
paused=
cleanup() {
    for pid in $paused; do kill -9 "$pid" 2> /dev/null || true; done
    for mount in "$a" "$b"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    scripts/ceph-cluster.sh down "$work/ceph" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/cluster-functions.sh
RANDOM=${SEED:-1}
servers=4

# serves_all: succeeds if all ranks are served.
serves_all() {
    [ "$({ "$bin" cluster status "$cluster" || true; } | grep -c '^rank .* serving$')" = 3 ]
}

section "a cluster of three ranks and a standby, seed ${SEED:-1}"
export CEPH_CONF=$work/ceph/ceph.conf
export OSDS=3
scripts/ceph-cluster.sh up "$work/ceph" esp esp-data:ec
"$bin" cluster init "$cluster" --store rados:esp/soak --ranks 3 --standbys 1 --standby-replay --data-pool esp-data \
    --listen "127.0.0.1:${PORT:-17780}" > /dev/null
up
until_true serves_all
url=$("$bin" cluster status "$cluster" --json | sed 's/^{.*"url":"\([^"]*\)"}$/\1/')
credentials=$cluster/clients/admin
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
"$bin" mount "$url" "$b" -o "credentials=$credentials,rados_user=admin,rados_conf=$CEPH_CONF" --log-file "$work/b.log"

section 'first-hour.sh at both mounts while servers and an OSD fail'
hours=()
for mount in "$a" "$b"; do
    scripts/first-hour.sh "$mount" > "$mount.hour" 2>&1 &
    hours+=($!)
done
faults=0
while kill -0 "${hours[0]}" 2> /dev/null || kill -0 "${hours[1]}" 2> /dev/null; do
    sleep $((4 + RANDOM % 5))
    server=$((RANDOM % servers)) kind=$((RANDOM % 5))
    process=$(pid "$server")
    faults=$((faults + 1))
    case $kind in
    0 | 1)
        echo "server $server is killed"
        [ -z "$process" ] || kill -9 "$process"
        ;;
    2)
        echo "server $server is paused"
        paused=$process
        [ -z "$process" ] || kill -STOP "$process"
        sleep $((10 + RANDOM % 5))
        [ -z "$process" ] || kill -CONT "$process" 2> /dev/null || true
        paused=
        ;;
    3)
        echo "server $server is ended"
        [ -z "$process" ] || kill "$process"
        ;;
    4)
        echo 'an OSD is stopped and started'
        scripts/ceph-cluster.sh stop-osd "$work/ceph"
        sleep 2
        scripts/ceph-cluster.sh start-osd "$work/ceph"
        ;;
    esac
    sleep 1
    up || true
    until_true serves_all
done
wait "${hours[0]}" || { cat "$a.hour"; fail 'first-hour.sh fails at the first mount'; }
wait "${hours[1]}" || { cat "$b.hour"; fail 'first-hour.sh fails at the second mount'; }
echo "$faults faults"

section 'fsck'
umount "$a"
umount "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" fsck rados:esp/soak
section 'done'

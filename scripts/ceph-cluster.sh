#!/bin/bash
# ceph-cluster.sh up DIR [POOL...] | down DIR: a throw-away Ceph cluster on this machine, for tests
# and benchmarks.
#
# One monitor and one OSD (bluestore on a sparse file) on free ports of 127.0.0.1, without
# authentication. OSDS=3 makes three. A pool NAME:ec is erasure-coded with k=2 and m=1, and needs
# them. All of it is in DIR; programs find it with CEPH_CONF=DIR/ceph.conf. It survives
# `stop-osd DIR` and `start-osd DIR`. `start-mds DIR` adds a metadata server and a CephFS; process
# numbers are in DIR/NAME.pid, admin sockets at DIR/osd-NUMBER.asok and DIR/mds.asok.
set -euo pipefail
command=${1:?up, down, stop-osd, start-osd or start-mds}
dir=$(realpath "${2:?a directory}")
shift 2
PATH=$PATH:/usr/sbin:/sbin
export CEPH_CONF=$dir/ceph.conf
unset CEPH_ARGS
osds=${OSDS:-1}

fail() {
    echo "ceph-cluster: $*" >&2
    exit 1
}

# Waits for a command to succeed.
wait_for() {
    local limit=$((SECONDS + 60))
    until "$@" > /dev/null 2>> "$dir/log"; do
        [ $SECONDS -lt $limit ] || fail "timed out: $* (see $dir/log)"
        sleep 0.1
    done
}

start() { # name, command
    local name=$1
    shift
    setsid "$@" < /dev/null >> "$dir/log" 2>&1 &
    echo $! > "$dir/$name.pid"
}

# Ends a daemon that `start` has started.
stop() { # name, signal
    local pid
    pid=$(cat "$dir/$1.pid" 2> /dev/null) || return 0
    if grep -q "ceph-" "/proc/$pid/comm" 2> /dev/null; then
        kill "-$2" "$pid"
        while grep -q "ceph-" "/proc/$pid/comm" 2> /dev/null; do sleep 0.05; done
    fi
    rm -f "$dir/$1.pid"
}

# A port that nobody listens on, and nobody will get as an ephemeral port.
free_port() {
    local port
    for _ in $(seq 100); do
        port=$((20000 + RANDOM % 10000))
        if ! (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
            echo "$port"
            return
        fi
    done
    fail 'no free port'
}

configure() {
    local port
    port=$(free_port)
    cat > "$dir/ceph.conf" << CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:127.0.0.1:$port/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = $dir/keyring
run_dir = $dir
admin_socket =
crash_dir = $dir
log_file = $dir/daemons.log
log_to_stderr = false
setuser =
setgroup =
pid_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_data_avail_crit = 0
mon_osd_nearfull_ratio = .98
mon_osd_backfillfull_ratio = .985
mon_osd_full_ratio = .99
paxos_propose_interval = 0.01
[mon]
mon_data = $dir/mon
[osd]
admin_socket = $dir/osd-\$id.asok
osd_data = $dir/osd-\$id
osd_objectstore = bluestore
osd_memory_target = 1073741824
bluestore_block_create = true
bluestore_block_size = 8589934592
osd_class_load_list = *
osd_class_default_list = *
[mds]
admin_socket = $dir/mds.asok
mds_data = $dir/mds
[client]
log_file =
CONF
    ceph-authtool "$dir/keyring" --create-keyring --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *'
    ceph-authtool "$dir/keyring" --gen-key -n mds.a --cap mon 'profile mds' --cap osd 'allow *' --cap mds 'allow *'
    for n in $(seq 0 $((osds - 1))); do
        ceph-authtool "$dir/keyring" --gen-key -n "osd.$n" --cap mon 'allow profile osd' --cap osd 'allow *'
    done
    monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$dir/ceph.conf")" \
        --addv a "[v2:127.0.0.1:$port/0]" --set-min-mon-release pacific "$dir/monmap"
    ceph-mon --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
}

ask() { timeout 20 ceph --connect-timeout 10 "$@"; }

# Numbers of the OSDs.
all_osds() { find "$dir" -maxdepth 1 -name 'osd-*' -type d | sed 's/.*-//'; }

osd_is_up() { grep -q " $(all_osds | wc -l) up" <<< "$(ask osd stat)"; }

mds_is_active() { grep -q 'up:active' <<< "$(ask mds stat)"; }

osd_is_down() { grep -q ' 0 up' <<< "$(ask osd stat)"; }

start_osds() {
    local n
    for n in $(all_osds); do start "osd-$n" ceph-osd -f -i "$n"; done
    wait_for osd_is_up
}

stop_osds() { # signal
    local n
    for n in $(all_osds); do stop "osd-$n" "$1"; done
}

up() {
    mkdir -p "$dir/mon"
    [ ! -e "$dir/ceph.conf" ] || fail "$dir has a cluster"
    configure >> "$dir/log" 2>&1 || fail "cannot make the monitor: see $dir/log"
    start mon ceph-mon -f -i a
    wait_for ask mon stat
    local uuid n
    for n in $(seq 0 $((osds - 1))); do
        mkdir "$dir/osd-$n"
        uuid=$(cat /proc/sys/kernel/random/uuid)
        ask osd new "$uuid" "$n" >> "$dir/log" 2>&1 || fail "cannot add an OSD: see $dir/log"
        ceph-osd -i "$n" --mkfs --osd-uuid "$uuid" >> "$dir/log" 2>&1 || fail "cannot make an OSD: see $dir/log"
    done
    start_osds
    for pool in "$@"; do
        if [ "$pool" != "${pool%:ec}" ]; then
            pool=${pool%:ec}
            ask osd erasure-code-profile set k2m1 k=2 m=1 crush-failure-domain=osd >> "$dir/log" 2>&1
            ask osd pool create "$pool" 8 8 erasure k2m1 --autoscale-mode=off >> "$dir/log" 2>&1
            ask osd pool set "$pool" allow_ec_overwrites true >> "$dir/log" 2>&1
        else
            ask osd pool create "$pool" 8 8 replicated --autoscale-mode=off >> "$dir/log" 2>&1
        fi
        ask osd pool application enable "$pool" espalier >> "$dir/log" 2>&1
        # Returns when the pool accepts writes.
        wait_for timeout 60 rados -p "$pool" create probe
        rados -p "$pool" rm probe
    done
}

case $command in
up) up "$@" ;;
down)
    stop mds KILL
    stop_osds KILL
    stop mon KILL
    ;;
stop-osd)
    stop_osds TERM
    wait_for osd_is_down
    ;;
start-osd)
    start_osds
    ;;
start-mds)
    mkdir -p "$dir/mds"
    for pool in cephfs-names cephfs-bytes; do
        ask osd pool create "$pool" 8 8 replicated --autoscale-mode=off >> "$dir/log" 2>&1
    done
    ask fs new cephfs cephfs-names cephfs-bytes >> "$dir/log" 2>&1 || fail "cannot make a CephFS: see $dir/log"
    start mds ceph-mds -f -i a
    wait_for mds_is_active
    ;;
*) fail "unknown command $command" ;;
esac

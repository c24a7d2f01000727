#!/bin/bash
# failover-test.sh: servers over a shared store fail over. Two mounts work while the servers of
# ranks are killed, paused and ended; nothing is lost, and the waits are short. Makes a cluster of
# its own with an erasure-coded pool for big files, unless CEPH_CONF and POOL name one for tests. The
# second mount uses that pool itself.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
for program in ceph-mon ceph-osd ceph rados; do
    if ! PATH=$PATH:/usr/sbin command -v "$program" > /dev/null; then
        echo "failover-test: skipped: there is no $program; scripts/setup.sh test installs it where it can"
        exit 0
    fi
done
work=$(mktemp -d)
chmod 755 "$work"
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    # A paused mount does not answer.
    for pid in $paused; do kill -CONT "$pid" 2> /dev/null || true; done
    for mount in "$a" "$b" "$work/c"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    # A paused server does not end by itself.
    for pid in $paused; do kill -9 "$pid" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    [ -z "${own:-}" ] || scripts/ceph-cluster.sh down "$work/ceph" || true
    rm -rf --one-file-system "$work"
}
paused=
trap cleanup EXIT
. scripts/cluster-functions.sh

# milliseconds: the time.
milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# holder RANK: the number of the server that has the rank.
holder() {
    { "$bin" cluster status "$cluster" || true; } | sed -n "s/^rank $1  server-\([0-9]*\) .* serving$/\1/p"
}

# has_moved RANK SERVER: succeeds if another server serves the rank.
has_moved() {
    local now
    now=$(holder "$1")
    [ -n "$now" ] && [ "$now" != "$2" ]
}

# follows RANK: succeeds if a standby has followed the rank's journal to its end.
follows() {
    grep -q "standby .*follows rank $1, 0 frames behind" <<< "$("$bin" cluster status "$cluster")"
}

# in_data_pool: names of the objects in the data pool.
in_data_pool() {
    rados -p "$DATA_POOL" -N "failover-$$" ls
}

# The longest time in ms between two successful changes since the mark, by each mount.
# The limits below only show that clients go on: docs/failover.md has the figures.
longest_wait() {
    cat "$work"/times.* | awk -v mark="$1" '
        $1 != who { who = $1; last = 0 }
        $2 >= mark { wait = last ? $2 - last : 0; if (wait > longest) longest = wait }
        { last = $2 }
        END { print longest + 0 }'
}

# worker NAME DIR: makes a file, reads it at the other mount, renames and removes some, until stopped.
worker() {
    local name=$1 dir=$2 other=$3 n=0
    mkdir -p "$dir/$name"
    while [ ! -e "$work/stop" ]; do
        n=$((n + 1))
        echo "$name $n" > "$dir/$name/new"
        mv "$dir/$name/new" "$dir/$name/file-$n"
        [ "$(cat "$other/$name/file-$n")" = "$name $n" ] || { echo "$name $n: wrong bytes" >> "$work/wrong"; return; }
        if [ $((n % 3)) = 0 ]; then rm "$dir/$name/file-$((n - 1))"; fi
        echo "$name $(milliseconds)" >> "$work/times.$name"
        echo "$n" > "$work/count.$name"
        sleep 0.02
    done
}

if [ -z "${CEPH_CONF:-}" ] || [ -z "${POOL:-}" ]; then
    section 'a cluster of Ceph'
    own=yes POOL=esp DATA_POOL=esp-data
    export CEPH_CONF=$work/ceph/ceph.conf
    OSDS=3 scripts/ceph-cluster.sh up "$work/ceph" "$POOL" "$DATA_POOL:ec"
fi

section 'make a cluster of two ranks and a warm standby'
"$bin" cluster init "$cluster" --store "rados:$POOL/failover-$$" --ranks 2 --standbys 1 --standby-replay \
    ${DATA_POOL:+--data-pool "$DATA_POOL"} --listen "127.0.0.1:${PORT:-17680}" > /dev/null
refused 'required arguments' "$bin" cluster init "$work/other" --data-pool x
refused 'cannot be used with' "$bin" cluster init "$work/other" --store "rados:$POOL/x" --servers 2
up
until_true follows 0
until_true follows 1
"$bin" cluster status "$cluster"
url=$("$bin" cluster status "$cluster" --json | sed 's/^{.*"url":"\([^"]*\)"}$/\1/')
credentials=$cluster/clients/admin
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
# One server is enough, also a standby: it returns the addresses of the others.
for standby in 0 1 2; do [ "$(holder 0)" = $standby ] || [ "$(holder 1)" = $standby ] || break; done
port=$((${PORT:-17680} + standby))
direct=credentials=$credentials${DATA_POOL:+,rados_user=admin,rados_conf=$CEPH_CONF}
"$bin" mount "espalier://127.0.0.1:$port/" "$b" -o "$direct" --log-file "$work/b.log"
if [ -n "${DATA_POOL:-}" ]; then
    is "$(in_data_pool | grep -c '^client\.')" 1
    mkdir "$work/c"
    refused 'cannot connect to the cluster as client.nobody' \
        "$bin" mount "$url" "$work/c" -o "credentials=$credentials,rados_user=nobody,rados_conf=/dev/null"
fi
mkdir "$a"/home-{1,2,3,4}
is "$(stat -c %i "$b"/home-* | awk '{print int($1 / 2^48)}' | sort -u | wc -l)" 2

section 'work on both mounts'
worker one "$a/home-1" "$b/home-1" & workers=$!
worker two "$b/home-2" "$a/home-2" & workers+=" $!"
sleep 2
tar -cf "$work/source.tar" crates docs scripts
mkdir "$work/source"
tar -xf "$work/source.tar" -C "$work/source"

section 'a server is killed while a source tree is extracted'
mkdir "$a/home-1/tree" "$b/home-2/tree"
tar -xf "$work/source.tar" -C "$a/home-1/tree" & extracting=$!
head -c 30M /dev/urandom > "$work/big"
cp "$work/big" "$a/home-1/big" & copying=$!
cp "$work/big" "$b/home-1/direct" & copying+=" $!"
sleep 0.3
server=$(holder 0) mark=$(milliseconds)
kill_server "$server"
until_true has_moved 0 "$server"
echo "rank 0 is served again after $(($(milliseconds) - mark)) ms"
grep -h 'serving a rank.*rank=0' "$cluster/server-$(holder 0)/log" | tail -n 1
wait "$extracting"
for process in $copying; do wait "$process"; done
cmp "$work/big" "$b/home-1/big"
cmp "$work/big" "$a/home-1/direct"
sleep 3
waited=$(longest_wait "$mark")
echo "longest wait: $waited ms"
[ "$waited" -lt 30000 ] || fail "clients waited $waited ms"
diff -r "$work/source" "$b/home-1/tree"
up

section 'a server is paused'
sleep 2
server=$(holder 1) mark=$(milliseconds)
paused=$(pid "$server")
kill -STOP "$paused"
until_true has_moved 1 "$server"
echo "rank 1 is served again after $(($(milliseconds) - mark)) ms"
tar -xf "$work/source.tar" -C "$b/home-2/tree"
sleep 3
waited=$(longest_wait "$mark")
echo "longest wait: $waited ms"
[ "$waited" -lt 60000 ] || fail "clients waited $waited ms"
diff -r "$work/source" "$a/home-2/tree"
kill -CONT "$paused"
until_true test ! -e "/proc/$paused"
grep -q 'taken over' "$cluster/server-$server/log" || fail 'the paused server does not report why it ends'
paused=
up

if [ -n "${own:-}" ]; then
    section 'the store is away for longer than the time limit of its requests'
    sleep 2
    scripts/ceph-cluster.sh stop-osd "$work/ceph"
    sleep 40
    scripts/ceph-cluster.sh start-osd "$work/ceph"
    mark=$(milliseconds)
    timeout 120 tar -xf "$work/source.tar" -C "$a/home-2" || fail 'changes fail after the outage'
    echo "the source tree is extracted $(($(milliseconds) - mark)) ms after the outage"
    diff -r "$work/source" "$b/home-2" -x tree -x 'file-*' -x new -x two
    up
fi

if [ -n "${DATA_POOL:-}" ]; then
    section 'a silent client is fenced from the data pool before its locks are given on'
    "$bin" mount "$url" "$work/c" -o "$direct" --log-file "$work/c.log"
    is "$(in_data_pool | grep -c '^client\.')" 2
    # Without a capability it would not be fenced.
    cp "$work/big" "$work/c/home-1/direct"
    fenced=$(ceph osd blocklist ls 2> /dev/null | wc -l)
    flock "$work/c/home-1/direct" sh -c "touch $work/locked; until [ -e $work/other ]; do sleep 0.1; done
        dd if=/dev/zero of=$work/c/home-1/direct bs=1M count=1 conv=notrunc 2> $work/dd && touch $work/late" & locking=$!
    until_true test -e "$work/locked"
    paused=$(pgrep -f "espalier.* mount .* $work/c\$")
    kill -STOP "$paused"
    timeout 180 flock "$a/home-1/direct" true || fail 'a silent client keeps its lock'
    [ "$(ceph osd blocklist ls 2> /dev/null | wc -l)" -gt "$fenced" ] || fail 'the silent client is not fenced'
    is "$(in_data_pool | grep -c '^client\.')" 1
    touch "$work/other"
    kill -CONT "$paused"
    paused=
    wait "$locking"
    until_true test -e "$work/late"
    is "$(in_data_pool | grep -c '^client\.')" 2
    cmp -n 1048576 "$a/home-1/direct" /dev/zero
    cmp -i 1048576 "$a/home-1/direct" "$work/big"
    cp "$work/big" "$work/c/home-1/direct"
    cmp "$work/big" "$a/home-1/direct"
    umount "$work/c"
fi

section 'the store takes a rank from its server'
server=$(holder 0)
lost=$(grep -c 'another process may serve' "$cluster/server-$server/log" || true)
lock=$(rados -p "$POOL" -N "failover-$$" lock info 0.lock espalier --format json)
rados -p "$POOL" -N "failover-$$" lock break 0.lock espalier \
    "$(jq -r '.lockers[0].name' <<< "$lock")" --lock-cookie "$(jq -r '.lockers[0].cookie' <<< "$lock")"
has_noticed() {
    [ "$(grep -c 'another process may serve' "$cluster/server-$server/log")" -gt "$lost" ]
}
until_true has_noticed
until_true mkdir "$a/home-1/after"
until_true rmdir "$b/home-1/after"
up

section 'all servers are restarted, one after the other'
mark=$(milliseconds)
for server in 0 1 2; do
    sleep 2
    process=$(pid "$server")
    kill -TERM "$process"
    until_true test ! -e "/proc/$process"
    up
done
sleep 2
waited=$(longest_wait "$mark")
echo "longest wait: $waited ms"
[ "$waited" -lt 30000 ] || fail "clients waited $waited ms"

section 'a server and a rank join, and a server leaves'
"$bin" cluster add "$cluster" > "$work/added" < /dev/null
is "$(cat "$work/added")" "rank 2 has joined, and a server: $cluster/server-3"
mkdir "$a/spread"
"$bin" policy "$a/spread" --set dir_servers=3 > /dev/null
until_true sh -c "$bin subtree show $a/spread --json | jq -e '[.fragments[].rank] | sort == [0, 1, 2]'"
for n in $(seq 60); do echo "$n" > "$a/spread/$n"; done
server=$(holder 1)
"$bin" cluster remove "$cluster" --server "$server" > "$work/removed" < /dev/null
is "$(cat "$work/removed")" "$cluster/server-$server is removed"
until_true has_moved 1 "$server"
is "$(cat "$b/spread"/* | sort -n | tail -n 1)" 60

section 'everything is there'
touch "$work/stop"
for process in $workers; do wait "$process"; done
[ ! -e "$work/wrong" ] || fail "$(cat "$work/wrong")"
for name in one two; do
    home=home-$([ $name = one ] && echo 1 || echo 2)
    count=$(cat "$work/count.$name")
    echo "$name: $count rounds"
    for mount in "$a" "$b"; do
        is "$(ls "$mount/$home/$name" | wc -l)" $((count - count / 3))
        is "$(cat "$mount/$home/$name/file-$count")" "$name $count"
    done
done
umount "$a" "$b"
[ -z "${DATA_POOL:-}" ] || until_true sh -c "! rados -p $DATA_POOL -N failover-$$ ls | grep '^client\.'"

section 'all servers are killed and started again'
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
echo durable > "$a/home-1/last"
for server in "$cluster"/server-*; do kill -9 "$(pid "${server##*-}")"; done
sleep 0.5
up
is "$(cat "$a/home-1/last")" durable
diff -r "$work/source" "$a/home-1/tree"
umount "$a"

section 'the stopped cluster is sound'
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"
store=rados:$POOL/failover-$$
"$bin" fsck "$store"
is "$("$bin" status "$store" | grep -c '^rank')" 3
"$bin" fsck --repair "$store" || fail 'a sound file system is repaired'

section 'it is dumped, loaded into another one, and repaired'
"$bin" dump "$store" "$work/dump"
is "$(cd "$work/dump" && echo ./*)" './rank-0.dump ./rank-1.dump ./rank-2.dump'
for file in "$work"/dump/*; do "$bin" dump --verify "$file"; done
"$bin" cluster init "$work/loaded" --store "rados:$POOL/loaded-$$" --ranks 1 --standbys 0 \
    ${DATA_POOL:+--data-pool "$DATA_POOL"} --listen "127.0.0.1:$((${PORT:-17680} + 40))" > /dev/null
"$bin" cluster load "$work/dump" "$work/loaded" --verify
if [ -n "${DATA_POOL:-}" ]; then
    bytes=$(rados -p "$DATA_POOL" -N "loaded-$$" ls)
    [ "$bytes" != owner ] || fail 'the data pool has no bytes of the loaded files'
fi
cluster=$work/loaded
objects() { rados -p "$POOL" -N "loaded-$$" "$@"; }
shard=$(objects ls | grep '^0\.t\.' | head -n 1)
# The dentry of a directory has its inode: its entries lose their way to the root.
objects listomapkeys "$shard" > "$work/keys"
grep -a -m 1 'home-1' "$work/keys" | tr -d '\n' > "$work/key"
objects rmomapkey "$shard" --omap-key-file "$work/key"
if "$bin" cluster fsck "$cluster" > "$work/fsck"; then fail 'a lost record is not found'; fi
code=0
(cd "$work" && "$bin" cluster fsck "$cluster" --repair) > "$work/repaired" || code=$?
is "$code" 1
ls "$work"/quarantine-*/*-rank-0/records > /dev/null || fail 'nothing is in the quarantine'
"$bin" cluster fsck "$cluster"
up
url=$("$bin" cluster status "$cluster" --json | sed 's/^{.*"url":"\([^"]*\)"}$/\1/')
"$bin" mount "$url" "$a" -o "credentials=$cluster/clients/admin" --log-file "$work/a.log"
diff -r "$work/source" "$(echo "$a"/lost+found/*/tree)"
is "$(cat "$a/spread"/* | sort -n | tail -n 1)" 60
umount "$a"
"$bin" cluster down "$cluster"
section 'done'

#!/bin/bash
# rados-test.sh: a file system in a RADOS cluster: mounts, kills, a second mount, a cluster that is
# away, dumps, big files in an erasure-coded pool. Makes a cluster of its own, unless CEPH_CONF and
# POOL name one for tests, and DATA_POOL an erasure-coded pool of it.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
. scripts/section-functions.sh

for program in ceph-mon ceph-osd ceph rados; do
    if ! PATH=$PATH:/usr/sbin command -v "$program" > /dev/null; then
        echo "rados-test: skipped: there is no $program; scripts/setup.sh test installs it where it can"
        exit 0
    fi
done

work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt" "$work/other"
cleanup() {
    for at in "$mnt" "$work/other"; do
        "$bin" umount --force "$at" 2> /dev/null || umount -l "$at" 2> /dev/null || true
    done
    [ -z "${own:-}" ] || scripts/ceph-cluster.sh down "$work/ceph" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "rados-test: $*" >&2
    tail -n 20 "$work"/*.log >&2 2> /dev/null || true
    exit 1
}

section 'a cluster'
if [ -z "${CEPH_CONF:-}" ] || [ -z "${POOL:-}" ]; then
    own=yes POOL=esp DATA_POOL=esp-data
    export CEPH_CONF=$work/ceph/ceph.conf
    OSDS=3 scripts/ceph-cluster.sh up "$work/ceph" "$POOL" "$DATA_POOL:ec"
fi
store=rados:$POOL/test$$
# The process that serves the mount.
server() { "$bin" status --json "$mnt" | jq .pid; }
mount_it() { "$bin" mount --log-file "$work/mount.log" --log info "$@"; }

section 'mkfs, mount, copy a tree, mount again, compare'
"$bin" mkfs --journal 32M "$store"
if "$bin" mkfs "$store" 2> "$work/refused"; then fail 'mkfs replaced a file system without --force'; fi
grep -q 'already an Espalier store' "$work/refused" || fail "mkfs: $(cat "$work/refused")"
mount_it "$store" "$mnt"
mkdir "$work/tree"
cp -a crates docs scripts "$work/tree"
head -c 20M /dev/urandom > "$work/tree/big"
cp -a "$work/tree" "$mnt/"
"$bin" status "$mnt" | grep "store *$store" > /dev/null || fail 'status does not name the store'
if mount_it --foreground "$store" "$work/other" 2> "$work/refused"; then fail 'mounted twice'; fi
grep -q "in use by process $(server) on $(uname -n)" "$work/refused" ||
    fail "the second mount does not name the first: $(cat "$work/refused")"
"$bin" umount "$mnt"
mount_it "$store" "$mnt"
diff -r "$work/tree" "$mnt/tree" || fail 'files differ after mounting again'
rm -rf "$mnt/tree/docs"
"$bin" umount "$mnt"
"$bin" fsck "$store"

section 'killed under load'
for round in 1 2 3; do
    mount_it "$store" "$mnt"
    (
        for n in $(seq 100000); do
            seq "$n" $((n + 300)) > "$mnt/r$round-$n"
            if [ $((n % 20)) = 0 ]; then
                sync "$mnt/r$round-$n"
                echo "r$round-$n $n" >> "$work/synced"
            fi
        done
    ) 2> /dev/null &
    load=$!
    sleep 2
    kill -9 "$(server)"
    kill "$load" 2> /dev/null || true
    wait "$load" 2> /dev/null || true
    # The holder of the lease has ended on this machine: no need to wait for its term.
    mount_it "$store" "$mnt"
    while read -r name n; do
        cmp -s <(seq "$n" $((n + 300))) "$mnt/$name" || fail "$name was synced and is lost or damaged"
    done < "$work/synced"
    "$bin" umount "$mnt"
    "$bin" fsck "$store" > "$work/fsck" || fail "$(cat "$work/fsck")"
    echo "round $round: $(wc -l < "$work/synced") synced files; $(cat "$work/fsck")"
done

if [ -n "${own:-}" ]; then
    section 'the cluster is away for longer than the lease'
    mount_it "$store" "$mnt"
    echo before > "$mnt/before"
    sync "$mnt/before"
    server=$(server)
    scripts/ceph-cluster.sh stop-osd "$work/ceph"
    sleep 17
    if timeout 60 touch "$mnt/after" 2> /dev/null; then fail 'a change is accepted after the lease is over'; fi
    if timeout 60 ls "$mnt" > /dev/null 2>&1; then fail 'a listing is answered after the lease is over'; fi
    scripts/ceph-cluster.sh start-osd "$work/ceph"
    "$bin" umount --force "$mnt" 2> /dev/null || true
    for _ in $(seq 100); do
        kill -0 "$server" 2> /dev/null || break
        sleep 0.5
    done
    mount_it "$store" "$mnt"
    [ "$(cat "$mnt/before")" = before ] || fail 'a synced file is lost'
    "$bin" umount "$mnt"
fi

section 'repair of a lost record, a lost journal and a damaged one'
objects() { rados -p "$POOL" -N "test$$" "$@"; }
repaired() {
    local code=0
    (cd "$work" && "$bin" fsck --repair "$store") > "$work/repaired" || code=$?
    [ "$code" = 1 ] || fail "fsck --repair exits with $code: $(cat "$work/repaired")"
    "$bin" fsck "$store" > "$work/fsck" || fail "not clean after a repair: $(cat "$work/fsck")"
}
"$bin" fsck --repair "$store" || fail 'a clean file system is repaired'
shard=$(objects ls | grep '^0\.t\.' | head -n 1)
# The dentry of a directory has its inode: its entries lose their way to the root. Few keys contain
# a line feed, and are not whole lines.
objects listomapkeys "$shard" > "$work/keys"
for name in scripts crates; do
    grep -a -m 1 "$name" "$work/keys" | tr -d '\n' > "$work/key"
    objects rmomapkey "$shard" --omap-key-file "$work/key"
done
if "$bin" fsck "$store" > "$work/fsck"; then fail 'a lost record is not found'; fi
repaired
grep -q 'lost+found' "$work/repaired" || fail "nothing is in lost+found: $(cat "$work/repaired")"
ls "$work"/quarantine-*/*/records > /dev/null || fail 'nothing is in the quarantine'
objects rm 0.j.000000
if "$bin" fsck "$store" > "$work/fsck" 2>&1; then fail 'a lost journal is not found'; fi
repaired
mount_it "$store" "$mnt"
grep -q '^#' <<< "$(ls "$mnt/lost+found")" || fail 'lost+found is empty'
rm -rf "$mnt/lost+found"/*
cp -a crates scripts "$mnt/tree/"
# Events that only the journal has, one of them damaged.
"$bin" sync "$mnt" # ends the frame
mark=mark-$RANDOM$RANDOM # no file has this text
echo before > "$mnt/$mark"
sync "$mnt/$mark"
kill -9 "$(server)"
for object in $(objects ls | grep '^0\.j\.'); do
    objects get "$object" "$work/chunk"
    ! grep -a -q "$mark" "$work/chunk" || break
done
at=$(grep -a -b -o "$mark" "$work/chunk" | tail -n 1 | cut -d: -f1)
printf X | dd of="$work/chunk" bs=1 seek="$at" conv=notrunc status=none
objects put "$object" "$work/chunk"
code=0
(cd "$work" && "$bin" fsck --repair "$store") > "$work/repaired" || code=$?
[ "$code" -le 1 ] || fail "fsck --repair exits with $code: $(cat "$work/repaired")"
"$bin" fsck "$store"
mount_it "$store" "$mnt"
diff -r "$work/tree/scripts" "$mnt/tree/scripts" || fail 'files differ after a repair'
"$bin" umount "$mnt"

section 'dump, and load into a directory and back'
"$bin" dump "$store" "$work/dump"
"$bin" load --verify "$work/dump" "$work/local"
"$bin" load --verify "$work/dump" "$store-copy"
mount_it "$store-copy" "$mnt"
diff -r --exclude docs "$work/tree" "$mnt/tree" || fail 'the loaded file system differs'
"$bin" umount "$mnt"
if [ -n "${DATA_POOL:-}" ]; then
    section 'big files in an erasure-coded pool'
    two=rados:$POOL/two$$
    # refused STORE POOL WORDS: mkfs with this data pool fails with these words.
    refused() {
        local at=$1 pool=$2 words=$3
        if "$bin" mkfs "$at" --data-pool "$pool" 2> "$work/refused"; then fail "mkfs accepts the pool $pool"; fi
        grep -q "$words" "$work/refused" || fail "mkfs with the pool $pool: $(cat "$work/refused")"
    }
    refused "$two" no-such-pool 'there is no pool no-such-pool'
    refused "$two" "$POOL" 'is that of the metadata'
    refused "$work/dir" "$DATA_POOL" 'for stores in a cluster'
    if "$bin" mkfs "rados:$DATA_POOL/x" 2> "$work/refused"; then fail 'mkfs puts metadata into an erasure-coded pool'; fi
    grep -q 'is erasure-coded, and cannot have metadata' "$work/refused" || fail "mkfs: $(cat "$work/refused")"
    [ -z "$(rados -p "$POOL" -N "two$$" ls)" ] || fail 'a refused mkfs leaves objects'
    "$bin" mkfs --journal 32M "$two" --data-pool "$DATA_POOL"
    mount_it "$two" "$mnt"
    cp -a "$work/tree" "$mnt/"
    grep -q "pool *$DATA_POOL (bytes of big files)" <<< "$("$bin" status "$mnt")" || fail "$("$bin" status "$mnt")"
    sync "$mnt/tree/big"
    kill -9 "$(server)"
    mount_it "$two" "$mnt"
    diff -r "$work/tree" "$mnt/tree" || fail 'files differ after a kill'
    truncate -s 5M "$mnt/tree/big"
    head -c 1M /dev/urandom | tee "$work/part" | dd of="$mnt/tree/big" bs=64K seek=40 conv=notrunc iflag=fullblock status=none
    head -c 5M "$work/tree/big" > "$work/expected"
    dd if="$work/part" of="$work/expected" bs=64K seek=40 conv=notrunc status=none
    "$bin" umount "$mnt"
    "$bin" fsck "$two"
    grep -q "pool *$DATA_POOL (bytes of big files)" <<< "$("$bin" status "$two")" || fail "$("$bin" status "$two")"
    of_data() { rados -p "$DATA_POOL" -N "two$$" "$@"; }
    of_data ls > "$work/objects"
    grep -q '^0\.s\.' "$work/objects" || fail 'no bytes are in the data pool'
    while read -r object; do
        [ "$(rados -p "$POOL" -N "two$$" stat "$object" | sed 's/.*size //')" = 0 ] || fail "$object has bytes beside its record"
    done < <(rados -p "$POOL" -N "two$$" ls | grep '^0\.s\.')

    section 'the same: dump and load, migration out and in, repair, a lost pool'
    mount_it "$two" "$mnt"
    cmp "$work/expected" "$mnt/tree/big" || fail 'a big file differs after mounting again'
    "$bin" umount "$mnt"
    "$bin" dump "$two" "$work/two.dump"
    "$bin" load --verify "$work/two.dump" "$two-copy" --data-pool "$DATA_POOL"
    grep -q '^0\.s\.' <<< "$(rados -p "$DATA_POOL" -N "two$$-copy" ls)" || fail 'a load does not use the data pool'
    if "$bin" load --resume "$work/two.dump" "$two-copy" --data-pool other 2> "$work/refused"; then fail 'loaded into another pool'; fi
    "$bin" migrate "$two" "$work/out"
    "$bin" migrate "$work/out" "$two-in" --data-pool "$DATA_POOL"
    mount_it "$two-in" "$mnt"
    cmp "$work/expected" "$mnt/tree/big" || fail 'a big file differs after two migrations'
    # Replaces the store that has moved away, with its bytes.
    "$bin" migrate "$mnt" "$two" --force --data-pool "$DATA_POOL"
    cmp "$work/expected" "$mnt/tree/big" || fail 'a big file differs after the migration of a mount'
    "$bin" umount "$mnt"
    rados -p "$POOL" -N "two$$" rm 0.j.000000
    (cd "$work" && "$bin" fsck --repair "$two") > "$work/repaired" || [ $? = 1 ] || fail "$(cat "$work/repaired")"
    "$bin" fsck "$two"
    of_data get owner "$work/owner"
    of_data rm owner
    if mount_it --foreground "$two" "$mnt" 2> "$work/refused"; then fail 'mounted without the big files'; fi
    grep -q "pool $DATA_POOL does not have the big files" "$work/refused" || fail "$(cat "$work/refused")"
    of_data put owner "$work/owner"
    "$bin" mkfs --force "$two"
    [ -z "$(of_data ls)" ] || fail "mkfs --force leaves $(of_data ls)"
fi
echo 'rados-test: passed'

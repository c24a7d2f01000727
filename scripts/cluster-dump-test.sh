#!/bin/bash
# cluster-dump-test.sh: a dump of a cluster, loaded into another one, gives an equal tree with equal
# datafiles; interrupted dumps and loads resume; dumps of other cluster shapes are refused.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    for mount in "$a" "$b"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    for made in "$cluster" "$work/copy" "$work/other"; do "$bin" cluster down "$made" > /dev/null 2>&1 || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/cluster-functions.sh

# made DIR PORT RANKS SERVERS: initialises a cluster.
made() {
    "$bin" cluster init "$1" --servers "$4" --ranks "$3" --listen "127.0.0.1:$2" --journal 4M > /dev/null
}
# mount_of DIR MOUNT: starts the cluster and mounts it.
mount_of() {
    "$bin" cluster up "$1" > "$work/up" < /dev/null
    "$bin" mount "$("$bin" cluster status "$1" --json | jq -r .url)" "$2" -o "credentials=$1/clients/admin" --log-file "$2.log"
}
stop() {
    umount "$2"
    "$bin" cluster down "$1" > /dev/null
}
# All attributes of the files below a directory, except ctimes: those of big files are the load's.
manifest() {
    (
        cd "$1"
        find . -mindepth 1 -print0 | sort -z | xargs -0 stat --printf '%n|%f|%i|%h|%u|%g|%t|%T|%s|%.9Y\n'
        find . -mindepth 1 ! -type f -print0 | sort -z | xargs -0 stat --printf '%n|%.9Z\n'
        find . -type l -print0 | sort -z | xargs -0 -n 1 readlink
        find . -mindepth 1 -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex 2> /dev/null
        find . -mindepth 1 -type d -print0 | sort -z | xargs -0 -n 1 "$bin" du --json
        find . -type f -print0 | sort -z | xargs -0 sha256sum
        find . -type f -print0 | sort -z | xargs -0 -n 1 "$bin" layout
        find . -type d -print0 | sort -z | xargs -0 -n 1 "$bin" subtree show --json |
            jq -c 'del(.fragments[] | .ird, .iwr, .readdir, .fetch, .store)'
    )
}

# other_rank DIR: sets $to to the rank, of two, that does not have the names of a directory.
other_rank() { to=$((1 - $("$bin" subtree show "$1" --json | jq '.fragments[0].rank'))); }
# pull DIR RANK COUNT: moves a directory, and waits until so many files have followed.
pull() {
    local before
    pulled() { "$bin" status "$cluster/server-$1/store" --json | jq .figures.fragments.files_pulled; }
    before=$(pulled "$2")
    "$bin" subtree move "$1" --to "$2" > /dev/null
    have_followed() { [ "$(pulled "$2")" -ge $((before + $3)) ]; }
    until_true have_followed "$@"
}

section 'make a tree of all kinds of files'
made "$cluster" 17690 2 3
mount_of "$cluster" "$a"
(
    cd "$a"
    cp -a "$OLDPWD/docs" .
    mkdir no_metafile striped made links
    setfattr -n user.espalier.no_metafile -v 1 no_metafile
    "$bin" policy striped --set stuffing=false --set precreation=true --set num_dfiles=2
    "$bin" policy made --set create=client --set stuffing=false --set num_dfiles=1
    for at in $(seq 20); do
        echo "$at" > "no_metafile/$at"
        : > "no_metafile/empty$at"
        echo "$at" > "striped/$at"
        : > "striped/empty$at"
        : > "made/$at"
    done
    # Files that have followed their names to the other server.
    mkdir moved
    for at in $(seq 30); do
        echo "$at" > "moved/$at"
        setfattr -n user.number -v "$at" "moved/$at"
    done
    other_rank moved
    pull moved "$to" 30
    mv moved/1 links/was-moved
    rm moved/2
    head -c 300000 /dev/urandom > moved/3
    # One directory is partitioned from the start, and one splits; names move from one to the other.
    mkdir spread late
    "$bin" policy spread --set dir_servers=2
    "$bin" policy late --set dir_split=20
    for at in $(seq 60); do
        echo "$at" > "spread/$at"
        echo "$at" > "late/$at"
    done
    is_split() { [ "$("$bin" subtree show late --json | jq '.fragments | length')" = 2 ]; }
    until_true is_split
    for at in $(seq 5); do mv "spread/$at" "late/was-spread$at"; done
    mkdir spread/below
    touch -d '2001-02-03 04:05:06.123456789' no_metafile/1 no_metafile/empty1 striped/1 striped/empty1 made/1
    head -c 3000000 /dev/urandom > big
    truncate -s 100M sparse
    printf end >> sparse
    ln big links/big
    ln docs/format.md links/format
    ln -s big symlink
    mkfifo fifo
    mv no_metafile/2 links/was-no_metafile
    setfattr -n user.color -v green big
    "$bin" quota set docs --files 1000
)
# Without a clean shutdown: the latest changes are only in the journals.
for server in 0 1 2; do kill_server "$server"; done
umount -l "$a"

section 'dump and load'
refused 'no tree of files' "$bin" dump "$cluster/server-0/data" "$work/nothing"
refused 'no tree of files' "$bin" fsck "$cluster/server-1/data"
refused 'no tree of files' "$bin" fsck --repair "$cluster/server-1/data"
"$bin" cluster dump "$cluster" "$work/dumps"
is "$(ls "$work/dumps" | tr '\n' ' ')" 'data-0.dump data-1.dump data-2.dump rank-0.dump rank-1.dump '
for dump in "$work"/dumps/*; do "$bin" dump --verify "$dump" > /dev/null; done
refused 'is not empty' "$bin" cluster dump "$cluster" "$work/dumps"
refused "one of a cluster's servers" "$bin" load "$work/dumps/rank-0.dump" "$work/single"
made "$work/copy" 17695 2 3
"$bin" cluster load "$work/dumps" "$work/copy" --verify
"$bin" cluster fsck "$cluster"
mount_of "$cluster" "$a"
mount_of "$work/copy" "$b"
# Usage at other ranks is counted a second later.
is_counted() { [ "$("$bin" du --json "$1/late" | jq .files)" = 65 ]; }
until_true is_counted "$a"
until_true is_counted "$b"
manifest "$a" > "$work/manifest.a"
manifest "$b" > "$work/manifest.b"
grep -q 'no_metafile = true' "$work/manifest.a"
is "$("$bin" subtree show "$b/spread" --json | jq -c '[.fragments[].rank] | sort')" '[0,1]'
diff "$work/manifest.a" "$work/manifest.b" || fail 'the loaded tree differs from the dumped one'
echo new > "$b/no_metafile/new"
is "$(cat "$b/no_metafile/new" "$b/no_metafile/1" | tr '\n' ' ')" 'new 1 '
stop "$cluster" "$a"
# The files are where they were: all but the large one go home.
other_rank "$b/moved"
served=$cluster cluster=$work/copy
pull "$b/moved" "$to" 27
cluster=$served
is "$(cat "$b/moved/30" "$b/links/was-moved" | tr '\n' ' ')" '30 1 '
is "$(getfattr --only-values -n user.number "$b/moved/30")" 30
stop "$work/copy" "$b"
"$bin" cluster fsck "$work/copy"

section 'interrupted dump and load'
rm -r "$work/dumps"
"$bin" cluster dump "$cluster" "$work/dumps"
cp -r "$work/dumps" "$work/part"
rm "$work/part/data-1.dump"
truncate -s -100 "$work/part/data-0.dump"
"$bin" cluster dump "$cluster" "$work/part" --resume
diff -r "$work/dumps" "$work/part"
refused 'holds files' "$bin" cluster load "$work/dumps" "$work/copy"
# Also if only a journal has the file.
made "$work/other" 17695 2 3
mount_of "$work/other" "$b"
echo small > "$b/small"
sync "$b/small"
served=$cluster cluster=$work/other
for server in 0 1 2; do kill_server "$server"; done
cluster=$served
umount -l "$b"
refused 'holds files' "$bin" cluster load "$work/dumps" "$work/other"
mount_of "$work/other" "$b"
is "$(cat "$b/small")" small
stop "$work/other" "$b"
rm -r "$work/other"
refused 'nothing to resume' "$bin" cluster load "$work/dumps" "$work/copy" --resume
mount_of "$work/copy" "$b"
is "$(cat "$b/no_metafile/new")" new
stop "$work/copy" "$b"
# The last dump of the load is truncated: there is no file system until all are loaded.
truncate -s -100 "$work/part/rank-0.dump"
refused 'is damaged' "$bin" cluster load "$work/part" "$work/copy" --force
refused 'not completely loaded' "$bin" cluster fsck "$work/copy"
if "$bin" cluster up "$work/copy" > "$work/up" 2>&1 < /dev/null; then fail 'a partly loaded cluster is served'; fi
"$bin" cluster down "$work/copy" > /dev/null
"$bin" cluster load "$work/dumps" "$work/copy" --resume --verify
[ "$("$bin" cluster load "$work/dumps" "$work/copy" --force --verify | grep -c clean)" = 1 ]
mount_of "$work/copy" "$b"
manifest "$b" > "$work/manifest.b"
diff "$work/manifest.a" "$work/manifest.b" || fail 'the tree of the resumed load differs from the dumped one'
stop "$work/copy" "$b"

section 'refuse dumps of another shape'
for shape in '1 3' '2 4'; do
    made "$work/other" 17695 $shape
    refused 'as many metadata servers' "$bin" cluster load "$work/dumps" "$work/other"
    rm -r "$work/other"
done
made "$work/other" 17695 2 3
cp "$work/dumps/rank-0.dump" "$work/part/rank-1.dump"
cp "$work/dumps/rank-0.dump" "$work/part/rank-0.dump"
refused 'as many metadata servers' "$bin" cluster load "$work/part" "$work/other"
refused 'no dump' "$bin" dump --verify "$work/other/server-0/server.toml"
"$bin" cluster fsck "$work/other"
echo 'cluster-dump-test: passed'

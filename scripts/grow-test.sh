#!/bin/bash
# grow-test.sh: metadata servers join a cluster while two mounts use it, and leave it; directories
# made before get fragments at a new rank.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    : > "$work/stop"
    exec 8>&- 9<&-
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

mount_at() {
    "$bin" mount espalier://127.0.0.1:17870/ "$1" -o "credentials=$cluster/clients/admin" --log-file "$work/${1##*/}.log"
}
ranks() { "$bin" subtree show "$1" --json | jq -c '[.fragments[].rank] | sort'; }
has_ranks() { [ "$(ranks "$1")" = "$2" ]; }
make_files() { for n in $(seq "$2"); do echo "$3 $n" > "$1/$3-$n"; done; }
# check_files DIR COUNT TAG: each file is there once, by both mounts.
check_files() {
    for mount in "$a" "$b"; do
        is "$(find "$mount/$1" -name "$3-*" | wc -l)" "$2"
        is "$(cat "$mount/$1/$3-1" "$mount/$1/$3-$2")" "$3 1"$'\n'"$3 $2"
    done
}
# use_mount DIR: changes the directory until $work/stop exists.
use_mount() {
    while [ ! -e "$work/stop" ]; do
        { echo round > "$1/file" && mkdir "$1/dir" && mv "$1/file" "$1/dir/moved" && rm -r "$1/dir"; } ||
            touch "$work/failed"
    done
}
stop_use() { # PROCESS
    touch "$work/stop"
    wait "$1"
    rm "$work/stop"
    [ ! -e "$work/failed" ] || fail 'an operation has failed while a rank joined'
}
add() { "$bin" cluster add "$cluster" "$@" < /dev/null 8>&- 9<&-; }

section 'a mount that is in use hears of a rank that joins'
"$bin" cluster init "$cluster" --servers 2 --ranks 2 --listen 127.0.0.1:17870 > /dev/null
sed -i 's/^lease_seconds = .*/lease_seconds = 2/' "$cluster"/server-*/server.toml
up
mount_at "$a"
mount_at "$b"
mkdir "$a"/{full,spread,base}
"$bin" policy "$a/full" --set dir_split=50 > /dev/null
"$bin" policy "$a/spread" --set dir_servers=3 > /dev/null
make_files "$a/full" 400 a
until_true has_ranks "$a/full" '[0,1]'
until_true has_ranks "$a/spread" '[0,1]'
make_files "$a/spread" 40 a
exec 8>> "$a/full/open" 9< "$b/full/a-1"
flock 8
use_mount "$b/base" & user=$!
add > "$work/added"
is "$(cat "$work/added")" "rank 2 has joined: $cluster/server-2"
is "$("$bin" cluster status "$cluster" | cut -d' ' -f1,3 | tail -1)" 'server-2 meta'

section 'directories made before and after use it'
until_true has_ranks "$a/full" '[0,1,2]'
until_true has_ranks "$b/spread" '[0,1,2]'
mkdir "$a/new"
"$bin" policy "$a/new" --set dir_servers=3 > /dev/null
until_true has_ranks "$a/new" '[0,1,2]'
make_files "$a/new" 60 a
make_files "$b/spread" 40 b
check_files full 400 a
check_files spread 40 b
check_files new 60 a
mkdir "$a"/base/{1,2,3,4,5,6}
is "$(stat -c %i "$b"/base/? | awk '{print int($1 / 2^48)}' | sort -u | wc -l)" 3
"$bin" subtree move "$a/base" --to 2 > /dev/null
is "$(ranks "$b/base")" '[2]'
head -c 3000000 /dev/urandom > "$a/base/big"
is "$(($(stat -c %i "$b/base/big") >> 48))" 2
cmp "$a/base/big" "$b/base/big"
stop_use "$user"
echo last >&8
is "$(cat "$b/full/open")" last
is "$(cat <&9)" 'a 1'

section 'all of it lasts: servers and a mount restart'
exec 8>&- 9<&-
umount "$a"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster" > "$work/fsck"
up
mount_at "$a"
check_files full 400 a
check_files new 60 a
make_files "$a/new" 60 c
check_files new 60 c

section 'additions that are refused or were interrupted'
refused 'HOST:PORT' add --listen nonsense
[ ! -e "$cluster/server-3" ] || fail 'a refused addition leaves a server'
refused 'run this again' add --listen 127.0.0.1:17870
sed -i 's/^listen = .*/listen = "127.0.0.1:17873"/; /^rank = 3$/{n;s/17870/17873/}' "$cluster/server-3/server.toml"
add > "$work/added"
is "$(cat "$work/added")" "rank 3 has joined: $cluster/server-3"
until_true has_ranks "$a/full" '[0,1,2,3]'
check_files full 400 a

section 'a rank joins a cluster that does not run'
umount "$a" "$b"
"$bin" cluster down "$cluster"
add > "$work/added"
grep -q 'rank 4 will join when the servers start' "$work/added"
"$bin" cluster fsck "$cluster" > "$work/fsck"
up
mount_at "$a"
mount_at "$b"
until_true sh -c "mkdir -p $a/pinned && $bin subtree pin $a/pinned 4"
make_files "$a/pinned" 20 a
until_true has_ranks "$b/pinned" '[4]'
check_files pinned 20 a
check_files full 400 a

section 'metadata servers leave a cluster in use, and others have their ranks'
remove() { "$bin" cluster remove "$cluster" "$@" < /dev/null 8>&- 9<&-; }
refused 'the numbers are 0, 1, 2, 3, 4' remove --server 7
refused 'is the one to be removed' remove --server 3 --to 3
exec 8>> "$a/pinned/open" 9< "$b/full/a-2"
flock 8
use_mount "$b/base" & user=$!
sed -i 's/^listen/# A comment.\nlisten/' "$cluster/server-0/server.toml"
remove --server 3 > "$work/removed"
is "$(cat "$work/removed")" "the server of $cluster/server-0 has the ranks 3"$'\n'"$cluster/server-3 is removed"
[ ! -e "$cluster/server-3" ] || fail 'a removed server is there'
grep -q '^# A comment.$' "$cluster/server-0/server.toml"
check_files full 400 a
make_files "$b/full" 100 d
check_files full 100 d
# This one is a data server, too, and stays one.
remove --server 1 --to 2 > "$work/removed"
grep -q "$cluster/server-1 is only a data server now" "$work/removed"
is "$("$bin" cluster status "$cluster" | cut -d' ' -f1,3 | tr '\n' ' ')" 'server-0 meta+data server-1 data server-2 meta server-4 meta '
cmp "$a/base/big" "$b/base/big"
stop_use "$user"
if flock --nonblock "$b/pinned/open" true; then fail 'a lock is lost'; fi
echo last >&8
is "$(cat "$b/pinned/open")" last
is "$(cat <&9)" 'a 2'
exec 8>&- 9<&-
check_files full 400 a
# The removal of a server that does not run was interrupted.
umount "$a" "$b"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster" > "$work/fsck"
mv "$cluster/server-4/store" "$work/rank-4"
refused 'server-4/store' remove --server 4 --to 2
printf 'to = 2\nranks = [4]\n' > "$cluster/server-4/removal.toml"
refused 'mount its disk' remove --server 4
refused 'leave --to out' remove --server 4 --to 0
mv "$work/rank-4" "$cluster/server-2/rank-4"
remove --server 4 > "$work/removed"
grep -q 'was interrupted before' "$work/removed"
up
mount_at "$a"
mount_at "$b"
# A server with three ranks leaves.
remove --server 2 > "$work/removed"
grep -q 'has the ranks' "$work/removed"
is "$("$bin" cluster status "$cluster" --json | jq -c '[.servers[0].stores[].ranks.rank] | sort')" '[0,1,2,3,4]'
"$bin" subtree move "$a/base" --to 1 > /dev/null
until_true has_ranks "$b/base" '[1]'
check_files pinned 20 a
check_files full 400 a
check_files full 100 d
cmp "$a/base/big" "$b/base/big"
refused 'the only metadata server' remove --server 0
add > "$work/added"
is "$(cat "$work/added")" "rank 5 has joined: $cluster/server-2"

section 'a cluster of one server gets a second one'
umount "$a" "$b"
"$bin" cluster down "$cluster"
rm -rf "$cluster"
"$bin" cluster init "$cluster" --listen 127.0.0.1:17870 > /dev/null
up
mount_at "$a"
mount_at "$b"
mkdir "$a"/{full,base}
"$bin" policy "$a/full" --set dir_split=50 > /dev/null
make_files "$a/full" 200 a
head -c 3000000 /dev/urandom > "$a/big"
if [ -e "$b/full/absent" ]; then fail 'a name is there too early'; fi
use_mount "$b/base" & user=$!
add > "$work/added"
until_true has_ranks "$a/full" '[0,1]'
touch "$a/full/absent"
[ -e "$b/full/absent" ] || fail 'a mount does not see a new name'
mkdir "$a/pinned"
"$bin" subtree pin "$a/pinned" 1 > /dev/null
until_true has_ranks "$b/pinned" '[1]'
cp "$b/big" "$a/pinned/big"
cmp "$b/pinned/big" "$b/big"
stop_use "$user"
check_files full 200 a
umount "$a" "$b"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster" > "$work/fsck"
up
mount_at "$a"
mount_at "$b"
check_files full 200 a
cmp "$a/pinned/big" "$b/big"

section 'an entry in [[meta]] without a server does nothing, and can be removed'
for config in "$cluster"/server-?/server.toml; do
    cp "$config" "$config.saved"
    printf '\n[[meta]]\nrank = 2\naddress = "127.0.0.1:17879"\n' >> "$config"
done
"$bin" cluster reload "$cluster"
timeout 20 mkdir "$a"/base/{1,2,3,4,5,6} || fail 'mkdir waits for a rank that has never connected'
for config in "$cluster"/server-?/server.toml; do mv "$config.saved" "$config"; done
"$bin" cluster reload "$cluster"
umount "$a" "$b"
"$bin" cluster down "$cluster"
up
echo 'grow-test: passed'

#!/bin/bash
# subtree-test.sh: directories move between four metadata servers, are pinned and merge, while two
# mounts use them and servers are killed.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b
chmod 755 "$work" # other users access the mounts
mkdir "$a" "$b"
cleanup() {
    exec 8>&- 9<&-
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

section 'make a cluster of four ranks'
"$bin" cluster init "$cluster" --servers 4 --ranks 4 --listen 127.0.0.1:17780 > /dev/null
# Moves wait until leases on absent names are over.
sed -i 's/^lease_seconds = .*/lease_seconds = 2/' "$cluster"/server-*/server.toml
up
url=espalier://127.0.0.1:17780,127.0.0.1:17781,127.0.0.1:17782,127.0.0.1:17783/
for mount in "$a" "$b"; do
    "$bin" mount "$url" "$mount" -o "credentials=$cluster/clients/admin" --log-file "$work/${mount##*/}.log"
done

ranks() { "$bin" subtree show "$1" --json | jq -c '[.fragments[].rank]'; }
make_files() { for n in $(seq "$2"); do echo "$3 $n" > "$1/$3-$n"; done; }

section 'move a tree in use'
mkdir -p "$a/tree/below"
make_files "$a/tree" 300 a
make_files "$a/tree/below" 100 a
ino=$(stat -c %i "$a/tree")
parent=$(stat -c %i "$a")
exec 8>> "$a/tree/a-1" 9< "$b/tree/a-2"
flock 9
# A working directory, and a listing in progress.
(cd "$a/tree/below" && until [ -e "$work/moved" ]; do sleep 0.2; done && echo here > by-working-directory) & inside=$!
while [ ! -e "$work/moved" ]; do
    find "$b/tree" -maxdepth 1 -name 'a-*' -printf '%f\n' | sort > "$work/listing"
    [ "$(uniq "$work/listing" | wc -l) $(wc -l < "$work/listing")" = '300 300' ] || touch "$work/wrong-listing"
done & lister=$!
for rank in 2 3 0 1; do
    make_files "$b/tree" 40 "while-$rank" & writer=$!
    [[ $("$bin" subtree move "$a/tree" --to "$rank") == '2 directories moved, with '* ]]
    wait "$writer"
    is "$(ranks "$b/tree")" "[$rank]"
    is "$(ranks "$b/tree/below")" "[$rank]"
    is "$(stat -c %i "$a/tree" "$b/tree")" "$ino"$'\n'"$ino"
    is "$(ls -ai "$b/tree" | awk '$2 == ".." { print $1 }')" "$parent"
    echo made > "$a/tree/new-$rank"
    is "$(($(stat -c %i "$b/tree/new-$rank") >> 48))" "$rank"
    mv "$b/tree/new-$rank" "$a/tree/below/new-$rank"
    is "$(cat "$b/tree/below/new-$rank")" made
    refused 'not empty' rmdir "$b/tree"
done
# Two directories, each of which may have been at the first rank already.
moves() { for n in 0 1 2 3; do "$bin" status "$cluster/server-$n/store" --json | jq .figures.fragments.moves; done; }
[ "$(moves | jq -s add)" -ge 6 ] || fail "the servers count $(moves | jq -s add) moves"
touch "$work/moved"
wait "$inside" "$lister"
is "$(cat "$b/tree/below/by-working-directory")" here
if [ -e "$work/wrong-listing" ]; then fail 'a listing lacks names that stay, or has them twice'; fi
is "$(find "$b/tree" -maxdepth 1 -type f | wc -l)" 460
is "$(stat -c '%s %h' "$a/tree")" '461 3'
echo more >&8
exec 8>&-
is "$(tail -n 1 "$b/tree/a-1")" more
is "$(cat <&9)" 'a 2'
if flock -n "$a/tree/a-2" true; then fail 'a lock is lost'; fi
exec 9<&-
refused 'no such rank' "$bin" subtree move "$a/tree" --to 4
refused 'superuser' setpriv --reuid 1 --clear-groups "$bin" subtree move "$a/tree" --to 2

section 'pin a tree'
"$bin" subtree pin "$a/tree" 2 > /dev/null
pinned() { [ "$(ranks "$b/tree")$(ranks "$b/tree/below")" = '[2][2]' ]; }
until_true pinned
mkdir -p "$b/tree/new/deeper"
echo text > "$b/tree/new/deeper/file"
is "$(($(stat -c %i "$a/tree/new/deeper/file") >> 48))" 2
refused 'pinned' "$bin" subtree move "$a/tree" --to 1
"$bin" subtree pin "$a/tree" off > /dev/null

section 'fragments merge'
mkdir "$a/merges"
"$bin" policy "$a/merges" --set dir_split=40 > /dev/null
make_files "$a/merges" 400 m
spread() { [ "$(ranks "$b/merges" | jq length)" = 4 ]; }
until_true spread
rm "$b"/merges/m-[2-9]* "$b"/merges/m-1?*
merged() { touch "$a/merges/x" && rm "$a/merges/x" && [ "$(ranks "$b/merges" | jq length)" = 1 ]; }
until_true merged
is "$(ls "$a/merges")" m-1

section 'a balancer moves directories'
mkdir "$a/hot"
"$bin" subtree pin "$a/hot" 1 > /dev/null
mkdir "$a"/hot/{1,2,3}
for dir in "$a"/hot/*; do make_files "$dir" 20 first; done
"$bin" subtree pin "$a/hot" off > /dev/null
busy() {
    local n=0
    while [ ! -e "$work/stop" ]; do
        n=$((n + 1))
        touch "$1/busy-$((n % 500))"
        rm -f "$1/busy-$(((n + 250) % 500))"
    done
}
for n in 1 2 3; do busy "$a/hot/$n" & done
refused 'is not in `espalier balancer list`' "$bin" balancer run nonsense "$a" --once
cat > "$work/spill.lua" << 'LUA'
function when()  return MDSs[whoami]["load"] > 1.5 * total / #MDSs end
function where() targets[whoami % #MDSs + 1] = MDSs[whoami]["load"] / 2 end
howmuch = { "half", "big_small" }
LUA
"$bin" balancer run "$work/spill.lua" "$a" --every 1 > "$work/balancer" & balancer=$!
moved() { [ "$(ranks "$b/hot/1")$(ranks "$b/hot/2")$(ranks "$b/hot/3")" != '[1][1][1]' ]; }
until_true moved
refused 'another balancer runs' "$bin" balancer run greedy-spill "$a" --once
kill "$balancer"
wait "$balancer" || true
: > "$work/stop"
wait
"$bin" balancer history "$b" > "$work/history"
path=$(sed -n 's/.* spill.lua: \(.*\) from rank 1 to rank [0-9]*$/\1/p' "$work/history" | head -n 1)
[[ $("$bin" explain "$b$path") == *"$path from rank 1"*'metadata load'* ]]
[[ $("$bin" explain "$a/merges") == 'no balancer has moved it'* ]]
# It may still be moving.
undone() { [[ $("$bin" balancer undo "$a") == *' moves back from rank '* ]]; }
until_true undone

section 'kill servers during moves'
mkdir "$a/moving"
make_files "$a/moving" 500 k
worker() {
    local n
    for n in $(seq 300); do
        echo "$n" > "$1/moving/$2-$n"
        mv "$1/moving/$2-$n" "$1/moving/$2-$n.moved"
        [ "$(cat "$1/moving/$2-$n.moved")" = "$n" ] || return 1
        if [ -e "$1/moving/$2-$n" ]; then return 1; fi
    done
}
worker "$a" first & first=$!
worker "$b" second & second=$!
for round in 1 2 3 4 5 6; do
    "$bin" subtree move "$a/moving" --to $((round % 4)) --no-wait > /dev/null
    sleep 0.3
    kill_server $((RANDOM % 4))
    sleep 0.2
    up
    "$bin" subtree move "$b/moving" --to $((round % 4)) > /dev/null
done
wait "$first" || fail 'a change of the first mount is missing'
wait "$second" || fail 'a change of the second mount is missing'
for mount in "$a" "$b"; do is "$(find "$mount/moving" -type f | wc -l)" 1100; done
is "$(cat "$a"/moving/k-* | wc -l)" 500
rm -r "$b/moving" "$a/tree"
umount "$a" "$b"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"

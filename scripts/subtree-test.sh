#!/bin/bash
# subtree-test.sh: directories move between four metadata servers, are pinned, merge and are balanced,
# while mounts use them and servers are killed.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b c=$work/c
chmod 755 "$work" # other users access the mounts
mkdir "$a" "$b" "$c"
cleanup() {
    : > "$work/stop"
    exec 8>&- 9<&-
    umount -l "$c" 2> /dev/null || true
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

section 'make a cluster of four ranks'
"$bin" cluster init "$cluster" --servers 4 --ranks 4 --listen 127.0.0.1:17780 > /dev/null
# Changes wait for the leases of clients that are gone.
sed -i 's/^lease_seconds = .*/lease_seconds = 2/' "$cluster"/server-*/server.toml
up
url=espalier://127.0.0.1:17780,127.0.0.1:17781,127.0.0.1:17782,127.0.0.1:17783/
mount_at() {
    "$bin" mount "$url" "$1" -o "credentials=$cluster/clients/admin" --log-file "$work/${1##*/}.log"
}
for mount in "$a" "$b"; do mount_at "$mount"; done

ranks() { "$bin" subtree show "$1" --json | jq -c '[.fragments[].rank]'; }
make_files() { for n in $(seq "$2"); do echo "$3 $n" > "$1/$3-$n"; done; }

section 'files follow their names'
mkdir "$a/follow"
make_files "$a/follow" 300 f
ino=$(stat -c %i "$a/follow/f-7")
home=$((ino >> 48)) to=$(((home + 1) % 4))
exec 8>> "$b/follow/f-9" # stays as long as it is open
pulled() { "$bin" status "$cluster/server-$to/store" --json | jq .figures.fragments.files_pulled; }
before=$(pulled)
"$bin" subtree move "$a/follow" --to "$to" > /dev/null
followed() { [ "$(pulled)" -ge $((before + 299)) ]; }
until_true followed
is "$(pulled)" $((before + 299))
for mount in "$a" "$b"; do
    is "$(cat "$mount"/follow/f-* | sort -k 2n | md5sum)" "$(for n in $(seq 300); do echo "f $n"; done | md5sum)"
    is "$(stat -c '%i %h %s' "$mount/follow/f-7")" "$ino 1 4"
done
echo more >> "$b/follow/f-7"
chmod 600 "$a/follow/f-8"
ln "$b/follow/f-7" "$b/linked"
mv "$a/follow/f-8" "$a/renamed"
is "$(tail -n 1 "$a/linked")" more
is "$(stat -c %i "$a/linked" "$b/follow/f-7" | uniq)" "$ino"
is "$(stat -c %a "$b/renamed")" 600
rm "$b/linked" "$a/renamed"
exec 8>&-
all() { [ "$(pulled)" -ge $((before + 300)) ]; }
until_true all
rm -r "$b/follow"

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
read -r inode entries rank < <("$bin" subtree show "$b/merges" --json | jq -r '.fragments[0] | "\(.inode) \(.entries) \(.rank)"')
next=$(((rank + 1) % 4))
is "$("$bin" subtree move "$a/merges" --to "$next" --fragment "$inode")" "1 fragment moved, with $entries names"
is "$(ranks "$b/merges" | jq '.[0]')" "$next"
is "$(ls "$b/merges" | wc -l)" 400
rm "$b"/merges/m-[2-9]* "$b"/merges/m-1?*
merged() { touch "$a/merges/x" && rm "$a/merges/x" && [ "$(ranks "$b/merges" | jq length)" = 1 ]; }
until_true merged
is "$(ls "$a/merges")" m-1

section 'a hot directory splits, and merges when it is cold'
mkdir "$a/hot"
"$bin" policy "$a/hot" --set dir_split_rate=20 --set dir_merge=1000 > /dev/null
# Two mounts, so that requests reach the server.
spin() { until [ -e "$work/cold" ]; do touch "$1/hot/$2" && rm "$1/hot/$2" || touch "$work/failed"; done; }
spin "$a" one & first=$!
spin "$b" two & second=$!
heated() { [ "$(ranks "$b/hot" | jq length)" -ge 2 ]; }
until_true heated
[[ $("$bin" explain "$b/hot") == '/hot: fragment '*' at rank '*' has split off: '*' requests/s, dir_split_rate 20'* ]]
by_rate() { for n in 0 1 2 3; do "$bin" status "$cluster/server-$n/store" --json | jq .figures.fragments.splits_by_rate; done; }
[ "$(by_rate | jq -s add)" -ge 1 ] || fail 'the servers count no split because of requests'
touch "$work/cold"
wait "$first" "$second"
cooled() { sleep 2 && [ "$(ranks "$b/hot" | jq length)" = 1 ]; }
until_true cooled
[ ! -e "$work/failed" ] || fail 'a change in the hot directory has failed'

section 'a balancer in the servers, under compilations from three mounts'
mount_at "$c"
mkdir "$a/build" "$a/idle"
"$bin" subtree pin "$a/build" 0 > /dev/null
mkdir "$a"/build/{1,2,3,4,5,6} "$a/build/include"
for n in $(seq 20); do echo "static inline int f$n(int a) { return a + $n; }" > "$a/build/include/f$n.h"; done
for dir in "$a"/build/[1-6]; do
    for n in $(seq 20); do printf '#include "f%d.h"\nint g%d(int a) { return f%d(a); }\n' $n $n $n > "$dir/g$n.c"; done
done
"$bin" subtree pin "$a/build" off > /dev/null
# compile DIR...: until the file `stop` exists.
compile() {
    local source
    while true; do
        for source in $(printf '%s/*.c ' "$@"); do
            if [ -e "$work/stop" ]; then return; fi
            cc -c -I "$(dirname "$1")/include" -o "${source%.c}.o" "$source" || touch "$work/failed"
        done
    done
}
compile "$a"/build/[12] & compile "$b"/build/[34] & compile "$c"/build/[56] &
sleep 5 # until there is load
show() { "$bin" balancer show "$c" --json | jq "$1"; }
is "$(show .policy)" null
is "$("$bin" balancer off "$a")" 'off: no balancer has been set'
refused 'there is no policy to print' "$bin" balancer show "$a" --text
refused "key.pem, the administrator's key" setpriv --reuid 1 --clear-groups "$bin" balancer show "$cluster"
refused 'is not in `espalier balancer list`' "$bin" balancer set nonsense "$a"
echo 'function when() return MDSs[whoami]["lod"] > 1 end function where() end' > "$work/wrong.lua"
refused 'is not set, because it fails' "$bin" balancer set "$work/wrong.lua" "$a"
echo 'function when() return true end function where() targets[whoami % #MDSs + 1] = MDSs[whoami]["load"] end' > "$work/restless.lua"
refused '4 ranks, one has all load, .* at each of 8 ticks' "$bin" balancer set "$work/restless.lua" "$cluster"
echo 'function when(' > "$work/broken.lua"
refused 'cannot be loaded' "$bin" balancer set "$work/broken.lua" "$a" --force
refused 'only the superuser' setpriv --reuid 1 --clear-groups "$bin" balancer show "$a"
is "$("$bin" balancer set greedy-spill "$cluster" --why 'a test')" 'version 1: greedy-spill, every 10 s'
set_at=$SECONDS
decided() { [[ $("$bin" balancer history "$b") == *' greedy-spill: /build/'[1-6]' from rank 0 to rank 1'* ]]; }
until_true decided
path=$("$bin" balancer history "$b" | sed -n 's/.* greedy-spill: \(\/build\/[1-6]\) from rank 0 to rank 1$/\1/p' | head -n 1)
left() { [ "$(ranks "$b$path")" != '[0]' ]; }
until_true left
echo "   (the first directory has moved $((SECONDS - set_at)) s after \`balancer set\`)"
[[ $("$bin" explain "$c$path/g1.c") == *"$path from rank 0 to rank 1"*'metadata load'*'saves'* ]]
[[ $("$bin" explain "$path" "$cluster") == *"$path from rank 0 to rank 1"*'metadata load'*'saves'* ]]
[[ $("$bin" explain "$a/idle") == 'no balancer has moved it'* ]]
[[ $("$bin" balancer show "$cluster") == 'version 1: greedy-spill'* ]]
[[ $("$bin" balancer history "$cluster") == *"$path from rank 0 to rank 1"* ]]
(cd "$a" && "$bin" balancer show > /dev/null)
refused 'neither in a mount' "$bin" balancer show "$work"
[[ $("$bin" balancer history "$a") == *'set, every 10 s, version 1, by '*': a test'* ]]
undone() { [[ $("$bin" balancer undo "$cluster") == *' back from rank '*' to rank '* ]]; }
until_true undone

section 'a policy that fails in use moves nothing'
cat > "$work/hangs.lua" << 'LUA'
function when()
    if MDSs[whoami]["mem"] ~= 30 then while true do end end -- `check` knows a rank with 30 only
    return false
end
function where() end
LUA
is "$("$bin" balancer set "$work/hangs.lua" "$b" --every 1)" 'version 2: hangs.lua, every 1 s'
fails() { [ "$(show '[.ranks[] | select(.failure and .version == 2)] | length')" = 4 ]; }
until_true fails
logged() { [ "$("$bin" balancer history "$a" | grep -c 'hangs.lua: rank . holds still: the policy fails in when')" = 4 ]; }
until_true logged
is "$("$bin" balancer history "$a" | grep -c 'hangs.lua: .* from rank')" 0

section 'a restart keeps the policy'
is "$("$bin" balancer set adaptable "$c" --every 2)" 'version 3: adaptable, every 2 s'
for server in 0 1; do
    kill_server "$server"
    up
done
decides() { [ "$(show '[.ranks[] | select(.version == 3 and .decided_ms != null and (.failure | not))] | length')" = 4 ]; }
until_true decides
is "$("$bin" balancer show "$a" --text | head -n 1)" "$("$bin" balancer list --json | jq -r '.[] | select(.name == "adaptable").text' | head -n 1)"
is "$("$bin" balancer off "$a")" 'version 4: off'
is_off() { [ "$(show '[.ranks[] | select(.version == 4)] | length')" = 4 ]; }
until_true is_off
lines=$("$bin" balancer history "$a" | wc -l)
sleep 5
is "$("$bin" balancer history "$a" | wc -l)" "$lines"
"$bin" balancer record "$cluster" > "$work/metrics.json"
[[ $("$bin" balancer dry-run greedy-spill "$cluster") == 'greedy-spill: rank 0 '* ]]
[[ $("$bin" balancer dry-run greedy-spill "$work/metrics.json") == 'greedy-spill: rank 0 '* ]]
: > "$work/stop"
wait
[ ! -e "$work/failed" ] || fail 'a compilation has failed'
is "$(find "$b/build" -name '*.o' | wc -l)" 120

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
umount "$a" "$b" "$c"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"

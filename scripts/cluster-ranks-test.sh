#!/bin/bash
# cluster-ranks-test.sh: several metadata servers share a tree. Two mounts behave as two processes
# on one machine, also while servers are killed and restarted, and operations that span servers are
# atomic.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
export BUILD
bin=$BUILD/espalier conformance=$BUILD/espalier-conformance
work=$(mktemp -d)
chmod 755 "$work" # other users access the mounts
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b" "$work/second"
cleanup() {
    exec 8>&- 9<&-
    umount "$work/second" "$a/top/mounted" "$work/merged" 2> /dev/null || true
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

section 'make a cluster of four ranks'
refused 'each has one at most' "$bin" cluster init "$cluster" --servers 2 --ranks 3
"$bin" cluster init "$cluster" --servers 4 --ranks 4 --listen 127.0.0.1:17480 > /dev/null
# Shortens the wait for sessions of clients that were killed.
sed -i 's/^session_seconds = .*/session_seconds = 20/' "$cluster"/server-*/server.toml
# All sections use directories that split.
for config in "$cluster"/server-*/server.toml; do printf '\n[policy]\ndir_split = 16\n' >> "$config"; done
store=$cluster/server-1/store
refused 'cluster up' "$bin" mount "$store" "$a"
refused 'cluster fsck' "$bin" fsck "$store"
refused 'cluster fsck' "$bin" fsck --repair "$store"
refused 'cluster fsck' "$bin" dump "$store" "$work/dump"
cp "$cluster/server-2/server.toml" "$work/saved.toml"
sed -i 's/^rank = 3$/rank = 2/' "$cluster/server-2/server.toml"
refused 'names each rank once' "$bin" serve --config "$cluster/server-2/server.toml"
sed -i '/^\[\[meta\]\]$/,+3d' "$cluster/server-2/server.toml"
refused 'one of 4 metadata servers' "$bin" serve --config "$cluster/server-2/server.toml"
cp "$work/saved.toml" "$cluster/server-2/server.toml"
up
url=$("$bin" cluster status "$cluster" --json | sed 's/^{.*"url":"\([^"]*\)"}$/\1/')
is "$url" espalier://127.0.0.1:17480,127.0.0.1:17481,127.0.0.1:17482,127.0.0.1:17483/
credentials=$cluster/clients/admin
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
# One server is enough: it returns the addresses of the others.
"$bin" mount espalier://127.0.0.1:17482/ "$b" -o "credentials=$credentials" --log-file "$work/b.log"

section 'each mount observes the changes of the other'
mkdir "$a"/home-{1,2,3,4}
# The upper 16 bits of a directory's inode number are its rank.
is "$(stat -c %i "$b"/home-* | awk '{print int($1 / 2^48)}' | sort -u | wc -l)" 4
rmdir "$b"/home-*
for round in 1 2 3 4 5; do
    mkdir -p "$a/one/two/three/four" "$b/other/deep"
    echo "$round" > "$a/one/two/file"
    ln "$b/one/two/file" "$b/other/deep/linked"
    is "$(stat -c %h "$a/one/two/file")" 2
    mv "$a/one/two/file" "$a/one/two/three/four/moved"
    is "$(cat "$b/other/deep/linked" "$b/one/two/three/four/moved")" "$round"$'\n'"$round"
    if [ -e "$b/one/two/file" ]; then fail 'the old name exists after a rename'; fi
    mv "$b/one/two" "$b/other/deep/two"
    is "$(ls "$a/other/deep")" linked$'\n'two
    is "$(stat -c %h "$a/one")" 2
    refused 'subdirectory of itself\|Invalid argument' mv "$a/other" "$a/other/deep/two/three"
    refused 'not empty' rmdir "$a/other/deep"
    head -c 3000000 /dev/urandom > "$a/other/deep/two/big"
    cmp "$a/other/deep/two/big" "$b/other/deep/two/big"
    echo target > "$b/one/target"
    mv "$a/one/target" "$b/other/deep/two/three/four/moved"
    is "$(cat "$b/other/deep/two/three/four/moved")" target
    is "$(stat -c %h "$b/other/deep/linked")" 1
    rm -r "$b/one" "$a/other"
    is "$(ls -A "$a" "$b")" "$a:"$'\n\n'"$b:"
done

has_all() { grep -q '^rank  *1 of 4, connected to \[0, 2, 3\]; 0 operations' <<< "$("$bin" status "$store")"; }
until_true has_all

section 'copy a tree and check its usage'
mkdir "$a/tree"
cp -a crates/library scripts "$a/tree"
ln "$a/tree/scripts/cluster-test.sh" "$a/tree/library/linked"
"$bin" cp -a "$b/tree" "$b/copy"
diff -r "$a/tree" "$a/copy"
listed() { (cd "$1" && find . ! -type d -printf '%p %m %n %s %T@\n' | LC_ALL=C sort); }
is "$(listed "$a/copy")" "$(listed "$b/tree")"
# Files, directories and bytes of a directory: as reported, with a delay, and as found by a walk.
reported() { "$bin" du "$1" | awk 'NR <= 3 { print $2 }' | tr '\n' ' '; }
found() {
    find "$1" -mindepth 1 -printf '%y %s\n' |
        awk '$1 == "d" { d++; next } { f++; b += $2 } END { printf "%d %d %d ", f, d, b }'
}
agree() { [ "$(reported "$a/$1")" = "$(found "$b/$1")" ]; }
until_true agree .
until_true agree copy
is "$(reported "$b/copy")" "$(found "$a/tree")"
"$bin" quota set "$a/copy" --files "$(($(find "$b/copy" -mindepth 1 | wc -l) + 10))"
# The ranks learn of the usage of others with a delay.
is_full() {
    local dir
    for dir in "$b"/copy/ "$b"/copy/*/; do
        if touch "${dir}more.$RANDOM$RANDOM" 2> /dev/null; then return 1; fi
    done
}
until_true is_full
refused 'quota exceeded' mkdir "$a/copy/library/more"
"$bin" quota remove "$b/copy"
"$bin" sync "$a/tree" "$b"
"$bin" rm -r "$a/tree" "$b/copy"
is "$(ls -A "$a" "$b")" "$a:"$'\n\n'"$b:"

section 'messages'
# costs LIMIT COMMAND...: checks that the command sends at most LIMIT requests.
costs() {
    local limit=$1 before spent
    shift
    before=$(sent)
    "$@"
    spent=$(($(sent) - before))
    [ "$spent" -le "$limit" ] || fail "$* costs $spent requests instead of $limit: $("$bin" status "${counted:-$a}" --counters)"
}
sent() { "$bin" status "${counted:-$a}" --counters | awk '$1 == "sent.requests" { print $2 }'; }
make_100() { (cd "$a/whole/counted" && seq 100 | xargs mkdir); }
fill_100() { (cd "$a/whole/counted" && seq -f %g/file 100 | xargs touch -a); }
mkdir "$a/whole"
"$bin" policy "$a/whole" --set dir_split=8192 > /dev/null
mkdir "$a/whole/counted"
# One request for the name, and in three of four cases one to another rank, which has the directory.
costs 190 make_100
costs 210 fill_100
# One request for the listing, and in three of four cases one to another rank; no lookup follows.
list_100() { ls -l "$b/whole/counted" > /dev/null; }
stat "$b/whole" > /dev/null
counted=$b costs 90 list_100
rm -r "$a/whole"

section 'overlayfs on a mount'
overlays() {
    local n m
    mkdir -p "$a/lower" "$work/merged"
    mkdir "$a/lower"/{1..20}
    for n in {1..20}; do echo "$n" > "$a/lower/$n/file"; done
    # Directories of the root are placed at the ranks in rotation, so that renames between the
    # directories of overlayfs lead to other ranks.
    for n in 1 2 3 4; do
        mkdir "$a/upper-$n" "$a/workdir-$n"
        mount -t overlay overlay -o "lowerdir=$a/lower,upperdir=$a/upper-$n,workdir=$a/workdir-$n" "$work/merged"
        for m in {1..10}; do echo more >> "$work/merged/$m/file"; done
        cp -a "$work/merged" "$work/merged-copy"
        cp -a "$work/merged-copy" "$work/merged/copy"
        mkdir -p "$work/merged/new/below" "$work/merged/3/new"
        is "$(cat "$work/merged/copy/7/file")" 7$'\n'more
        mv "$work/merged/new" "$work/merged/newer"
        rm -r "$work/merged"/{1,12,copy,newer}
        mkdir "$work/merged/12"
        is "$(ls "$work/merged/12")" ''
        is "$(find "$work/merged" -name file | wc -l)" 18
        is "$(cat "$work/merged/20/file")" 20
        umount "$work/merged"
        rm -r "$work/merged-copy"
        rm -r "$a/upper-$n" "$a/workdir-$n"
    done
    rm -r "$a/lower"
}
overlays

section 'races'
race() {
    "$conformance" "$a" --race "${SEED:-1}" --beside "$b" "$@" > "$work/race" || { cat "$work/race"; fail 'no order of the operations explains their results'; }
}
race
"$conformance" "$a" --follow "${SEED:-1}" --beside "$b" --rounds 3 > "$work/follow" || { cat "$work/follow"; fail 'a follower reads other bytes'; }
rounds=40
[ -z "${SOAK:-}" ] || rounds=100
race --rounds "$rounds" & racer=$!
while [ -e "/proc/$racer" ]; do
    kill_server $((RANDOM % 4))
    sleep 0.3
    up
    sleep 0.7
done
wait "$racer"
up
until_true agree .

section 'overlayfs on a mount, after restarts'
overlays

section 'other mounts on top survive renames and restarts'
mkdir "$a"/top-{1,2,3,4} "$a/top" "$a/top/mounted"
is "$(stat -c %i "$a"/top-? | awk '{print int($1 / 2^48)}' | sort -u | wc -l)" 4
mount -t tmpfs tmpfs "$a/top/mounted"
cp "$(command -v sleep)" "$a/top/sleep"
"$a/top/sleep" 300 & sleeper=$!
stays() {
    mountpoint -q "$a/top/mounted" || fail "the mount on top was detached by $1"
    is "$(readlink "/proc/$sleeper/exe")" "$a/top/sleep"
}
touch "$a/top-1/file"
for to in 2 3 4 1; do
    mv "$a"/top-?/file "$a/top-$to/file"
    stays 'a rename to another rank'
    [ -e "$b/top-$to/file" ] || fail 'the new name does not exist after a rename'
    mv "$b/top-$to/file" "$b/top-$to/other"
    if [ -e "$a/top-$to/file" ]; then fail 'the old name exists after a rename'; fi
    mv "$b/top-$to/other" "$b/top-$to/file"
done
for n in 0 1 2 3; do kill_server "$n"; done
up
until_true reconnected
touch "$a/top/again" "$b/top/too"
stays 'a restart of all servers'
# The other mount renames a parent directory.
mv "$b/top" "$b/moved"
mv "$b/moved" "$b/top"
stays 'renames at the other mount'
umount "$a/top/mounted"
kill "$sleeper"
wait "$sleeper" 2> /dev/null || true
rm -r "$a"/top*

section 'POSIX'
mkdir "$a/conformance" "$a/pjdfstest"
# 65,000 links take minutes here.
mapfile -t cases < <("$conformance" --list | sed 's/ .*//' | { [ -n "${SOAK:-}" ] && cat || grep -v max_links; } | sed 's/^/--filter=/')
"$conformance" "$a/conformance" "${cases[@]}" > "$work/conformance" || { grep -v ' ok ' "$work/conformance"; fail 'not POSIX'; }
tail -n 1 "$work/conformance"
mount -t tmpfs tmpfs "$work/second"
scripts/pjdfstest.sh "$a/pjdfstest" "$work/second" || fail 'not POSIX'
umount "$work/second"
rm -rf "$b/conformance" "$b/pjdfstest"

section 'partitioned directories'
ranks_of() { find "$1" -type f -printf '%i\n' | awk '{ print int($1 / 2^48) }' | sort -u | wc -l; }
mkdir "$a/spread" "$a/spread/empty"
"$bin" policy "$a/spread" --set dir_servers=4 > /dev/null
make_files() { for n in $(seq "$2"); do echo "$2 $n" > "$1/$3-$n"; done; }
make_files "$a/spread" 1000 a & first=$!
make_files "$b/spread" 1000 b & second=$!
# Names that stay are listed once while the directory changes.
while kill -0 "$first" 2> /dev/null; do
    is "$(find "$b/spread" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | uniq -d)" ''
done
wait "$first" "$second"
is "$(ranks_of "$a/spread")" 4
is "$(find "$a/spread" -type f | wc -l)" 2000
"$bin" subtree show "$b/spread" --json > "$work/fragments"
is "$(jq -c '[.fragments[].rank] | sort' "$work/fragments")" '[0,1,2,3]'
is "$(jq '[.fragments[].entries] | add' "$work/fragments")" 2001
is "$(jq '[.fragments[].iwr > 0] | all' "$work/fragments")" true
# Servers have just been restarted.
no_rank_is_silent() { [ "$("$bin" balancer metrics "$1" --json | jq -c '[.ranks[].silent]')" = '[false,false,false,false]' ]; }
for source in "$cluster" "$b" "$store"; do until_true no_rank_is_silent "$source"; done
"$bin" balancer metrics "$b" --json > "$work/load"
is "$(jq -c '[.directories[] | select(.iwr > 10) | .rank] | unique' "$work/load")" '[0,1,2,3]'
held() { "$bin" status "$store" --json | jq .figures.fragments.held; }
[ "$(held)" -ge 1 ] || fail "the server counts $(held) fragments"
# Which requests meet an outdated map depends on their timing.
redirects() { "$bin" status "$1" --counters | awk '$1 == "redirects" { print $2 }'; }
redirected() {
    local dir=spread/$RANDOM$RANDOM
    mkdir "$a/$dir"
    make_files "$a/$dir" 100 a & make_files "$b/$dir" 100 b
    wait $!
    rm -r "$b/$dir"
    [ $(($(redirects "$a") + $(redirects "$b"))) -ge 1 ]
}
until_true redirected
is "$(stat -c '%s %h' "$a/spread" "$b/spread")" '2001 3'$'\n''2001 3'
is "$(cat "$a"/spread/b-* | sort -n -k 2 | tail -n 1)" '1000 1000'
chmod 700 "$b/spread"
is "$(stat -c %a "$a/spread")" 700
mv "$a/spread/a-7" "$b/spread/renamed"
is "$(cat "$b/spread/renamed")" '1000 7'
refused 'not empty' rmdir "$b/spread"
# A directory that is full before it is spread.
mkdir "$a/late"
"$bin" policy "$a/late" --set dir_split=100000 > /dev/null
make_files "$a/late" 300 c
is "$(stat -c %s "$b/late")" 300
"$bin" policy "$b/late" --set dir_servers=4 > /dev/null
touch "$b/late/one-more"
spreads() { make_files "$b/late" 20 "d$RANDOM" && [ "$(ranks_of "$b/late")" = 4 ]; }
until_true spreads
is "$(find "$a/late" -name 'c-*' | wc -l)" 300
rm -r "$a/spread" "$b/late"

section 'kill servers under load'
mkdir "$a/links"
# Each acknowledged step must be visible. Most steps lead to another rank.
worker() {
    local mount=$1 own=${1##*/} n last=
    mkdir "$mount/$own" "$mount/$own-others"
    for n in $(seq 400); do
        mkdir "$mount/$own/dir-$n"
        echo "$n" > "$mount/$own/dir-$n/file"
        ln "$mount/$own/dir-$n/file" "$mount/links/$own-$n"
        mv "$mount/$own/dir-$n/file" "$mount/$own-others/moved-$n"
        [ "$(cat "$mount/$own-others/moved-$n")" = "$n" ] || return 1
        if [ -e "$mount/$own/dir-$n/file" ]; then return 1; fi
        if [ $((n % 4)) = 0 ]; then
            mv "$mount/$own/dir-$n" "$mount/$own/dir-$((n - 1))/below"
            [ "$(stat -c %h "$mount/$own/dir-$((n - 1))")" = 3 ] || return 1
        elif [ $((n % 4)) = 1 ]; then
            rmdir "$mount/$own/dir-$n"
            mv "$mount/$own-others/moved-$n" "$mount/links/$own-$n.moved"
            rm "$mount/links/$own-$n.moved"
            [ "$(stat -c %h "$mount/links/$own-$n")" = 1 ] || return 1
        fi
    done
}
printf before > "$a/unlinked"
exec 8>> "$a/unlinked" 9< "$a/unlinked"
rm "$a/unlinked"
worker "$a" & first=$!
worker "$b" & second=$!
for victim in 1 0 2 3 0 1 3 2; do
    sleep 1
    kill_server "$victim"
    sleep 0.3
    up
done
wait "$first" || fail 'a change of the first mount is missing'
wait "$second" || fail 'a change of the second mount is missing'
printf ' after' >&8
is "$(cat <&9)" 'before after'
exec 8>&- 9<&-
for mount in "$a" "$b"; do
    for own in a b; do
        is "$(find "$mount/$own" -mindepth 1 -maxdepth 1 | wc -l)" 200
        is "$(find "$mount/$own" -name below | wc -l)" 100
        is "$(find "$mount/$own-others" -type f | wc -l)" 300
        is "$(find "$mount/links" -name "$own-*" | wc -l)" 400
        is "$(find "$mount/links" -name "$own-*" -links 2 | wc -l)" 300
        is "$(cat "$mount/links/$own-399" "$mount/$own-others/moved-400" | tr '\n' ' ')" '399 400 '
    done
done

section 'first-hour.sh at both mounts while servers are killed'
hours=()
for mount in "$a" "$b"; do
    scripts/first-hour.sh "$mount" > "$mount.hour" 2>&1 &
    hours+=($!)
done
victim=0
while kill -0 "${hours[@]}" 2> /dev/null; do
    sleep 4
    kill_server "$victim"
    sleep 0.3
    up
    victim=$(((victim + 1) % 4))
done
wait "${hours[0]}" || { cat "$a.hour"; fail 'first-hour.sh fails at the first mount'; }
wait "${hours[1]}" || { cat "$b.hour"; fail 'first-hour.sh fails at the second mount'; }

section 'stop a server'
mkdir "$a"/home-{1,2,3,4}
others=()
for home in home-{1,2,3,4}; do
    if [ $(($(stat -c %i "$a/$home") >> 48)) = 2 ]; then down=$home; else others+=("$home"); fi
done
kill_server 2
for home in "${others[@]}"; do
    echo text > "$a/$home/file"
    mv "$a/$home/file" "$a/${others[0]}/$home"
    is "$(timeout 60 cat "$b/${others[0]}/$home")" text
done
echo late > "$b/$down/file" & waits=$!
mv "$a/${others[0]}/${others[1]}" "$a/$down/moved" & interrupted=$!
sleep 1
for waiting in "$waits" "$interrupted"; do
    [ -e "/proc/$waiting" ] || fail 'a call to a server that is down has returned'
done
kill "$interrupted"
until_true test ! -e "/proc/$interrupted"
up
wait "$waits"
is "$(cat "$a/$down/file")" late
is "$(cat "$b/${others[0]}/${others[1]}")" text

section 'kill all servers at once'
busy() {
    local n
    for n in $(seq 100000); do
        mkdir "$1-$n" && mv "$1-$n" "$a/home-2/${1##*/}-$n" && rmdir "$a/home-2/${1##*/}-$n" || return 0
    done
}
workers=()
for n in 1 2 3 4 5 6; do
    busy "$a/home-$((n % 2 * 2 + 1))/$n" 2> /dev/null & workers+=($!)
done
sleep 2
for n in 0 1 2 3; do pids[n]=$(pid "$n"); done
kill -9 "${pids[@]}"
# `umount -f` aborts the connection, which ends the workers; the mount may then be gone already, or
# need another attempt.
unmounted() { umount -f "$1"; ! mountpoint -q "$1"; }
for mount in "$a" "$b"; do until_true unmounted "$mount"; done
wait "${workers[@]}"
for pid in "${pids[@]}"; do until_true test ! -e "/proc/$pid"; done
# fsck completes interrupted transactions.
"$bin" cluster fsck "$cluster"
up
for mount in "$a" "$b"; do "$bin" mount "$url" "$mount" -o "credentials=$credentials" --log-file "$work/${mount##*/}.log"; done

section 'stop the cluster while a server is down'
umount "$a" "$b"
"$bin" cluster client "$cluster" guest > /dev/null
for n in 0 1 2 3; do
    printf '\n[clients.guest]\nsubtree = "/projects/a"\n' >> "$cluster/server-$n/server.toml"
done
# No server waits for another to stop.
kill_server 3
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"
is "$("$bin" cluster fsck --repair "$cluster" | grep -c '^clean: ')" 1
up
"$bin" mount "$url" "$a" -o "credentials=$credentials" --log-file "$work/a.log"
is "$(find "$a/links" -type f | wc -l)" 800

section 'restrict a client to a subtree'
refused 'restricted to' "$bin" mount "$url" "$b" -o "credentials=$cluster/clients/guest"
mkdir -p "$a/projects/a" "$a/outside"
echo ours > "$a/outside/file"
"$bin" mount "$url" "$b" -o "credentials=$cluster/clients/guest" --log-file "$work/b.log"
is "$(stat -c %i "$b")" 1
mkdir "$b"/dir-{1,2,3,4,5,6,7,8}
is "$(stat -c %i "$a"/projects/a/dir-* | awk '{print int($1 / 2^48)}' | sort -u | wc -l)" 4
for n in 1 2 3 4 5 6 7 8; do
    mkdir -p "$b/dir-$n/deep/deeper"
    echo "$n" > "$b/dir-$n/deep/file"
    mv "$b/dir-$n/deep/file" "$b/dir-$((n % 8 + 1))/moved"
    ln "$b/dir-$((n % 8 + 1))/moved" "$b/linked-$n"
    mv "$b/dir-$n/deep/deeper" "$b/deeper-$n"
done
is "$(cat "$a"/projects/a/linked-* | tr -d '\n')" 12345678
echo theirs > "$a/projects/a/dir-3/moved"
is "$(cat "$b/linked-2")" theirs
# A link inside the subtree gives access to the file, and not to its other names.
ln "$a/outside/file" "$a/projects/a/dir-4/ours"
is "$(cat "$b/dir-4/ours")" ours
mv "$a/projects/a/dir-5" "$a/outside/"
if [ -e "$b/dir-5" ]; then fail 'a directory is visible after it was moved out of the subtree'; fi
kill_server 1
kill_server 2
up
rm -r "$b"/dir-* "$b"/deeper-* "$b"/linked-*
is "$(ls -A "$a/projects/a")" ''
is "$(ls "$a/outside" "$a/outside/dir-5" | tr '\n' ' ')" "$a/outside: dir-5 file  $a/outside/dir-5: deep moved "
umount "$b"
rm -r "$a"/*
is "$(ls -A "$a")" ''
umount "$a"
# All inodes are freed, except the root.
inodes() { "$bin" cluster status "$cluster" | awk -v want="$1" '{ sum += $(NF - 3) } END { exit sum != want }'; }
until_true inodes 1
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"

section 'a lost store'
refused 'has its store' "$bin" cluster resolve "$cluster" --lost 2
refused 'not all the stores' "$bin" cluster resolve "$cluster" --lost 9
mv "$cluster/server-2/store" "$work/lost"
is "$("$bin" cluster resolve "$cluster" --lost 2)" 'rank 2 has left nothing undecided'
echo 'cluster-ranks-test: passed'

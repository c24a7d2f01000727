#!/bin/bash
# kill-test.sh [ROUNDS]: repeatedly kills the process of a mount under load. After each kill the
# next mount recovers within seconds and has all synced files; at the end fsck finds no errors.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
rounds=${1:-5}
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt"
cleanup() {
    [ -z "${load:-}" ] || kill "$load" 2> /dev/null || true
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
"$bin" mkfs "$work/data" > /dev/null

# Creates, rewrites, renames, links and removes files of many sizes. Every tenth file is synced and
# then recorded outside the mount.
load() {
    local round=$1 number=0 size dir
    while :; do
        number=$((number + 1))
        dir=$mnt/r$round/d$((number % 7))
        mkdir -p "$dir"
        size=$((RANDOM * (number % 5 == 0 ? 8 : 1)))
        head -c "$size" /dev/urandom > "$dir/f$number"
        ln -f "$dir/f$number" "$dir/l$((number % 11))"
        [ $((number % 3)) != 0 ] || mv "$dir/f$number" "$mnt/r$round/m$((number % 13))"
        [ $((number % 4)) != 0 ] || rm -f "$dir/f$((number - 2))"
        if [ $((number % 10)) = 0 ]; then
            seq "$number" $((number + 200)) > "$dir/s$number"
            sync "$dir/s$number"
            echo "r$round/d$((number % 7))/s$number $number" >> "$work/synced"
        fi
    done
}

for round in $(seq "$rounds"); do
    "$bin" mount "$work/data" "$mnt"
    load "$round" 2> /dev/null &
    load=$!
    sleep "$((1 + RANDOM % 3)).$((RANDOM % 10))"
    pkill -9 -f "espalier mount .*$mnt\$"
    kill "$load" 2> /dev/null || true
    wait "$load" 2> /dev/null || true
    load=
    # The next mount removes a dead mount.
    started=$(date +%s%N)
    "$bin" mount --log info "$work/data" "$mnt"
    took=$((($(date +%s%N) - started) / 1000000))
    while read -r path number; do
        if ! cmp -s <(seq "$number" $((number + 200))) "$mnt/$path"; then
            echo "kill-test: round $round: $path was synced, but is lost or damaged" >&2
            exit 1
        fi
    done < "$work/synced"
    # All files are readable and all directories can be listed.
    tar -cf /dev/null -C "$mnt" .
    "$bin" umount "$mnt"
    "$bin" fsck "$work/data" > "$work/fsck" || {
        cat "$work/fsck"
        exit 1
    }
    echo "round $round: mounted again in $took ms; $(wc -l < "$work/synced") synced files so far; $(cat "$work/fsck")"
done
if ! grep -q 'replayed the journal' "$work/data/log"; then
    echo 'kill-test: no mount has replayed the journal: nothing was tested' >&2
    exit 1
fi
# A crash of the process loses at most the last milliseconds, and nothing that `espalier sync` has
# made durable.
head -c 3000000 /dev/urandom > "$work/big"
for way in rest sync; do
    "$bin" mount "$work/data" "$mnt"
    cp -a crates "$mnt/$way"
    cp "$work/big" "$mnt/$way/big"
    case $way in
        rest) sync -f "$mnt" && sleep 0.1 ;;
        sync) "$bin" sync "$mnt/$way" ;;
    esac
    pkill -9 -f "espalier mount .*$mnt\$"
    "$bin" mount "$work/data" "$mnt"
    if ! diff -r --no-dereference --exclude=big crates "$mnt/$way" || ! cmp "$work/big" "$mnt/$way/big"; then
        echo "kill-test: $way: files that were written before the kill are lost or damaged" >&2
        exit 1
    fi
    "$bin" umount "$mnt"
    "$bin" fsck "$work/data" > "$work/fsck" || { cat "$work/fsck"; exit 1; }
    echo "$way: nothing is lost"
done
if "$bin" sync "$work" 2> /dev/null; then
    echo 'kill-test: espalier sync of another file system must fail' >&2
    exit 1
fi
# `make run` also recovers after a kill.
is_mounted() { grep -q '^mounted on .*/mnt ' <<< "$("$bin" status "$work/data")"; }
run=$PWD/scripts/run.sh
for end in killed unmounted; do
    (cd "$work" && BIN=$bin exec "$run" ./data ./mnt) > "$work/run" 2>&1 &
    runner=$!
    for _ in $(seq 300); do
        if is_mounted; then break; fi
        sleep 0.1
    done
    is_mounted || { cat "$work/run"; exit 1; }
    touch "$mnt/$end" # invalidates the kernel's cached attributes of the directory
    if [ "$end" = killed ]; then kill -9 "$runner"; else "$bin" umount "$mnt"; fi
    wait "$runner" || [ "$end" = killed ]
done
echo 'kill-test: passed'

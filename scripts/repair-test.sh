#!/bin/bash
# repair-test.sh: damages the tables, journal, streams and superblock of a store. `fsck` reports the
# damage, `fsck --repair` repairs it, and everything undamaged is preserved.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt"
cleanup() {
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

fail() {
    echo "repair-test: $*" >&2
    exit 1
}

# expect CODE ARGUMENTS...: runs fsck and checks its exit status.
expect() {
    local wanted=$1 code=0
    shift
    "$bin" fsck "$@" > "$work/said" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "fsck $* exits with $code instead of $wanted: $(cat "$work/said")"
}

# flip FILE OFFSET: flips bits of one byte.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf '%b' "\\x$(printf '%02x' $((byte ^ 90)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# The contents of a file contain its number, so that no file can be mistaken for another.
fill() {
    local number
    mkdir -p "$mnt/$1"
    for number in $(seq "$2"); do
        [ $((number % 100)) != 1 ] || mkdir "$mnt/$1/d$((number / 100))"
        seq "$number" $((number + 50)) > "$mnt/$1/d$(((number - 1) / 100))/f$number"
    done
    head -c 300000 /dev/zero | tr '\0' "$3" > "$mnt/$1/big"
    ln "$mnt/$1/d0/f1" "$mnt/$1/link"
    ln -s d0 "$mnt/$1/symlink"
}

# Number of small files with their original contents, at any path.
intact() {
    local file first good=0
    while IFS= read -r file; do
        first=$(head -n 1 "$file" | tr -d '\0')
        if cmp -s <(seq "$first" $((first + 50)) 2> /dev/null) "$file"; then good=$((good + 1)); fi
    done < <(find "$mnt" -type f ! -name 'big' -size -2)
    echo "$good"
}

"$bin" mkfs "$work/data" > /dev/null
"$bin" mount "$work/data" "$mnt"
fill one 1500 a
"$bin" umount "$mnt"
expect 0 "$work/data"
expect 0 --repair "$work/data"
[ ! -e "$work/data/quarantine" ] || fail 'the repair of a clean store has a quarantine'
expect 8 "$work/nothing"
cp -a "$work/data" "$work/clean"

section 'damage a block of the tables'
table=$(find "$work/data/tables/tables" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)
flip "$table" $(($(stat -c %s "$table") / 3))
expect 4 "$work/data"
expect 1 --repair "$work/data"
grep -q 'blocks could not' "$work/said" || fail "nothing was salvaged: $(cat "$work/said")"
expect 0 "$work/data"
expect 0 --repair "$work/data"
"$bin" mount "$work/data" "$mnt"
good=$(intact)
[ "$good" -gt 1000 ] || fail "of 1500 files only $good are left"
echo "$good of 1500 files are left"
mkdir "$mnt/new"
echo new > "$mnt/new/file"
tar -cf /dev/null -C "$mnt" .
"$bin" umount "$mnt"
expect 0 "$work/data"

section 'damage the list of tables'
rm -rf "$work/data"
cp -a "$work/clean" "$work/data"
truncate -s 3 "$work/data/tables/current"
expect 4 "$work/data"
expect 1 --repair "$work/data"
expect 0 "$work/data"
"$bin" mount "$work/data" "$mnt"
[ "$(intact)" = 1501 ] || fail 'files are missing, though only the list was damaged'
"$bin" umount "$mnt"

section 'a missing stream, and an unreferenced one'
rm -rf "$work/data"
cp -a "$work/clean" "$work/data"
stream=$(find "$work/data/streams" -type f -size +200k)
mv "$stream" "$work/data/streams/ee/eeee"
expect 4 "$work/data"
expect 1 --repair "$work/data"
expect 0 "$work/data"
"$bin" mount "$work/data" "$mnt"
[ "$(stat -c %s "$mnt/one/big")" = 0 ] || fail 'a file without its stream is not empty'
cmp <(head -c 300000 /dev/zero | tr '\0' a) "$mnt"/lost+found/* || fail 'the stream is not in lost+found'
"$bin" umount "$mnt"

section 'damage the journal'
"$bin" mount --foreground "$work/data" "$mnt" &
server=$!
for _ in $(seq 600); do
    mountpoint -q "$mnt" && break
    sleep 0.1
done
for number in $(seq 50); do
    seq "$number" $((number + 50)) > "$mnt/j$number"
    sync "$mnt/j$number"
done
kill -9 "$server"
wait "$server" 2> /dev/null || true
umount -l "$mnt"
# In the middle of the written frames: later frames record it as durable.
at=$(grep -abo -m 1 j25 "$work/data/journal" | head -n 1 | cut -d : -f 1)
flip "$work/data/journal" "$at"
expect 4 "$work/data"
expect 1 --repair "$work/data"
grep -q 'events of the journal were replayed' "$work/said" || fail "no journal was repaired: $(cat "$work/said")"
expect 0 "$work/data"
expect 0 --repair "$work/data"
"$bin" mount "$work/data" "$mnt"
cmp <(seq 20 70) "$mnt/j20" || fail 'a file from before the damage in the journal is lost'
[ ! -e "$mnt/j40" ] || fail 'a file from after the damage in the journal exists'
"$bin" umount "$mnt"
[ -n "$(find "$work/data/quarantine" -name journal)" ] || fail 'the damaged journal is not in the quarantine'

section 'an invalid journal'
truncate -s 10k "$work/data/journal"
expect 4 "$work/data"
expect 1 --repair "$work/data"
expect 0 "$work/data"
"$bin" mount "$work/data" "$mnt"
cmp <(seq 20 70) "$mnt/j20" || fail 'a file of the tables is lost'
"$bin" umount "$mnt"

section 'damage the superblock'
truncate -s 100 "$work/data/superblock"
expect 4 "$work/data"
if "$bin" mount "$work/data" "$mnt" 2> "$work/said"; then fail 'a store with a damaged superblock was mounted'; fi
grep -q 'fsck --repair' "$work/said" || fail "the error has no advice: $(cat "$work/said")"
expect 1 --repair "$work/data"
grep -q 'restored from its copy' "$work/said" || fail "nothing was restored: $(cat "$work/said")"
expect 0 "$work/data"
truncate -s 100 "$work/data/superblock.bak"
expect 1 --repair "$work/data"
cmp "$work/data/superblock" "$work/data/superblock.bak"
rm "$work/data/superblock.bak"
"$bin" mount "$work/data" "$mnt"
cmp <(seq 20 70) "$mnt/j20" || fail 'a file of the tables is lost'
"$bin" umount "$mnt"
cmp "$work/data/superblock" "$work/data/superblock.bak" || fail 'the mount did not restore the copy of the superblock'
truncate -s 100 "$work/data/superblock" "$work/data/superblock.bak"
expect 4 "$work/data"
expect 4 --repair "$work/data"
grep -q 'from a backup' "$work/said" || fail "the error has no advice: $(cat "$work/said")"
echo 'repair-test: passed'

#!/bin/bash
# usage-test.sh: the usage of directories equals that of a walk after all operations and kills, and
# quotas hold.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt" "$work/bound"
chmod 755 "$work"
server=
load=
cleanup() {
    [ -z "$load" ] || kill "$load" 2> /dev/null || true
    umount "$work/bound" 2> /dev/null || true
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "usage-test: $*" >&2
    exit 1
}

start() {
    "$bin" mount "$work/data" "$mnt"
    server=$("$bin" status "$mnt" --json | sed 's/.*"pid":\([0-9]*\).*/\1/')
}

counted() {
    "$bin" du "$1" --json | sed 's/.*"bytes":\([0-9]*\),"directories":\([0-9]*\),"files":\([0-9]*\).*/\3 \2 \1/'
}

walked() {
    find "$1" -mindepth 1 -printf '%y %s\n' | awk '{ if ($1 == "d") d++; else f++ } $1 ~ /[fl]/ { b += $2 }
        END { printf "%d %d %d\n", f, d, b }'
}

# Checks all directories at or below a path.
check() {
    local dir
    while IFS= read -r -d '' dir; do
        [ "$(counted "$dir")" = "$(walked "$dir")" ] ||
            fail "$dir reports '$(counted "$dir")', and a walk finds '$(walked "$dir")' ($2)"
    done < <(find "$1" -type d -print0)
}

refuses() {
    local what=$1
    shift
    if "$@" 2> "$work/error"; then fail "$what has succeeded"; fi
    grep -qi 'quota exceeded' "$work/error" || fail "$what does not fail with EDQUOT: $(cat "$work/error")"
}

"$bin" mkfs "$work/data" > /dev/null
start

section 'du equals a walk'
mkdir -p "$mnt/a/b/c" "$mnt/d"
cp -a crates/meta docs "$mnt/a/b"
ln "$mnt/a/b/docs/format.md" "$mnt/d/link"
ln "$mnt/a/b/docs/format.md" "$mnt/a/second"
ln "$mnt/a/b/docs/format.md" "$mnt/a/third"
ln -s docs "$mnt/a/symlink"
mkfifo "$mnt/a/fifo"
head -c 3000000 /dev/urandom > "$mnt/a/b/big"
head -c 100 /dev/zero >> "$mnt/a/b/big"
truncate -s 10M "$mnt/d/sparse"
truncate -s 1M "$mnt/d/sparse"
fallocate -l 5M "$mnt/d/allocated"
cp --reflink=never "$mnt/a/b/big" "$mnt/d/copy"
check "$mnt" 'after copies and links'
mv "$mnt/a/b" "$mnt/d/moved"
mv "$mnt/a/second" "$mnt/d/third"
rm "$mnt/a/third"
echo more >> "$mnt/d/link"
ln -f "$mnt/d/moved/big" "$mnt/a/big"
mv "$mnt/d/copy" "$mnt/d/sparse"
rm -r "$mnt/d/moved/meta/src"
check "$mnt" 'after renames and removals'
exec 5>> "$mnt/a/big"
head -c 1000000 /dev/zero >&5
check "$mnt" 'while a big file is written'
rm "$mnt/a/big"
head -c 1000000 /dev/zero >&5
check "$mnt" 'while a big file with one name left is written'
exec 5>&-
check "$mnt" 'after it was closed'

section 'after a kill'
for round in 1 2 3; do
    echo 0 > "$work/done"
    started=$SECONDS
    (
        RANDOM=$round
        number=0
        while :; do
            number=$((number + 1))
            mkdir -p "$mnt/k/$((number % 5))/$number"
            head -c "$((RANDOM * (number % 3)))" /dev/urandom > "$mnt/k/$((number % 5))/$number/file"
            ln -f "$mnt/k/$((number % 5))/$number/file" "$mnt/k/link$((number % 7))"
            head -c 20000 /dev/zero >> "$mnt/k/big$((number % 3))"
            [ $((number % 4)) != 0 ] || mv "$mnt/k/$((number % 5))/$number" "$mnt/k/moved$round.$number"
            [ $((number % 6)) != 0 ] || truncate -s 70000 "$mnt/k/big$((number % 3))"
            echo "$number" > "$work/done"
        done
    ) 2> /dev/null &
    load=$!
    until [ "$(tail -1 "$work/done" | grep . || echo 0)" -ge $((40 * round)) ]; do
        [ $((SECONDS - started)) -lt 120 ] || fail 'the load makes no progress'
        sleep 0.05
    done
    kill -9 "$server"
    kill "$load" 2> /dev/null || true
    wait "$load" 2> /dev/null || true
    load=
    start
    check "$mnt" "after kill $round"
done

section 'quotas'
mkdir -p "$mnt/q/inner" "$mnt/out"
"$bin" quota set "$mnt/q" --files 10 --bytes 2M
"$bin" quota set "$mnt/q/inner" --bytes 1M
refuses 'dd beyond the inner quota' dd if=/dev/zero of="$mnt/q/inner/dd" bs=64k count=100 status=none
[ "$(counted "$mnt/q/inner")" = "1 0 1048576" ] || fail "dd left $(counted "$mnt/q/inner")"
head -c 1500000 /dev/zero > "$mnt/out/big"
refuses 'cp beyond the outer quota' cp "$mnt/out/big" "$mnt/q/copy"
rm "$mnt/q/copy"
refuses 'mv beyond the outer quota' mv "$mnt/out" "$mnt/q/out"
refuses 'ln beyond the outer quota' ln "$mnt/out/big" "$mnt/q/link"
refuses 'truncate beyond the quota' truncate -s 3M "$mnt/q/sparse"
refuses 'fallocate beyond the quota' fallocate -l 3M "$mnt/q/sparse"
rm -f "$mnt/q/sparse"
rm "$mnt/q/inner/dd"
cp "$mnt/out/big" "$mnt/q/copy"
for number in 1 2 3 4 5 6 7 8; do mkdir "$mnt/q/d$number"; done
refuses 'mkdir beyond the quota' mkdir "$mnt/q/d9"
refuses 'a symbolic link beyond the quota' ln -s x "$mnt/q/d9"
refuses 'an empty file beyond the quota' sh -c ": > '$mnt/q/d1/file'"
rmdir "$mnt/q/d1"
mkdir "$mnt/q/d9"
check "$mnt/q" 'under quotas'

section 'shown and set'
[ "$("$bin" quota get "$mnt/q" --json)" = "{\"bytes\":2097152,\"files\":10,\"path\":\"$mnt/q\"}" ] || fail 'quota get prints other limits'
grep -q '10 of 10 files and directories' <<< "$("$bin" du "$mnt/q")" || fail "du: $("$bin" du "$mnt/q")"
[ "$(stat -f -c '%b %S %c %d' "$mnt/q/d2")" = '512 4096 10 0' ] || fail "statfs: $(stat -f "$mnt/q/d2")"
mount --bind "$mnt/q" "$work/bound"
[ "$(df --output=size,itotal "$work/bound" | tail -1 | xargs)" = '2048 10' ] || fail "df: $(df "$work/bound")"
# A process that inspects all mounts, such as another test, briefly keeps this one busy.
for _ in $(seq 50); do
    ! umount "$work/bound" 2> "$work/error" || break
    sleep 0.1
done
! mountpoint -q "$work/bound" || fail "cannot unmount: $(cat "$work/error")"
[ -z "$(getfattr -d -m - "$mnt/q")" ] || fail 'the usage is listed among the extended attributes'
chown 65534 "$mnt/q"
if setpriv --reuid 65534 --clear-groups "$bin" quota set "$mnt/q" --files 99 2> "$work/error"; then
    fail 'an ordinary user has set a quota'
fi
grep -q 'only root' "$work/error"
if "$bin" du "$work" 2> "$work/error"; then fail 'du accepts a directory of another file system'; fi
grep -q 'not a directory of a mounted Espalier' "$work/error"
if setfattr -n user.espalier.rbytes -v 1 "$mnt/q" 2> /dev/null; then fail 'setfattr has changed a usage attribute'; fi

section 'dump and load keep quotas'
"$bin" umount "$mnt"
"$bin" fsck "$work/data"
"$bin" dump "$work/data" "$work/dump" 2> /dev/null
"$bin" load "$work/dump" "$work/two" 2> /dev/null
"$bin" fsck "$work/two" > /dev/null
mv "$work/data" "$work/one"
mv "$work/two" "$work/data"
start
refuses 'mkdir beyond the loaded quota' mkdir "$mnt/q/d10"
"$bin" quota remove "$mnt/q" --files
mkdir "$mnt/q/d10"
refuses 'growth beyond the loaded quota' truncate -s 3M "$mnt/q/copy"
"$bin" quota remove "$mnt/q"
truncate -s 3M "$mnt/q/copy"
check "$mnt" 'at the end'
"$bin" umount "$mnt"
"$bin" fsck "$work/data"
echo 'usage-test: passed'

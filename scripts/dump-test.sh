#!/bin/bash
# dump-test.sh: a dump and load reproduces the tree, including hard links, holes and attributes;
# interrupted dumps and loads resume; damaged dumps are refused.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mkdir "$work/a" "$work/b" "$work/small"
cleanup() {
    exec 8>&- 9>&-
    "$bin" umount --force "$work/a" 2> /dev/null || umount -l "$work/a" 2> /dev/null || true
    "$bin" umount --force "$work/b" 2> /dev/null || umount -l "$work/b" 2> /dev/null || true
    umount "$work/small" 2> /dev/null || umount -l "$work/small" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "dump-test: $*" >&2
    exit 1
}

# refused CODE TEXT ARGUMENTS...: the program exits with CODE and prints TEXT.
refused() {
    local wanted=$1 text=$2 code=0
    shift 2
    "$bin" "$@" > "$work/said" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "$* exits with $code instead of $wanted: $(cat "$work/said")"
    grep -q -- "$text" "$work/said" || fail "$* does not print '$text': $(cat "$work/said")"
}

"$bin" mkfs --journal 4M --label one "$work/one" > /dev/null
"$bin" mount "$work/one" "$work/a"
(
    cd "$work/a"
    cp -a "$OLDPWD/crates" "$OLDPWD/docs" .
    # Links within and across directories, to small and big files.
    head -c 3000000 /dev/urandom > big
    mkdir links
    ln docs/format.md link
    ln docs/format.md links/again
    ln big links/big
    ln -s docs symlink
    ln -s "$(printf 'x%.0s' $(seq 4000))" dangling
    # Special files.
    mkfifo fifo
    mknod null c 1 3
    mknod -m 600 disk b 259 1048575
    # Holes: between data, without data, in a stuffed file, and allocated space without data.
    truncate -s 1T sparse
    dd if=/dev/urandom of=sparse bs=64k seek=100 count=3 conv=notrunc status=none
    truncate -s 5G hole
    truncate -s 60000 stuffed
    printf tail | dd of=stuffed bs=1 seek=50000 conv=notrunc status=none
    fallocate -l 1M allocated
    head -c 70000000 /dev/urandom > long
    # Names.
    mkdir names
    touch "names/$(printf 'n%.0s' $(seq 255))" $'names/a\nb' 'names/ ' 'names/-rf' 'names/\' $'names/\xff\xfe' 'names/été' 'names/*'
    (cd names && for _ in $(seq 40); do mkdir deeper && cd deeper; done && touch bottom)
    # Times to the nanosecond, before 1970 and after 2038; owners, modes, attributes, ACLs.
    touch -d '2001-02-03 04:05:06.123456789' big link
    touch -d '1931-02-03 04:05:06.987654321' fifo
    touch -d '2345-06-07 08:09:10.000000001' null names
    touch -h -d '2001-02-03 04:05:06.5' dangling
    chown 1234:54321 stuffed
    chown -h 4294967294:1 dangling
    chmod 4711 big
    chmod 6755 stuffed
    chmod 1777 links
    setfattr -n user.color -v green link
    setfattr -n user.empty big
    setfattr -n user.long -v "$(printf 'v%.0s' $(seq 60000))" big
    setfattr -n trusted.secret -v 0x00ff00 names
    setfattr -h -n trusted.link -v here dangling
    setfacl -m u:nobody:r-x,d:g:nogroup:rwx docs
    setfacl -m u:1234:---,m::r-- stuffed
    "$bin" quota set docs --files 1000 --bytes 1G
    "$bin" quota set links --bytes 5M
    "$bin" policy names --set num_dfiles=3 --set dist_params=strip_size:1M
)
"$bin" umount "$work/a"
# Unlinked open files are not part of the tree after a crash.
"$bin" mount "$work/one" "$work/a"
exec 8> "$work/a/open" 9> "$work/a/opened"
# The tree contains this script: its text must not match.
unlinked=unlinked.$$.$RANDOM
echo "$unlinked" >&8
printf "$unlinked%.0s" $(seq 10000) >&9
sync "$work/a/open" "$work/a/opened"
rm "$work/a/open" "$work/a/opened"
sync "$work/a"
server=$("$bin" status "$work/a" --json | sed 's/.*"pid":\([0-9]*\).*/\1/')
kill -9 "$server"
exec 8>&- 9>&-
umount -l "$work/a"
until "$bin" fsck "$work/one" > "$work/said" 2>&1; do
    grep -q 'in use' "$work/said" || fail "the store is not clean: $(cat "$work/said")"
    sleep 0.1
done

"$bin" dump "$work/one" "$work/dump"
if grep -qF "$unlinked" "$work/dump"; then fail 'an unlinked file was dumped'; fi
"$bin" dump --verify "$work/dump" | grep 'is whole'
"$bin" load --verify "$work/dump" "$work/two"
"$bin" fsck "$work/two"

# All attributes of the files below a directory. A big file's ctime is that of its stream. Allocated
# space without data is not preserved, and reading it would change a resumed dump.
manifest() {
    (
        cd "$1"
        find . -print0 | sort -z | xargs -0 stat --printf '%n|%f|%i|%h|%u|%g|%t|%T|%s|%.9Y|%.9W\n'
        find . ! \( -type f -size +64k \) -print0 | sort -z | xargs -0 stat --printf '%n|%.9X|%.9Z\n'
        find . -type f ! -size +64k -print0 | sort -z | xargs -0 stat --printf '%n|%b\n'
        # The file system below adds metadata blocks: round to MiB.
        find . -type f -size +64k ! -name allocated -printf '%b %p\n' | sort -k 2 | awk '{ print int(($1 + 1024) / 2048), $2 }'
        find . -type l -print0 | sort -z | xargs -0 -n 1 readlink
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex 2> /dev/null
        find . ! -type l -print0 | sort -z | xargs -0 getfacl -n
        find . -type d ! -name . -print0 | sort -z | xargs -0 -n 1 "$bin" du --json
        for dir in docs links; do "$bin" quota get "$dir"; done
        find . -type f ! -size +1G ! -name allocated -print0 | sort -z | xargs -0 sha256sum
        dd if=sparse bs=64k skip=99 count=5 status=none | sha256sum
    )
}
"$bin" mount -o ro "$work/one" "$work/a"
"$bin" mount -o ro "$work/two" "$work/b"
manifest "$work/a" > "$work/manifest.a"
manifest "$work/b" > "$work/manifest.b"
grep -q 76767676 "$work/manifest.a" # attributes were listed at all
diff "$work/manifest.a" "$work/manifest.b" || fail 'the loaded tree differs from the dumped one'
"$bin" umount "$work/a"
"$bin" umount "$work/b"
"$bin" dump "$work/two" > "$work/expected"
whole=$(stat -c %s "$work/dump")

section 'interrupted dump'
"$bin" dump "$work/one" 2> "$work/error" | head -c 1000000 > "$work/part" || true
grep -q 'cannot write the dump' "$work/error"
"$bin" dump --resume "$work/one" "$work/part"
cmp "$work/part" "$work/dump"
mount -t tmpfs -o size=60m tmpfs "$work/small"
refused 2 'cannot write the dump' dump "$work/one" "$work/small/dump"
mount -o remount,size=200m "$work/small"
"$bin" dump --resume "$work/one" "$work/small/dump" 2> "$work/said"
grep -q 'resumed after' "$work/said"
cmp "$work/small/dump" "$work/dump"
rm "$work/small/dump"
refused 2 'has changed since' dump --resume "$work/one" "$work/expected"
cp "$work/one/superblock" "$work/part"
refused 2 'no dump' dump --resume "$work/one" "$work/part"

section 'interrupted load'
head -c "$((whole - 100))" "$work/dump" > "$work/cut"
refused 1 'damaged at byte [0-9]*: it was cut off' dump --verify "$work/cut"
refused 2 'damaged at byte [0-9]*: it was cut off' load --interval 1M "$work/cut" "$work/three"
refused 2 'load --resume' mount "$work/three" "$work/a"
refused 8 'load --resume' fsck --repair "$work/three"
refused 2 'not the dump that was interrupted' load --resume "$work/expected" "$work/three"
"$bin" load --resume --interval 1M --verify - "$work/three" < "$work/dump"
"$bin" dump "$work/three" | cmp - "$work/expected"
refused 2 'nothing to resume' load --resume "$work/dump" "$work/three"
mount -o remount,size=60m "$work/small"
refused 2 'no space is left' load --interval 1M "$work/dump" "$work/small/four"
refused 2 'load --resume' mount "$work/small/four" "$work/a"
mount -o remount,size=200m "$work/small"
"$bin" load --resume "$work/dump" "$work/small/four" | grep 'resumed after'
"$bin" dump "$work/small/four" | cmp - "$work/expected"
mkfifo "$work/pipe"
"$bin" load --interval 1M - "$work/five" < "$work/pipe" &
loader=$!
exec 8> "$work/pipe"
head -c 20000000 "$work/dump" >&8
kill -9 "$loader"
wait "$loader" 2> /dev/null || true
exec 8>&-
"$bin" load --resume "$work/dump" "$work/five" | grep 'resumed after'
"$bin" dump "$work/five" | cmp - "$work/expected"

section 'invalid dumps'
refused 2 'no dump' load docs/format.md "$work/six"
refused 1 'no dump' dump --verify docs/format.md
# Changes the byte for any random value.
byte=$(od -An -tu1 -j50000000 -N1 "$work/dump")
printf '%b' "\\x$(printf '%02x' $((byte ^ 90)))" | dd of="$work/dump" bs=1 seek=50000000 conv=notrunc status=none
refused 1 'damaged at byte [45][0-9]\{7\}: a checksum is wrong' dump --verify "$work/dump"
refused 2 'a checksum is wrong' load "$work/dump" "$work/six"
refused 2 'not completely loaded' mount "$work/six" "$work/a"
echo 'dump-test: passed'

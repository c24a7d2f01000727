#!/bin/bash
# bulk-test.sh: compares espalier cp and rm with cp and rm: equal trees, messages and exit status,
# for root and other users; files in use stay intact; a kill while a removed tree is being freed
# leaves no entries in the trash.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt" "$work/bound"
chmod 755 "$work"
server=
cleanup() {
    umount "$work/bound" 2> /dev/null || true
    umount "$mnt/q/d/mounted" 2> /dev/null || true
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "bulk-test: $*" >&2
    exit 1
}

start() {
    "$bin" mount -o allow_other "$work/data" "$mnt"
    server=$("$bin" status "$mnt" --json | jq .pid)
}
trash() { "$bin" status "$mnt" --json | jq .figures.trash.entries; }
inodes() { "$bin" status "$mnt" --json | jq .files; }
counted() { "$bin" du "$1" --json | jq -c '[.files, .directories, .bytes]'; }
walked() {
    find "$1" -mindepth 1 -printf '%y %s\n' | awk '{ if ($1 == "d") d++; else f++ } $1 ~ /[fl]/ { b += $2 }
        END { printf "[%d,%d,%d]\n", f, d, b }'
}
check_usage() { [ "$(counted "$1")" = "$(walked "$1")" ] || fail "$1 reports $(counted "$1"), and a walk finds $(walked "$1")"; }
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

refuses() { # expected message, command
    local what=$1
    shift
    if "$@" 2> "$work/error"; then fail "$* succeeds"; fi
    grep -q "$what" "$work/error" || fail "$* does not print '$what': $(cat "$work/error")"
}

# Waits until removed trees are freed. Other trees may be freed at the same time.
wait_for_trash() {
    local started=$SECONDS
    until [ "$(trash)" = 0 ]; do
        [ $((SECONDS - started)) -lt 300 ] || fail "the trash is not emptied: $(trash) entries left"
        sleep 0.1
    done
}

# Describes everything below a directory; with `all`, also the attributes that cp -a preserves.
describe() {
    local format='%P %y %m %U %G %l'
    [ "$2" != all ] || format+=' %n %t'
    (
        cd "$1"
        find . -type d -printf "$format\n" -o -printf "$format %s\n" | LC_ALL=C sort
        find . -type f -readable -print0 | LC_ALL=C sort -z | xargs -0r md5sum
        [ "$2" != all ] || getfacl -Rp . 2> /dev/null
        [ "$2" != all ] || getfattr -Rhd -m - . 2> /dev/null
        find . -type f -links +1 -printf '%i %P\n' | LC_ALL=C sort -k 2 |
            awk '{ if (!($1 in first)) first[$1] = $2; print $2, first[$1] }'
    )
}
same() { # two directories, and `all` or `some`: the attributes to compare
    if ! diff <(describe "$1" "$3") <(describe "$2" "$3") > "$work/difference"; then
        head -20 "$work/difference" >&2
        fail "$1 and $2 differ"
    fi
    check_usage "$2"
}

"$bin" mkfs "$work/data" > /dev/null
start
chmod 1777 "$mnt"
cd "$mnt"

section 'copies equal those of cp'
mkdir -p tree/sub/deep tree/empty tree/ro tree/private
cp -a "$OLDPWD/crates/meta" tree/meta
head -c 300000 /dev/urandom > tree/sub/big
ln tree/sub/big tree/sub/deep/big
ln tree/meta/Cargo.toml tree/sub/link
truncate -s 20M tree/sparse
echo data | dd of=tree/sparse bs=1 seek=9M conv=notrunc status=none
truncate -s 30K tree/hole
ln -s nowhere tree/dangling
ln -s sub tree/symlink
mkfifo tree/fifo
mknod tree/device c 1 3
echo secret > tree/private/file
echo text > tree/ro/file
chmod 2750 tree/sub
chmod 4755 tree/sub/big
mkdir -m 1777 tree/sticky
setfattr -n user.note -v hello tree/meta
setfattr -n trusted.note -v hello tree/hole
setfacl -m u:12:rwx tree/meta tree/hole
setfacl -d -m u:13:rx tree/empty
chown -R 65534:65534 tree/meta tree/ro tree/sub
chown 12:34 tree/hole
touch -d '2001-02-03 04:05:06.789' tree/meta tree/hole tree/ro/file
touch -h -d '2001-02-03 04:05:06.789' tree/dangling
chmod 555 tree/ro
chmod 711 tree/private
deep=tree/levels
for level in $(seq 40); do deep+=/$level; done
mkdir -p "$deep"
echo bottom > "$deep/file"
for number in $(seq 1000); do echo "$number" > "tree/sub/deep/$number"; done
check_usage tree
for flags in -r -a; do
    how=$([ $flags = -a ] && echo all || echo some)
    cp $flags tree "theirs$flags"
    "$bin" cp $flags tree "ours$flags"
    same "theirs$flags" "ours$flags" "$how"
    # As a user who may not read a part of the tree.
    if nobody cp $flags tree "theirs-nobody$flags" 2> "$work/theirs"; then fail 'cp has read a private directory'; fi
    if nobody "$bin" cp $flags tree "ours-nobody$flags" 2> "$work/ours"; then fail 'espalier cp has read a private directory'; fi
    same "theirs-nobody$flags" "ours-nobody$flags" "$how"
    diff <(sed "s/theirs-nobody/x/g; s/^cp: //" "$work/theirs" | LC_ALL=C sort) \
        <(sed "s/ours-nobody/x/g; s/^espalier cp: //" "$work/ours" | LC_ALL=C sort) || fail 'the messages differ'
done
[ "$(stat -c %b ours-a/sparse)" -le "$(stat -c %b theirs-a/sparse)" ] || fail 'holes were filled'

section 'existing targets'
for side in theirs ours; do
    mkdir -p "$side/into/tree/sub/deep" "$side/into/tree/dangling"
    echo old > "$side/into/tree/sub/big"
    echo other > "$side/into/tree/other"
    ln -s absent "$side/into/tree/fifo"
    # The kernel caches that these names do not exist.
    if stat "$side/into/tree/hole" "$side/into/new" 2> /dev/null; then fail 'a new name exists before the copy'; fi
done
if cp -r tree theirs/into 2> "$work/theirs"; then fail 'cp has overwritten a directory'; fi
if "$bin" cp -r tree ours/into 2> "$work/ours"; then fail 'espalier cp has overwritten a directory'; fi
same theirs/into ours/into some
grep -q "cannot overwrite directory 'ours/into/tree/dangling'" "$work/ours" || fail "$(cat "$work/ours")"
stat "ours/into/tree/hole" > /dev/null || fail 'the kernel still caches that a copied name does not exist'
"$bin" cp -r tree/meta/ tree/hole tree/dangling tree/fifo ours/into
"$bin" cp tree/hole ours/into/new
cp -r tree/meta/ tree/hole tree/dangling tree/fifo theirs/into
cp tree/hole theirs/into/new
same theirs/into ours/into some

section 'refused copies'
refuses 'into itself' "$bin" cp -r tree tree/sub/copy
refuses 'into itself' "$bin" cp -r tree tree
refuses 'into itself' "$bin" cp -r . tree
[ ! -e tree/sub/copy ] || fail 'a refused copy has made something'
refuses "omitting directory 'tree'" "$bin" cp tree copy
refuses 'cannot stat' "$bin" cp -r absent copy
refuses 'is not a directory' "$bin" cp -r tree tree/meta tree/hole
refuses 'not in a mounted Espalier' "$bin" cp -r tree "$work/out"
refuses 'not in a mounted Espalier' "$bin" cp -r /etc/default copy
refuses 'cannot overwrite non-directory' "$bin" cp -r tree theirs/into/new
refuses 'Permission denied' nobody "$bin" cp -r tree/meta theirs/into/meta2
# Root in a user namespace may not set foreign owners.
refuses 'Operation not permitted' setpriv --bounding-set -chown "$bin" cp -a tree copy
refuses 'Operation not permitted' setpriv --bounding-set -chown "$bin" rm -r tree
rm -r copy
mkdir limited
"$bin" quota set limited --files 100
refuses 'quota exceeded' "$bin" cp -r tree/sub limited/sub
check_usage limited
[ "$(counted limited | jq '.[0] + .[1]')" = 100 ] || fail "the quota allows $(counted limited)"
mount --bind -o ro "$mnt" "$work/bound" 2> /dev/null || { mount --bind "$mnt" "$work/bound"; mount -o remount,bind,ro "$work/bound"; }
refuses 'Read-only file system' "$bin" cp -r "$work/bound/tree/meta" "$work/bound/copy"
refuses 'Read-only file system' "$bin" cp -r "$work/bound/tree/meta" "$work/bound/limited"

section 'removals'
refuses 'Read-only file system' "$bin" rm -r "$work/bound/tree"
umount "$work/bound"
[ -e tree/hole ] || fail 'rm has removed a file through a read-only mount'
refuses 'Is a directory' "$bin" rm tree
refuses "cannot remove 'absent': No such file" "$bin" rm -r absent ours-r
[ ! -e ours-r ] || fail 'rm did not remove its second operand'
"$bin" rm -rf absent
refuses "refusing to remove '.' or '..'" "$bin" rm -r tree/.
refuses "refusing to remove '.' or '..'" "$bin" rm -r tree/..
refuses 'Not a directory' "$bin" rm -r tree/symlink/
refuses 'resource busy' "$bin" rm -r "$mnt"
refuses 'not in a mounted Espalier' "$bin" rm -r "$work/bound"
"$bin" rm -r tree/symlink theirs/into/new
[ -e tree/sub/deep/1 ] || fail 'a symbolic link was followed'
mkdir -p q/d/mounted
mount -t tmpfs none q/d/mounted
refuses 'something is mounted' "$bin" rm -r q
umount q/d/mounted
"$bin" quota set q --files 1200
"$bin" cp -r tree/sub q/sub
refuses 'quota exceeded' "$bin" cp -r tree/sub q/more
"$bin" rm -r q/sub q/more
"$bin" cp -r tree/sub q/sub
check_usage q
check_usage .

section 'removals by other users'
mkdir -m 777 shared
nobody "$bin" cp -r tree/meta shared/mine
before=$(describe shared all)
chown 0 shared/mine/src
chmod 755 shared/mine/src
refuses 'Permission denied' nobody "$bin" rm -r shared/mine
chmod 1777 shared/mine/src
chown 0 shared/mine/src/lib.rs
refuses 'Operation not permitted' nobody "$bin" rm -r shared/mine
chown -R 65534:65534 shared/mine/src
chmod 755 shared/mine/src
[ "$(describe shared all)" = "$before" ] || fail 'a refused removal has changed the tree'
nobody mkdir -m 0 shared/mine/unreadable
nobody "$bin" rm -r shared/mine
[ -z "$(ls shared)" ] || fail 'the removed tree still exists'

section 'files in use'
"$bin" cp -r tree used
ln used/meta/Cargo.toml outside
exec 5< used/sub/big 6< used/meta/Cargo.toml 7< used/sub/deep
(
    cd used/sub/deep
    ls -A . > /dev/null # the kernel caches this listing until the directory is freed
    "$bin" rm -r "$mnt/used"
    for _ in $(seq 600); do
        [ -n "$(ls -A .)" ] || break
        sleep 0.1
    done
    [ -z "$(ls -A .)" ] || fail "a removed directory is not empty: $(ls -A .)"
    if (echo new > new) 2> /dev/null; then fail 'a file was created in a removed directory'; fi
    if ln "$mnt/outside" link 2> /dev/null; then fail 'a file was linked into a removed directory'; fi
    if mv 1 "$mnt/saved" 2> /dev/null; then fail 'a file was renamed out of a removed directory'; fi
    if cat 1 2> /dev/null; then fail 'a removed file was found by its name'; fi
    [ -z "$(ls -A .)" ] || fail 'a removed directory is not empty'
)
[ ! -e used ] || fail 'the kernel still caches the removed name'
wait_for_trash
cmp <(cat <&5) tree/sub/big || fail 'an open file has other bytes'
cmp <(cat <&6) tree/meta/Cargo.toml
[ "$(stat -c %h outside)" = 1 ] || fail "a file with one name has a link count of $(stat -c %h outside)"
cmp outside tree/meta/Cargo.toml
exec 5<&- 6<&- 7<&-
mkdir used
[ -z "$(ls -A used)" ] || fail 'a new directory is not empty'

section 'cached listings'
mkdir listed
ls . listed > /dev/null
"$bin" cp -r tree/meta listed
[ "$(ls listed)" = meta ] || fail "a listing lacks a copy: $(ls listed)"
(
    cd listed
    ls . > /dev/null
    "$bin" rm -r "$mnt/listed"
    [ -z "$(ls -A .)" ] || fail "a removed directory is not empty: $(ls -A .)"
)
if grep -qx listed <<< "$(ls)"; then fail 'a removed directory is listed'; fi

section 'kill while a removed tree is freed'
cd "$work"
"$bin" cp -r "$mnt/tree" "$mnt/many"
for round in 1 2 3; do "$bin" cp -r "$mnt/many/sub" "$mnt/many/sub$round" && "$bin" cp -r "$mnt/many" "$mnt/many/../twice" &&
    mv "$mnt/twice" "$mnt/many/twice$round"; done
sync "$mnt"
for round in 1 2 3 4; do
    size=$(counted "$mnt/many" | jq '.[0] + .[1]')
    "$bin" cp -a "$mnt/many" "$mnt/copy"
    sync "$mnt"
    "$bin" rm -r "$mnt/copy"
    [ ! -e "$mnt/copy" ] || fail 'the removed tree still exists'
    # The removal is durable, and the tree is partly freed.
    sync "$mnt"
    left=$(trash)
    kill -9 "$server"
    if [ $((round % 2)) = 1 ]; then
        umount -l "$mnt"
        "$bin" fsck "$work/data"
        "$bin" fsck --repair "$work/data"
    fi
    if [ "$round" = 3 ]; then
        "$bin" dump "$work/data" "$work/dump" 2> /dev/null
        "$bin" load "$work/dump" "$work/two" 2> /dev/null
        mv "$work/data" "$work/one"
        mv "$work/two" "$work/data"
    fi
    start
    [ ! -e "$mnt/copy" ] || fail 'the removed tree is back after the kill'
    echo "round $round: $left of $size entries were in the trash at the kill, $(trash) after the next mount"
    most=$((${most:-0} > left ? ${most:-0} : left))
    wait_for_trash
    check_usage "$mnt"
    expected=$(find "$mnt" -printf '%i\n' | sort -u | wc -l)
    [ "$(inodes)" = "$expected" ] || fail "$(inodes) inodes in use instead of $expected"
done
[ "$most" -gt 0 ] || fail 'each kill came after the whole tree was freed: nothing was tested'
"$bin" umount "$mnt"
"$bin" fsck "$work/data"
echo 'bulk-test: passed'

#!/bin/bash
# no-metafile-test.sh: no-metafile files (docs/small-files.md) on a mount: ownership, refused
# operations, common tools, conversion to ordinary files when they leave their directory, and no
# leftovers after servers are killed.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
conformance=$(realpath "${BUILD:-target/release}/espalier-conformance")
work=$(mktemp -d)
chmod 755 "$work" # other users access the mounts
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    for mount in "$a" "$b"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. scripts/cluster-functions.sh

# is_no_metafile FILE: succeeds if the file has no metafile.
is_no_metafile() {
    grep -qx 'no_metafile = true' <<< "$("$bin" layout "$1")"
}
# as USER COMMAND...: runs the command as that user and group.
as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}
mount_both() {
    for mount in "$a" "$b"; do
        "$bin" mount "$url" "$mount" -o "allow_other,credentials=$credentials" --log-file "$mount.log"
    done
}

section 'make a cluster of three servers'
"$bin" cluster init "$cluster" --servers 3 --ranks 2 --listen 127.0.0.1:17590 --label tested > /dev/null
up
url=$("$bin" cluster status "$cluster" --json | jq -r .url)
credentials=$cluster/clients/admin
mount_both

section 'ownership'
mkdir "$a/dir" "$a/other"
setfattr -n user.espalier.no_metafile -v 1 "$a/dir"
is "$(getfattr --only-values -n user.espalier.no_metafile "$b/dir")" true
refused 'true or false' "$bin" policy "$a/dir" --set no_metafile=2
mkdir "$a/dir/below"
chown 1000:1001 "$a/dir"
chmod 2775 "$a/dir"
(umask 077 && echo hello > "$a/dir/file")
is_no_metafile "$a/dir/file"
is "$(stat -c '%u %g %a %s %h' "$b/dir/file")" '1000 1001 664 6 1'
is "$(find "$cluster"/server-*/data/streams -type f | wc -l)" 1
echo below > "$a/dir/below/file"
is_no_metafile "$b/dir/below/file"
as 1002 cat "$b/dir/file" > /dev/null
refused denied as 1002 bash -c "echo more >> '$b/dir/file'"
# Both mounts show the change at once, regardless of their caches.
stat "$a/dir/file" "$b/dir/file" > /dev/null
chmod 700 "$a/dir"
is "$(stat -c %a "$a/dir/file" "$b/dir/file" | tr '\n' ' ')" '600 600 '
chmod 751 "$a/dir"
refused denied as 1002 cat "$b/dir/file"
setfacl -m u:1002:rwx "$a/dir"
is "$(stat -c %a "$b/dir/file")" 640
setfacl -b "$a/dir"
chmod 755 "$a/dir"

section 'refused operations'
for change in 'chmod 600' 'chown 0' 'chgrp 0' 'setfattr -n user.x -v y' 'setfacl -m u:1002:r'; do
    refused 'not permitted' $change "$b/dir/file"
done
refused 'not permitted' ln "$b/dir/file" "$b/dir/linked"
refused 'not permitted' ln "$b/dir/file" "$b/other/linked"
chmod 644 "$b/dir/file"
chown 1000:1001 "$b/dir/file"
is_no_metafile "$b/dir/file"

section 'common tools'
touch -d @1000000000 "$a/dir/file"
: > "$a/dir/empty"
touch -d @1100000000 "$a/dir/empty"
is "$(stat -c '%Y %X' "$b/dir/file" "$b/dir/empty" | tr '\n' ' ')" '1000000000 1000000000 1100000000 1100000000 '
as 1000 cp -p "$b/dir/file" "$b/dir/copied"
cmp "$a/dir/file" "$a/dir/copied"
is "$(stat -c %Y "$a/dir/copied")" 1000000000
tar -C "$a/dir" -cf "$work/tar" file empty
tar -C "$b/dir/below" --no-same-owner --no-same-permissions -xf "$work/tar"
is "$(stat -c '%Y %s' "$a/dir/below/empty")" '1100000000 0'
is_no_metafile "$a/dir/below/empty"
head -c 3000000 /dev/urandom > "$work/bytes"
cp "$work/bytes" "$a/dir/big"
cmp "$work/bytes" "$b/dir/big"
printf more >> "$b/dir/big"
is "$(tail -c 4 "$a/dir/big")" more
truncate -s 100 "$a/dir/big"
is "$(stat -c %s "$b/dir/big")" 100
fallocate -l 70000 "$b/dir/big"
is "$(stat -c %s "$a/dir/big")" 70000
is "$(find "$b/dir" -maxdepth 1 -type f -size +0 | wc -l)" 3
# `below` may be at the other rank, which reports its usage with a delay.
counted() { [ "$(getfattr --only-values -n user.espalier.rfiles "$a/dir")" = 6 ]; }
until_true counted

section 'rename, and removal while open'
mv "$a/dir/copied" "$a/dir/renamed"
mv "$a/dir/renamed" "$a/dir/empty"
is_no_metafile "$b/dir/empty"
is "$(cat "$b/dir/empty")" hello
mv "$b/dir/empty" "$b/other/whole"
if is_no_metafile "$a/other/whole"; then fail 'a file has no metafile outside its directory'; fi
is "$(stat -c '%u %g %a %s %Y' "$a/other/whole")" '1000 1001 644 6 1000000000'
chmod 600 "$a/other/whole"
ln "$a/other/whole" "$a/dir/linked"
is "$(stat -c '%a %h' "$b/dir/linked")" '600 2'
exec 9<> "$a/dir/big"
rm "$b/dir/big"
echo still >&9
is "$(stat -c '%u %a %h' -L /proc/self/fd/9)" '1000 644 0'
exec 9>&-

section 'POSIX, except attributes that the directory determines'
mkdir "$a/posix"
"$bin" policy "$a/posix" --set no_metafile=true
chmod 777 "$a/posix"
mapfile -t cases < <(without_large_cases "$conformance")
"$conformance" "$a/posix" "${cases[@]}" > "$work/conformance" || true
differs='^(links|xattr|acl|setid|permission|times)::|^(create::modes_and_umask|symlinks::attributes|rename::(exchange|same_file|sticky)'
differs+='|mapping::executable|listing::types_and_inodes|special::devices|concurrent::links_and_unlinks|lookup::negative_then_created|handles::(of_every_kind|need_privilege)) '
if grep FAILED "$work/conformance" | grep -Ev "$differs" | grep .; then fail 'not POSIX'; fi
tail -n 1 "$work/conformance"
rm -rf "$a/posix"

section 'kill servers'
writer() {
    local n
    for n in $(seq 200); do
        echo "$n" > "$1/w$n"
        [ "$(cat "$2/w$n")" = "$n" ] || return 1
        mv "$2/w$n" "$2/m$n"
        [ $((n % 10)) = 0 ] || rm "$1/m$n"
    done
}
writer "$a/dir" "$b/dir" & writers=$!
writer "$b/dir/below" "$a/dir/below" & writers+=" $!"
for victim in 0 1 2; do
    sleep 1
    kill_server "$victim"
    sleep 0.3
    up
done
for writer in $writers; do wait "$writer" || fail 'a file that was written is missing or has wrong contents'; done
is "$(find "$a" -name 'm*' | wc -l)" 40
is_no_metafile "$a/dir/m100"

section 'remove a data server'
umount "$a" "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
for rank in 0 1; do
    sed -i '/^\[\[data\]\]/{n;s/^number = 2$/&\ndrain = true/}' "$cluster/server-$rank/server.toml"
done
said=$("$bin" cluster drain "$cluster" --server 2)
[[ $said = 'moved '[1-9]* ]] || fail "the drain moved nothing: $said"
is "$(find "$cluster/server-2/data/streams" -type f | wc -l)" 0
"$bin" cluster fsck "$cluster"
up
mount_both
is "$(cat "$a/dir/m100") $(cat "$b/dir/below/m200")" '100 200'
is_no_metafile "$a/dir/m100"

section 'unset the policy attribute'
"$bin" policy "$a/dir" --unset no_metafile
: > "$a/dir/new"
if is_no_metafile "$a/dir/new"; then fail 'a new file has no metafile after the attribute was unset'; fi
is_no_metafile "$b/dir/m100"

section 'no leftovers'
rm -rf "$a"/*
is "$(find "$b" -mindepth 1 | wc -l)" 0
umount "$a" "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
echo 'no-metafile-test: passed'

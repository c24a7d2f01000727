#!/bin/bash
# bare-test.sh: no-metafile files (docs/small-files.md) on a mount: ownership, refused operations,
# common tools, conversion to ordinary files when they leave their directory, and no leftovers after
# servers are killed.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
conformance=$(realpath "${BUILD:-target/release}/espalier-conformance")
work=$(mktemp -d)
chmod 755 "$work" # others look into the mounts, too
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

# is_bare FILE: succeeds if the file has no metafile.
is_bare() {
    grep -qx 'no_metafile = true' <<< "$("$bin" layout "$1")"
}
# as USER COMMAND...
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
mkdir "$a/bare" "$a/other"
setfattr -n user.espalier.no_metafile -v 1 "$a/bare"
is "$(getfattr --only-values -n user.espalier.no_metafile "$b/bare")" true
refused 'true or false' "$bin" policy "$a/bare" --set no_metafile=2
mkdir "$a/bare/below"
chown 1000:1001 "$a/bare"
chmod 2775 "$a/bare"
(umask 077 && echo hello > "$a/bare/file")
is_bare "$a/bare/file"
is "$(stat -c '%u %g %a %s %h' "$b/bare/file")" '1000 1001 664 6 1'
is "$(find "$cluster"/server-*/data/streams -type f | wc -l)" 1
echo below > "$a/bare/below/file"
is_bare "$b/bare/below/file"
as 1002 cat "$b/bare/file" > /dev/null
refused denied as 1002 bash -c "echo more >> '$b/bare/file'"
# Both mounts show the change at once, regardless of their caches.
stat "$a/bare/file" "$b/bare/file" > /dev/null
chmod 700 "$a/bare"
is "$(stat -c %a "$a/bare/file" "$b/bare/file" | tr '\n' ' ')" '600 600 '
chmod 751 "$a/bare"
refused denied as 1002 cat "$b/bare/file"
setfacl -m u:1002:rwx "$a/bare"
is "$(stat -c %a "$b/bare/file")" 640
setfacl -b "$a/bare"
chmod 755 "$a/bare"

section 'refused operations'
for change in 'chmod 600' 'chown 0' 'chgrp 0' 'setfattr -n user.x -v y' 'setfacl -m u:1002:r'; do
    refused 'not permitted' $change "$b/bare/file"
done
refused 'not permitted' ln "$b/bare/file" "$b/bare/linked"
refused 'not permitted' ln "$b/bare/file" "$b/other/linked"
chmod 644 "$b/bare/file"
chown 1000:1001 "$b/bare/file"
is_bare "$b/bare/file"

section 'common tools'
touch -d @1000000000 "$a/bare/file"
: > "$a/bare/empty"
touch -d @1100000000 "$a/bare/empty"
is "$(stat -c '%Y %X' "$b/bare/file" "$b/bare/empty" | tr '\n' ' ')" '1000000000 1000000000 1100000000 1100000000 '
as 1000 cp -p "$b/bare/file" "$b/bare/copied"
cmp "$a/bare/file" "$a/bare/copied"
is "$(stat -c %Y "$a/bare/copied")" 1000000000
tar -C "$a/bare" -cf "$work/tar" file empty
tar -C "$b/bare/below" --no-same-owner --no-same-permissions -xf "$work/tar"
is "$(stat -c '%Y %s' "$a/bare/below/empty")" '1100000000 0'
is_bare "$a/bare/below/empty"
head -c 3000000 /dev/urandom > "$work/bytes"
cp "$work/bytes" "$a/bare/big"
cmp "$work/bytes" "$b/bare/big"
printf more >> "$b/bare/big"
is "$(tail -c 4 "$a/bare/big")" more
truncate -s 100 "$a/bare/big"
is "$(stat -c %s "$b/bare/big")" 100
fallocate -l 70000 "$b/bare/big"
is "$(stat -c %s "$a/bare/big")" 70000
is "$(find "$b/bare" -maxdepth 1 -type f -size +0 | wc -l)" 3
# `below` may be at the other rank, which reports its usage with a delay.
counted() { [ "$(getfattr --only-values -n user.espalier.rfiles "$a/bare")" = 6 ]; }
until_true counted

section 'rename, and removal while open'
mv "$a/bare/copied" "$a/bare/renamed"
mv "$a/bare/renamed" "$a/bare/empty"
is_bare "$b/bare/empty"
is "$(cat "$b/bare/empty")" hello
mv "$b/bare/empty" "$b/other/whole"
if is_bare "$a/other/whole"; then fail 'it has left its directory'; fi
is "$(stat -c '%u %g %a %s %Y' "$a/other/whole")" '1000 1001 644 6 1000000000'
chmod 600 "$a/other/whole"
ln "$a/other/whole" "$a/bare/linked"
is "$(stat -c '%a %h' "$b/bare/linked")" '600 2'
exec 9<> "$a/bare/big"
rm "$b/bare/big"
echo still >&9
is "$(stat -c '%u %a %h' -L /proc/self/fd/9)" '1000 644 0'
exec 9>&-

section 'POSIX, but for what is their directory'"'"'s to say'
mkdir "$a/posix"
"$bin" policy "$a/posix" --set no_metafile=true
chmod 777 "$a/posix"
"$conformance" "$a/posix" > "$work/conformance" || true
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
writer "$a/bare" "$b/bare" & writers=$!
writer "$b/bare/below" "$a/bare/below" & writers+=" $!"
for victim in 0 1 2; do
    sleep 1
    kill_server "$victim"
    sleep 0.3
    up
done
for writer in $writers; do wait "$writer" || fail 'what was written was not there'; done
is "$(find "$a" -name 'm*' | wc -l)" 40
is_bare "$a/bare/m100"

section 'remove a data server'
umount "$a" "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
for rank in 0 1; do
    sed -i '/^\[\[data\]\]/{n;s/^number = 2$/&\ndrain = true/}' "$cluster/server-$rank/server.toml"
done
said=$("$bin" cluster drain "$cluster" --server 2)
[[ $said = 'moved '[1-9]* ]] || fail "nothing is moved: $said"
is "$(find "$cluster/server-2/data/streams" -type f | wc -l)" 0
"$bin" cluster fsck "$cluster"
up
mount_both
is "$(cat "$a/bare/m100") $(cat "$b/bare/below/m200")" '100 200'
is_bare "$a/bare/m100"

section 'unset the policy attribute'
"$bin" policy "$a/bare" --unset no_metafile
: > "$a/bare/new"
if is_bare "$a/bare/new"; then fail 'the setting is gone'; fi
is_bare "$b/bare/m100"

section 'no leftovers'
rm -rf "$a"/*
is "$(find "$b" -mindepth 1 | wc -l)" 0
umount "$a" "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
echo 'bare-test: passed'

#!/bin/bash
# small-files-test.sh: all techniques of creating small files on data servers behave equally, in any
# combination and while servers are killed, and leave no unreferenced files.
#
# SOAK=1 runs pjdfstest and all conformance cases under every technique, instead of the two most
# different ones, and the cases that create hundreds of files.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
export BUILD
bin=$BUILD/espalier
conformance=$BUILD/espalier-conformance
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

# Succeeds if a data server's journal has the creation of this datafile: a single one, or with the
# next number as part of a pool.
read -r -d '' was_created << 'END' || true
BEGIN { $number = shift; $own = pack("Q<", $number); $next = pack("Q<", $number + 1) }
exit(index($_, "+$own") < 0 && index($_, "$own$next") < 0)
END

# datafiles_of FILE: its number of datafiles, including empty ones.
datafiles_of() {
    local number server count=0
    number=$(stat -c %i "$1")
    for server in "$cluster"/server-*/data; do
        if [ -n "$(find "$server/streams" -type f -name "$(printf %x "$number")")" ] \
            || perl -0777 -ne "$was_created" "$number" "$server/journal"; then
            count=$((count + 1))
        fi
    done
    echo $count
}

section 'make a cluster of three servers'
"$bin" cluster init "$cluster" --servers 3 --listen 127.0.0.1:17570 --label tested > /dev/null
up
url=espalier://127.0.0.1:17570/
credentials=$cluster/clients/admin
for mount in "$a" "$b"; do
    "$bin" mount "$url" "$mount" -o "allow_other,credentials=$credentials" --log-file "$mount.log"
done

section 'policies of directories determine how files are created'
mkdir "$a/stuffed" "$a/striped" "$a/precreated" "$a/client" "$a/baseline" "$a/announced"
"$bin" policy "$a/striped" --set stuffing=false
"$bin" policy "$a/precreated" --set stuffing=false --set precreation=true
# Created by clients as in PVFS: with stuffing, and without any optimisation.
"$bin" policy "$a/client" --set create=client
"$bin" policy "$a/baseline" --set create=client --set stuffing=false
"$bin" policy "$a/announced" --set eager=false
refused 'true or false' "$bin" policy "$a/striped" --set stuffing=perhaps
: > "$a/precreated/first"
is "$(datafiles_of "$a/precreated/first")" 0
# The first create starts the filling of the pool of precreated datafiles.
pooled() {
    : > "$a/precreated/pooled"
    [ "$(datafiles_of "$a/precreated/pooled")" = 3 ] || { rm "$a/precreated/pooled"; false; }
}
until_true pooled
touch -d @1000000000 "$a/precreated/pooled"
is "$(stat -c '%s %Y' "$b/precreated/pooled")" '0 1000000000'
for dir in stuffed striped precreated client baseline announced; do
    : > "$a/$dir/empty"
    [ $(($(date +%s) - $(stat -c %Y "$b/$dir/empty"))) -lt 100 ] || fail 'the mtime of a new file is old'
    for n in $(seq 100); do echo "$dir $n" > "$a/$dir/$n"; done
    is "$(cat "$b/$dir/77")" "$dir 77"
    echo more >> "$b/$dir/77"
    is "$(wc -l < "$a/$dir/77")" 2
done
is "$(datafiles_of "$a/stuffed/1") $(datafiles_of "$a/striped/1") $(datafiles_of "$a/precreated/1")" '0 1 3'
is "$(datafiles_of "$a/client/1") $(datafiles_of "$a/baseline/1")" '0 3'
# A file keeps its layout when it is renamed or linked to other directories.
mv "$a/striped/1" "$a/stuffed/moved"
ln "$a/stuffed/moved" "$a/precreated/linked"
is "$(cat "$b/precreated/linked")" 'striped 1'

section 'POSIX'
mapfile -t cases < <(without_large_cases "$conformance")
whole='precreated baseline'
if [ -n "${SOAK:-}" ]; then
    whole='striped precreated client baseline announced'
else
    # Hundreds of creates at half a second each without optimisations; other tests have them on other mounts.
    mapfile -t cases < <(printf '%s\n' "${cases[@]}" | grep -Ev 'many_small_files|_while_|same_names|outlive_the_cache')
fi
for dir in $whole; do
    mkdir "$a/$dir/conformance"
    "$conformance" "$a/$dir/conformance" "${cases[@]}" > "$work/conformance" || true
    # The open sets the access time of a file on data servers (docs/semantics.md).
    failed=$(grep FAILED "$work/conformance" | grep -v relatime || true)
    [ -z "$failed" ] || fail "not POSIX: $dir: $failed"
    tail -n 1 "$work/conformance"
done

pjdfstest() {
    for dir in "$@"; do
        mkdir "$a/$dir/pjdfstest"
        echo "pjdfstest: $dir"
        scripts/pjdfstest.sh "$a/$dir/pjdfstest" "$work/second" > "$work/pjdfstest" || fail "not POSIX: $dir: $(cat "$work/pjdfstest")"
        cat "$work/pjdfstest"
        rm -rf "$a/$dir/pjdfstest"
    done
}
# settings LINE...: restarts all servers with these settings.
settings() {
    local server
    "$bin" cluster down "$cluster" > /dev/null
    for server in "$cluster"/server-*/server.toml; do
        [ -e "$server.before" ] || cp "$server" "$server.before"
        { printf '%s\n' "$@"; grep -Ev '^(sync|high_watermark|eager_bytes) =' "$server.before"; } > "$server"
    done
    up
}
mkdir "$work/second"
# Files of precreated datafiles, with all of the paper's optimisations; then files that clients
# create, with none of them, on servers that sync each change before the reply.
pjdfstest precreated
[ -z "${SOAK:-}" ] || pjdfstest stuffed striped client baseline announced
settings 'sync = true' 'high_watermark = 1' 'eager_bytes = 0'
pjdfstest baseline
if [ -n "${SOAK:-}" ]; then
    settings 'sync = true'
    "$bin" policy "$a/client" --set coalescing=false
    pjdfstest client stuffed
fi
settings 'sync = false'

section 'kill servers under load'
# Reads each file at the other mount, and removes most of them.
writer() {
    local dir=$1 other=$2 n
    for n in $(seq 300); do
        echo "$n" > "$dir/w$n"
        [ "$(cat "$other/w$n")" = "$n" ] || return 1
        [ $((n % 10)) = 0 ] || rm "$other/w$n"
    done
}
writers=
for dir in striped precreated client baseline announced; do
    writer "$a/$dir" "$b/$dir" & writers+=" $!"
done
for victim in 0 1 0 2; do
    sleep 1
    kill_server "$victim"
    sleep 0.3
    up
    # Changes the policy of new files while earlier ones are written and read.
    eager=$([ "${eager:-false}" = true ] && echo false || echo true)
    "$bin" policy "$a/announced" --set "eager=$eager"
done
for writer in $writers; do wait "$writer" || fail 'a file that was written is missing or has wrong contents'; done
is "$(find "$a" -name 'w*' | wc -l)" 150

section 'no leftovers'
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
up
rm -rf "$a"/*
is "$(find "$b" -mindepth 1 | wc -l)" 0
umount "$a"
umount "$b"
"$bin" cluster down "$cluster" > /dev/null
"$bin" cluster fsck "$cluster"
echo 'small-files-test: passed'

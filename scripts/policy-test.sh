#!/bin/bash
# policy-test.sh: policies of directories on a mount without servers: defaults, setting,
# inheritance, copies, persistence across kills, and refusals. cluster-data-test.sh tests their
# effect on data servers.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
store=$work/store mnt=$work/mnt
chmod 755 "$work" # other users access the mount
mkdir "$mnt"
cleanup() {
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "policy-test: $*" >&2
    exit 1
}

# refused TEXT COMMAND...: the command fails and prints TEXT.
refused() {
    local text=$1
    shift
    if "$@" > "$work/said" 2>&1; then fail "$* succeeds"; fi
    grep -qF -- "$text" "$work/said" || fail "$* does not print '$text': $(cat "$work/said")"
}

# is FOUND EXPECTED: checks that both are equal.
is() {
    [ "$1" = "$2" ] || fail "'$1' instead of '$2'"
}

# policy DIR KEY: "policy" prints the attributes set on DIR, "effective" the effective ones.
policy() {
    "$bin" policy "$1" --json | jq -c ".$2"
}

printf 'num_dfiles = 4\ndist_name = "simple_stripe"\n' > "$work/default.toml"
printf 'num_dfiles = 4\nstrip = "64K"\n' > "$work/wrong.toml"
"$bin" mkfs --journal 4M "$store" > /dev/null
refused 'there is no setting `strip`' "$bin" mount "$store" "$mnt" -o "policy=$work/wrong.toml"
refused 'cannot read' "$bin" mount "$store" "$mnt" -o "policy=$work/none.toml"
"$bin" mount "$store" "$mnt" -o "policy=$work/default.toml"

mkdir "$mnt/dir"
is "$(policy "$mnt/dir" policy)" '{}'
is "$(policy "$mnt/dir" effective)" '{"dist_name":"simple_stripe","num_dfiles":4}'
"$bin" policy "$mnt/dir" --set num_dfiles=2 --set dist_params=strip_size:1M
own='{"dist_params":"strip_size:1M","num_dfiles":2}'
mkdir -p "$mnt/dir/a/b"
is "$(policy "$mnt/dir/a/b" policy)" "$own"
cp -a "$mnt/dir/a" "$mnt/copied"
"$bin" cp -a "$mnt/dir/a" "$mnt/cloned"
is "$(policy "$mnt/copied/b" policy)" "$own"
is "$(policy "$mnt/cloned/b" policy)" "$own"
"$bin" cp -r "$mnt/dir/a" "$mnt/plain"
is "$(policy "$mnt/plain/b" policy)" '{}'
# `eager` affects messages only; without servers it is set, copied and shown.
"$bin" policy "$mnt/copied" --set eager=false
is "$(policy "$mnt/copied" policy)" '{"dist_params":"strip_size:1M","eager":false,"num_dfiles":2}'
echo short > "$mnt/copied/file"
is "$(cat "$mnt/copied/file")" short
"$bin" policy "$mnt/dir/a" --set dist_name=basic --unset dist_params
is "$(policy "$mnt/dir/a" policy)" '{"dist_name":"basic","num_dfiles":2}'
grep -q '^dist_name  *basic  *set here' <<< "$("$bin" policy "$mnt/dir/a")"
echo bytes > "$mnt/dir/file"
is "$("$bin" layout "$mnt/dir/file")" 'place = "metadata"'
is "$(getfattr -d -m - "$mnt/dir/file")" ''

refused 'dist_params `strip_size:1M` do not go with dist_name basic' "$bin" policy "$mnt/dir/a" --set dist_params=strip_size:1M
refused 'is no directory' "$bin" policy "$mnt/dir/file"
refused 'is no file' "$bin" layout "$mnt/dir"
refused 'not in a mounted Espalier file system' "$bin" policy "$work"
refused 'Invalid argument' setfattr -n user.espalier.num_dfiles -v 2 "$mnt/dir/file"
grep -q 'only directories have policies' "$store/log" || fail 'the log has no reason for the refusal'
refused 'you may not change the policy' setpriv --reuid 1234 --clear-groups "$bin" policy "$mnt/dir" --unset num_dfiles

# Levels that directories below may weaken.
mkdir "$mnt/projects"
chmod 1777 "$mnt/projects"
printf 'durability = "local"\nrelax = ["consistency"]\n' > "$work/level.toml"
"$bin" policy "$mnt/projects" --file "$work/level.toml"
is "$(policy "$mnt/projects" policy)" '{"durability":"local","relax":"consistency"}'
as_user() { setpriv --reuid 1234 --clear-groups "$@"; }
as_user mkdir "$mnt/projects/user"
bound='durability:local;allocated_inodes:16777216;interfere:block;relax:consistency'
is "$(getfattr -n user.espalier.bound --only-values "$mnt/projects/user" 2> /dev/null)" "$bound"
as_user "$bin" policy "$mnt/projects/user" --set consistency=invisible
refused 'allows no weaker level than durability:local' as_user "$bin" policy "$mnt/projects/user" --set durability=none
as_user mkdir "$mnt/projects/user/below"
printf 'consistency = "weak"\ndurability = "local"\nrelax = "none"\n' > "$work/level.toml"
as_user "$bin" policy "$mnt/projects/user/below" --file "$work/level.toml"
is "$(getfattr -n user.espalier.bound --only-values "$mnt/projects/user/below" 2> /dev/null)" "$bound"
mkdir "$mnt/free"
chown 1234 "$mnt/free"
"$bin" policy "$mnt/free" --set durability=none
mkdir "$mnt/free/sub"
chown 1234 "$mnt/free/sub"
as_user "$bin" cp -a "$mnt/free" "$mnt/projects/copied"
for dir in "$mnt/projects/copied" "$mnt/projects/copied/sub"; do
    is "$(policy "$dir" effective.durability)" '"local"'
    is "$(getfattr -n user.espalier.bound --only-values "$dir" 2> /dev/null)" "$bound"
done
rm -r "$mnt/projects" "$mnt/free"

sync "$mnt/dir/file"
pid=$("$bin" status "$mnt" --json | jq .pid)
kill -9 "$pid"
umount -l "$mnt"
"$bin" mount "$store" "$mnt"
is "$(policy "$mnt/dir" effective)" '{"dist_name":"simple_stripe","dist_params":"strip_size:1M","num_dfiles":2}'
"$bin" policy "$mnt/dir" --file /dev/null
is "$(policy "$mnt/dir" effective)" '{}'
"$bin" umount "$mnt"
"$bin" fsck "$store" > /dev/null
echo 'policy-test: passed'

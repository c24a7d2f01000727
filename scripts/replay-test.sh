#!/bin/bash
# replay-test.sh: replays of strace logs and of recordings of a mount have the recorded results in
# virtual time.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/section-functions.sh
bin=$(realpath "${ESPALIER:-${BUILD:-target/release}/espalier}")
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt" "$work/dir"
cleanup() {
    "$bin" umount --force "$mnt" 2> /dev/null || umount -l "$mnt" 2> /dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() {
    echo "replay-test: $*" >&2
    exit 1
}

# Uses existing and new files, by several concurrent processes.
cat > "$work/program" << 'PROGRAM'
set -e
cd "$1"
mkdir new new/deep
for i in 1 2 3 4; do (for j in 1 2 3 4 5; do echo "$i $j" > "new/$i.$j"; done) & done
wait
cat old/file new/?.? | sort > new/deep/sorted
ln new/1.1 old/hard
ln -s ../old/file new/soft
cat new/soft > /dev/null
mv old/moved new/moved
ls -lR . > /dev/null
find . -name '*.3' -exec rm {} +
cp -a new copied
chmod 700 copied
! rmdir copied 2> /dev/null
! mkdir old 2> /dev/null
! cat none 2> /dev/null
head -c 300000 /dev/zero > big
tar -cf archive copied big
rm -r copied
mkdir unpacked
tar -xf archive -C unpacked
PROGRAM
old() {
    mkdir "$1/old"
    echo 'some bytes' > "$1/old/file"
    mkdir "$1/old/moved"
    touch "$1/old/moved/file"
}

section 'a strace log'
old "$work/dir"
strace -f -ttt -T -y -o "$work/log" bash "$work/program" "$work/dir"
"$bin" sim --trace "$work/log" --trace-root "$work/dir" > "$work/output" || fail "$(cat "$work/output")"
grep -q 'create' "$work/output" || fail 'nothing was replayed'

section 'a recording of a mount'
"$bin" mkfs "$work/store" > /dev/null
"$bin" mount "$work/store" "$mnt"
old "$mnt"
"$bin" umount "$mnt"
"$bin" mount --record "$work/recording" "$work/store" "$mnt"
bash "$work/program" "$mnt"
"$bin" umount "$mnt"
"$bin" sim --trace "$work/recording" > "$work/output" || fail "$(cat "$work/output")"
grep -q 'create' "$work/output" || fail 'nothing was replayed'

section 'a difference is reported'
grep -v '"name":"unpacked"' "$work/recording" > "$work/modified"
if "$bin" sim --trace "$work/modified" > "$work/output"; then fail 'the replay of a modified recording reports no difference'; fi
grep -q '^line' "$work/output" || fail "the replay does not print the recording's line"

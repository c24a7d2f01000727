#!/bin/sh
# run.sh DATA MNT: create a file system in DATA unless there is one, and mount it on MNT until Ctrl-C.
set -eu
data=$1
mnt=$2
bin=${BIN:-target/release/espalier}
# Where the last one was killed, nobody can even look at the directory.
stat "$mnt" > /dev/null 2>&1 || "$bin" umount --force "$mnt" > /dev/null 2>&1 || true
mkdir -p "$data" "$mnt"
# An empty directory is no store yet; anything else is for the program to judge.
if [ -z "$(ls -A "$data")" ]; then
    "$bin" mkfs "$data"
fi
cat <<EOF

  $(realpath "$mnt") is an Espalier file system, stored in $(realpath "$data").
  Use it like any directory, from another terminal:   cd $(realpath "$mnt")
  What it is doing:                                   $bin status $mnt
  Stop it with Ctrl-C here, or:                       $bin umount $mnt

EOF
exec "$bin" mount --foreground "$data" "$mnt"

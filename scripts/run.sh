#!/bin/sh
# run.sh DATA MNT: create a file system in DATA unless there is one, and mount it on MNT until Ctrl-C.
set -eu
data=$1
mnt=$2
bin=${BIN:-target/release/espalier}
mkdir -p "$data"
# Where the last mount was killed nobody can look at the directory; the program clears that away, and says what else is wrong.
mkdir -p "$mnt" 2> /dev/null || true
# An empty directory is no store yet; anything else is for the program to judge.
if [ -z "$(ls -A "$data")" ]; then
    "$bin" mkfs "$data"
fi
cat <<EOF

  $(realpath -ms "$mnt") is an Espalier file system, stored in $(realpath "$data").
  Use it like any directory, from another terminal:   cd $(realpath -ms "$mnt")
  What it is doing:                                   $bin status $mnt
  Stop it with Ctrl-C here, or:                       $bin umount $mnt

EOF
exec "$bin" mount --foreground "$data" "$mnt"

#!/bin/sh
# run.sh DATA MNT: makes a file system in DATA unless there is one, and mounts it on MNT until
# Ctrl-C.
set -eu
data=$1
mnt=$2
bin=${BIN:-target/release/espalier}
mkdir -p "$data"
# The mount point of a killed mount is inaccessible; the program detaches the dead mount and reports
# other problems.
mkdir -p "$mnt" 2> /dev/null || true
# An empty directory is not a store; the program checks anything else.
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

#!/bin/sh
# run.sh STORE MNT: makes a file system in STORE, a directory or rados:POOL/NAMESPACE, unless there
# is one, and mounts it on MNT until Ctrl-C.
set -eu
store=$1
mnt=$2
bin=${BIN:-target/release/espalier}
# The mount point of a killed mount is inaccessible; the program detaches the dead mount and reports
# other problems.
mkdir -p "$mnt" 2> /dev/null || true
case $store in
rados:*)
    "$bin" status "$store" > /dev/null 2>&1 || "$bin" mkfs "$store"
    name=$store
    ;;
*)
    # An empty directory is not a store; the program checks anything else.
    mkdir -p "$store"
    [ -n "$(ls -A "$store")" ] || "$bin" mkfs "$store"
    name=$(realpath "$store")
    ;;
esac
cat <<EOF

  $(realpath -ms "$mnt") is an Espalier file system, stored in $name.
  Use it like any directory, from another terminal:   cd $(realpath -ms "$mnt")
  What it is doing:                                   $bin status $mnt
  Stop it with Ctrl-C here, or:                       $bin umount $mnt

EOF
exec "$bin" mount --foreground "$store" "$mnt"

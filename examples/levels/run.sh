#!/bin/bash
# run.sh MOUNT [OTHER-MOUNT]: subtrees with the semantics of five systems side by side in one tree
# (sevilla, Fig. 6.1). A program makes files in each; then the listing of OTHER-MOUNT, a second mount
# of the same servers, shows what others see.
set -euo pipefail
mount=$(realpath "$1")
other=$(realpath "${2:-$1}")
here=$(dirname "$(realpath "$0")")
espalier=${ESPALIER:-espalier}

for system in posix hdfs batchfs deltafs ramdisk; do
    mkdir "$mount/$system"
    "$espalier" policy "$mount/$system" --file "$here/$system.toml"
done

# make DIR: the program; three files.
make() {
    for number in 1 2 3; do echo "result $number" > "$1/file$number"; done
}
export -f make

# Readers follow a file of the HDFS subtree while it is written.
{
    echo begun
    until_read=$(head -n 1 "$other/hdfs/log")
    echo "a reader has seen: $until_read" >&2
    echo ended
} > "$mount/hdfs/log"

for system in posix hdfs batchfs deltafs ramdisk; do
    "$espalier" decouple "$mount/$system" -- bash -c 'make "$0"' "$mount/$system"
done

for system in posix hdfs batchfs deltafs ramdisk; do
    echo "$system: $(ls "$other/$system" | xargs)"
done

# The user of the DeltaFS subtree wants its results; those of the RAMDisk are given up.
"$espalier" merge "$mount/deltafs"
"$espalier" merge --abort "$mount/ramdisk" > /dev/null
echo "deltafs, merged: $(ls "$other/deltafs" | xargs)"

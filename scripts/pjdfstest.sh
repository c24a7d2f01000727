#!/bin/bash
# pjdfstest.sh DIR SECOND: runs all of pjdfstest in DIR, with another file system at SECOND for
# EXDEV.
#
# All features that Linux has are enabled; the others need chflags, birth times in stat or NFSv4
# ACLs, which only BSDs have. No case is excluded or expected to fail. The run takes a few seconds.
set -euo pipefail
version=0.2.2
dir=$1
second=$2
tools=$(realpath -m "${BUILD:-target/release}")/tools

# The first of several concurrent runs installs the program.
mkdir -p "$tools"
exec 6> "$tools/lock"
flock 6
if ! grep -qx "pjdfstest $version" <<< "$("$tools/bin/pjdfstest" --version 2> /dev/null)"; then
    cargo install --quiet --locked --version "$version" pjdfstest --root "$tools"
fi
exec 6>&-

config() { # allow_remount: true or false
    cat <<EOF
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
# Longer than a tick of the kernel's coarse clock, which stamps files: 10 ms at 100 Hz.
naptime = 0.02
allow_remount = $1
[dummy_auth]
# The user's primary group; on Debian nobody's is "nogroup".
entries = [["nobody", "$(id -gn nobody)"], ["tests", "$(id -gn tests)"]]
EOF
}

run() { # name, patterns
    local log=$scratch/$1.log
    shift
    "$tools/bin/pjdfstest" -c "$scratch/config.toml" -p "$dir" -s "$second" "$@" > "$log" 2>&1 || {
        grep -A3 -e FAILED -e UNEXPECTEDLY "$log" || tail -20 "$log"
        grep Summary "$log" || true
        exit 1
    }
    grep Summary "$log"
    # Only these may be skipped: the 13 erofs cases, which run separately, and link_count_max, which
    # skips itself because glibc knows LINK_MAX of few file systems only (the conformance case
    # links::max_links covers it).
    if grep skipped "$log" | grep -v -e Summary -e erofs -e link::link_count_max; then
        echo 'pjdfstest: skipped the above' >&2
        exit 1
    fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The erofs cases remount DIR's file system read-only. Earlier cases of the same process leave files
# open for writing, which makes any file system refuse that with EBUSY, so these cases run in a
# separate process.
config false > "$scratch/config.toml"
NO_COLOR=1 run all
config true > "$scratch/config.toml"
if mountpoint -q "$dir"; then
    NO_COLOR=1 run erofs erofs
else
    echo "pjdfstest: erofs cases skipped, because $dir is no mount point"
fi

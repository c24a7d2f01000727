#!/bin/bash
# setup.sh run|test|bench: installs missing packages, or prints the names of those that it cannot
# install.
set -euo pipefail

need() { # package, then commands or files of it
    local package=$1 sign
    shift
    for sign in "$@"; do
        case $sign in
        /*) compgen -G "$sign" > /dev/null || missing+=("$package") ;;
        *) PATH=$PATH:/sbin:/usr/sbin command -v "$sign" > /dev/null || missing+=("$package") ;;
        esac
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        echo "setup: needs root for: $*" >&2
        exit 1
    fi
}

missing=()
if ! command -v cargo > /dev/null; then
    echo 'setup: no cargo. Install Rust from https://rustup.rs; rust-toolchain.toml picks the version.' >&2
    exit 1
fi
need fuse3 fusermount3
need g++ c++
need gcc cc
if [ "${1:-run}" = test ]; then
    need acl setfacl
    need attr setfattr
    need curl curl
    need strace strace
    need e2fsprogs mkfs.ext4
    need libacl1-dev '/usr/include/sys/acl.h'
    need e2fsprogs mkfs.ext4
    need git git
    need jq jq
    need make make
    need mount losetup
    need perl-base perl
    need postgresql '/usr/lib/postgresql/*/bin/initdb'
    need rsync rsync
    need sqlite3 sqlite3
fi
if [ "${1:-run}" = bench ]; then
    need e2fsprogs mkfs.ext4
    need findutils find
    need git git
    need jq jq
    need mount losetup
    need perl-base perl
    need tar tar
fi
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get > /dev/null; then
        echo "setup: please install: ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    if ! as_root apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null; then
        as_root apt-get update > /dev/null
        as_root apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null
    fi
    echo "setup: installed ${missing[*]}"
fi

# Ceph is large and not packaged everywhere: scripts/rados-test.sh is skipped without it, and so is
# the comparison with CephFS.
wants_ceph() { [ "${1:-run}" = test ] || { [ "${1:-run}" = bench ] && [[ " ${PARTS:-} " = *" rados "* ]]; }; }
if wants_ceph "$@"; then
    missing=()
    need ceph-mon ceph-mon
    need ceph-osd ceph-osd
    need ceph-common ceph rados
    if [ "${1:-run}" = bench ]; then
        need ceph-mds ceph-mds
        need ceph-fuse ceph-fuse
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        if as_root apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null 2>&1; then
            echo "setup: installed ${missing[*]}"
        else
            echo "setup: cannot install ${missing[*]}: what needs a RADOS cluster is skipped"
        fi
    fi
fi

if [ ! -e /dev/fuse ]; then
    as_root modprobe fuse || {
        echo 'setup: no /dev/fuse and the module cannot be loaded; a container needs --device /dev/fuse' >&2
        exit 1
    }
fi

# pjdfstest uses two users, each with its primary group.
if [ "${1:-run}" = test ]; then
    getent passwd nobody > /dev/null || as_root useradd -r -M -d / -s /usr/sbin/nologin nobody
    getent passwd tests > /dev/null || as_root useradd -r -M -U -d / -s /usr/sbin/nologin tests
fi

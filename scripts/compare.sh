#!/bin/bash
# compare.sh SIDE SIDE [OPTION...]: compares two builds of the program, or two ways to mount, by
# alternating runs of `espalier bench SIDE SIDE OPTION...`.
#
# A side is a program, which serves a cluster and mounts it, or `embedded:` and a program, which
# mounts a store without servers. So `compare.sh NEW OLD --phases big` compares builds, and
# `compare.sh NEW embedded:NEW` measures the ratio to an embedded mount in docs/performance.md.
# SERVERS= number of servers (1), RANKS= number of these that share the tree (1), TLS=1 use TLS,
# TMPDIR= disk for the stores, BENCH= program that runs `bench` (the first side's).
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,/^set/{/^#/p}' "$0" >&2
    exit 2
fi
sides=("$1" "$2")
shift 2
work=$(mktemp -d)
bench=${BENCH:-${sides[0]#embedded:}}
cleanup() {
    for n in 0 1; do
        local bin=${sides[n]#embedded:}
        ! mountpoint -q "$work/$n/mnt" || "$bin" umount "$work/$n/mnt" || umount -l "$work/$n/mnt" || true
        [ ! -e "$work/$n/cluster" ] || "$bin" cluster down "$work/$n/cluster" > /dev/null || true
    done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

for n in 0 1; do
    side=${sides[n]} mnt=$work/$n/mnt
    mkdir -p "$mnt"
    case $side in
    embedded:*)
        bin=${side#embedded:}
        "$bin" mkfs "$work/$n/store" > /dev/null
        "$bin" mount "$work/$n/store" "$mnt"
        ;;
    *)
        listen=127.0.0.1:$((23440 + n * 100)) cluster=$work/$n/cluster
        insecure=(--insecure)
        [ -z "${TLS:-}" ] || insecure=()
        "$side" cluster init "$cluster" --servers "${SERVERS:-1}" --ranks "${RANKS:-1}" --listen "$listen" "${insecure[@]}" > /dev/null
        "$side" cluster up "$cluster" > /dev/null
        if [ -n "${TLS:-}" ]; then
            "$side" mount "espalier://$listen/" "$mnt" -o "credentials=$cluster/clients/admin"
        else
            "$side" mount "espalier://$listen/" "$mnt" -o insecure
        fi
        ;;
    esac
done
"$bench" bench "$work/0/mnt" "$work/1/mnt" "$@"

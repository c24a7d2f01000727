#!/bin/bash
# mount-tests.sh: runs the tests on mounts, and the command in UNIT=, in parallel.
#
# ONLY="local cluster" selects parts; parts of scripts/local-test.sh can be selected too ("model").
# LANES=3 is the number of parts that run at a time. Most of a part's time is waits: for disks,
# restarted servers and the expiry of leases.
# UNIT="cargo test --workspace" adds this command as a part.
# TARGET_DIR=/some/dir tests another file system, such as ext4, in that directory instead.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=$(realpath "${BUILD:-target/release}")
export BUILD # the programs' directory
local_parts='pjdfstest conformance model first-hour bench helpers'
all="local powerloss ranks small cluster data no-metafile bulk decouple failing slow subtree grow usage repair dump cluster-dump kill full memory metrics policy replay shared-log migrate rados failover"
only=${ONLY:-$all}
[ -z "${UNIT:-}" ] || only="unit $only"

if [ "$(id -u)" != 0 ]; then
    echo 'mount-tests: must run as root: other users, device nodes and trusted.* need it' >&2
    exit 1
fi
if [ -n "${TARGET_DIR:-}" ]; then
    ONLY=${ONLY:-$local_parts} exec scripts/local-test.sh
fi

work=$(mktemp -d)
# mount(8) finds the program by this name; remounting needs it too.
helper=/sbin/mount.fuse.espalier
if [ -e "$helper" ]; then helper=; else ln -sfn "$BUILD/espalier" "$helper"; fi
cleanup() {
    [ -z "$helper" ] || rm -f "$helper"
    rm -rf "$work"
}
trap cleanup EXIT

# Selected parts of local-test.sh.
named=
for part in $local_parts; do
    case " $only " in *" $part "* | *" local "*) named+="$part " ;; esac
done
[ -z "$named" ] || only+=' local'

# The output of a part is printed at its end. A part that fails beside others is repeated by itself at the
# end, since some depend on time limits; one that fails then, too, fails the run.
run_part() {
    local name=$1 result=0 log=$work/$1.log
    shift
    "$@" > "$log" 2>&1 < /dev/null || result=1
    echo "== $name ($SECONDS s; $(($(date +%s) - started)) s since the start)"
    sed 's/^/    /' "$log"
    [ "$result" = 0 ] || { echo "== $name failed"; echo "$name $(printf '%q ' "$@")" >> "$work/failed"; }
    return "$result"
}
export -f run_part
export work
: > "$work/failed"
started=$(date +%s)
export started
# The longest parts first. Each part has its own ports: 127.0.0.1:17440 to 17879, in tens.
while read -r name command; do
    case " $only " in *" $name "*) echo "$name $command" ;; esac
done << PARTS | xargs -r -P "${LANES:-3}" -L 1 bash -c 'run_part "$@" || true' run_part
unit nice ${UNIT:-}
powerloss scripts/powerloss-test.sh
ranks scripts/cluster-ranks-test.sh
cluster scripts/cluster-test.sh
small scripts/small-files-test.sh
local env "ONLY=$named" scripts/local-test.sh
data scripts/cluster-data-test.sh
no-metafile scripts/no-metafile-test.sh
bulk scripts/bulk-test.sh
decouple scripts/decouple-test.sh
failing scripts/failing-test.sh
slow scripts/slow-disk-test.sh
subtree scripts/subtree-test.sh
grow scripts/grow-test.sh
usage scripts/usage-test.sh
repair scripts/repair-test.sh
dump scripts/dump-test.sh
cluster-dump scripts/cluster-dump-test.sh
kill scripts/kill-test.sh
full scripts/full-test.sh
memory scripts/memory-test.sh
metrics scripts/metrics-test.sh
policy scripts/policy-test.sh
replay scripts/replay-test.sh
shared-log scripts/shared-log-test.sh
migrate scripts/migrate-test.sh
rados scripts/rados-test.sh
failover scripts/failover-test.sh
PARTS
while read -r name command <&3; do
    echo "== $name fails beside others: again, by itself"
    eval "run_part $name $command" || { tail -n 12 "$work/$name.log"; exit 1; }
done 3< "$work/failed"
echo "mount-tests: all passed ($SECONDS s)"

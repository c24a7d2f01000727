#!/bin/bash
# bench.sh: the figures of docs/performance.md, each with its target. Slow results do not fail.
#
# The store and the file system that it is compared with are on the same ext4, on a separate loop
# device. PARTS="small tree bulk git big durable sync growth scale" selects parts; `rados`, which has
# to be named, compares with CephFS (docs/rados.md); RUNS= number of pairs; GROWTH= entries of the large directory; SCALE= files of the large tree; IMAGE_GIB= size of
# the loop device's file (below TMPDIR); OUT= directory for the table and its JSON sources.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(realpath "${BUILD:-target/release}/espalier")
parts=${PARTS:-small tree bulk git big durable sync growth scale}
runs=${RUNS:-5}
growth=${GROWTH:-1000000}
scale=${SCALE:-2000000}
image_gib=${IMAGE_GIB:-8}
out=${OUT:-$(dirname "$bin")/../bench}
begun=$SECONDS

if [ "$(id -u)" != 0 ]; then
    echo 'bench: must run as root: loop devices and dropping caches need it' >&2
    exit 1
fi
for part in $parts; do
    case $part in
    small | tree | bulk | git | big | durable | sync | growth | scale | rados) ;;
    *)
        echo "bench: no part is called $part; there are: small tree bulk git big durable sync growth scale rados" >&2
        exit 1
        ;;
    esac
done

work=$(mktemp -d)
mkdir -p "$work/disk" "$work/mnt" "$work/sync-mnt" "$work/scale-mnt" "$out"
out=$(realpath "$out")
device=
# A halted virtual CPU wakes slowly. Other load decides if it halts, which gives results two levels
# of speed; polling avoids the halt.
poll=/sys/module/haltpoll/parameters/guest_halt_poll_ns
poll_before=
cleanup() {
    for mounted in "$work/mnt" "$work/sync-mnt" "$work/scale-mnt"; do
        ! mountpoint -q "$mounted" || "$bin" umount "$mounted" || umount -l "$mounted" || true
    done
    [ ! -e "$work/disk/rados" ] || scripts/rados-sides.sh down "$work/disk/rados" || true
    ! mountpoint -q "$work/disk" || umount "$work/disk" || umount -l "$work/disk" || true
    [ -z "$device" ] || losetup -d "$device" || true
    [ -z "$poll_before" ] || echo "$poll_before" > "$poll" || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

if [ -w "$poll" ]; then
    poll_before=$(cat "$poll")
    echo 200000 > "$poll"
fi
# Written in advance: otherwise syncs would also measure block allocation of the file system below.
dd if=/dev/zero of="$work/image" bs=4M count="$((image_gib * 256))" conv=fsync status=none
# Bypasses the page cache, as a disk does: otherwise threads that copy all data would compete with
# the measurement.
device=$(losetup --find --show --direct-io=on "$work/image")
mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$device"
mount "$device" "$work/disk"
ours=$work/mnt
ext4=$work/disk/ext4
mkdir "$ext4"
"$bin" mkfs "$work/disk/store" > /dev/null
"$bin" mount "$work/disk/store" "$ours"

# The table marks figures for which no benchmark ran.
rm -f "$out"/*.json
measure() { # name, arguments of espalier bench
    local name=$1
    shift
    echo "== $name: espalier bench $*" >&2
    "$bin" bench "$@" --json > "$out/$name.json" || rm -f "$out/$name.json"
}

rows=()
row() { # figure, target, comparison, value, spread
    local verdict
    if [ -z "$4" ]; then
        verdict='not measured'
    elif jq -en "$4 $3 $2" > /dev/null; then
        verdict=pass
    else
        verdict=FAIL
    fi
    rows+=("$(printf '| %-58s | %s %-5s | %8s | %-16s | %s |' "$1" "$3" "$2" "$4" "$5" "$verdict")")
}
figure() { # figure, target, comparison, measurement, a jq filter that gives [value, lowest, highest]
    local found=
    if [ -e "$out/$4.json" ]; then
        local round='if . >= 100 then round else . * 100 | round / 100 end'
        found=$(jq -r "
            def phase(name; procs): .phases[] | select(.name == name and .procs == procs);
            def against(name; procs; index): phase(name; procs).against[index];
            def spread: [.ratio_of_medians, .ratio_min, .ratio_max];
            def median: sort | if length % 2 == 1 then .[length / 2 | floor]
                else (.[length / 2] + .[length / 2 - 1]) / 2 end;
            def ratio(a; b): [a.runs, b.runs] | ([.[] | median] | .[0] / .[1]) as \$medians
                | transpose | map(.[0] / .[1]) | [\$medians, min, max];
            def rate: [.ops_per_s, (.runs | min), (.runs | max)];
            $5 | map($round) | \"\(.[0]) \(.[1])..\(.[2])\"" "$out/$4.json")
    fi
    row "$1" "$2" "$3" "${found% *}" "${found#* }"
}
wanted() {
    case " $parts " in *" $1 "*) ;; *) return 1 ;; esac
}

if wanted small; then
    measure small "$ours" "$ext4" --floor --phases small --procs 1,4 --runs "$runs"
    for procs in 1 4; do
        for phase in create 'stat uncached' 'readdir+stat uncached' unlink create+write+close; do
            figure "$phase against the floor, procs $procs" 0.8 '>=' small "against(\"small/$phase\"; $procs; 1) | spread"
        done
        figure "stat cached against ext4, procs $procs" 0.8 '>=' small "against(\"small/stat cached\"; $procs; 0) | spread"
    done
    # Results of a prototype of the floor on 2 cores, in operations per second.
    ceiling() { # phase, procs, target
        figure "floor: $1 /s, procs $2" "$3" '>=' small "against(\"small/$1\"; $2; 1) | rate"
    }
    ceiling create 1 40000
    ceiling create 4 50000
    ceiling 'stat uncached' 1 55000
    ceiling 'stat uncached' 4 75000
    ceiling unlink 1 50000
    ceiling unlink 4 65000
fi
if wanted tree; then
    measure tree "$ours" "$ext4" --floor --phases tree --runs "$runs"
    figure 'untar 30,000 files against ext4' 0.5 '>=' tree 'against("tree/untar"; 1; 0) | spread'
    figure 'untar 30,000 files against the floor' 0.8 '>=' tree 'against("tree/untar"; 1; 1) | spread'
    figure 'find -ls uncached against ext4' 1.0 '>=' tree 'against("tree/find -ls uncached"; 1; 0) | spread'
    figure 'rm -rf against ext4' 0.8 '>=' tree 'against("tree/rm -rf"; 1; 0) | spread'
fi
if wanted bulk; then
    measure bulk "$ours" --phases bulk --runs "$runs"
    for command in 'cp -r' 'rm -r'; do
        figure "espalier $command of 30,000 files against ${command/rm -r/rm -rf}" 10 '>=' bulk \
            "ratio(phase(\"bulk/espalier $command\"; 1); phase(\"bulk/${command/rm -r/rm -rf}\"; 1))"
    done
fi
if wanted git; then
    measure git "$ours" "$ext4" --phases git --runs "$runs"
    for phase in clone 'status uncached' 'status cached'; do
        figure "git $phase against ext4" 0.67 '>=' git "against(\"git/$phase\"; 1; 0) | spread"
    done
fi
if wanted big; then
    measure big "$ours" "$ext4" --phases big --runs "$runs"
    for phase in 'sequential write+fdatasync' 'sequential read uncached' 'sequential read cached' \
        'random read cached' 'random write+fdatasync'; do
        figure "$phase against the store's ext4" 0.9 '>=' big "against(\"big/$phase\"; 1; 0) | spread"
    done
fi
if wanted durable; then
    measure durable "$ours" "$ext4" --phases durable --procs 1,4 --runs "$runs"
    for procs in 1 4; do
        figure "create+write 4K+fsync against ext4, procs $procs" 1.0 '>=' durable \
            "against(\"durable/create+write+fsync\"; $procs; 0) | spread"
    done
fi
if wanted sync; then
    "$bin" mkfs "$work/disk/sync-store" > /dev/null
    "$bin" mount -o sync "$work/disk/sync-store" "$work/sync-mnt"
    measure sync "$work/sync-mnt" --phases small/create --procs 1,16 --files 500 --runs "$runs"
    figure 'sync: create, 16 processes against 1' 8 '>=' sync \
        'ratio(phase("small/create"; 16); phase("small/create"; 1))'
    measure fdatasync "$work/sync-mnt" "$ext4" --phases small/create,durable/overwrite+fdatasync --procs 1 \
        --files 500 --runs "$runs"
    figure 'sync: one create against one fdatasync, time' 1.3 '<=' fdatasync \
        'ratio(against("durable/overwrite+fdatasync"; 1; 0); phase("small/create"; 1))'
    "$bin" umount "$work/sync-mnt"
fi
if wanted growth; then
    measure growth "$ours" --phases growth --files "$growth" --runs "${GROWTH_RUNS:-3}"
    for phase in create 'stat uncached' unlink; do
        figure "$phase among $growth against $((growth / 100))" 0.9 '>=' growth \
            "ratio(phase(\"growth/$phase in large\"; 1); phase(\"growth/$phase in small\"; 1))"
    done
fi
if wanted scale; then
    store=$work/disk/scale-store tree=$work/scale-mnt
    fill() { # first and last directory: with 10,000 empty files each, by two processes
        local process pids=()
        for process in 0 1; do
            perl -e '($top, $from, $to) = @ARGV;
                for ($d = $from; $d <= $to; $d += 2) {
                    mkdir "$top/$d" or die "$top/$d: $!";
                    for $f (1 .. 10000) { open F, ">", "$top/$d/$f" or die "$f: $!"; close F }
                }' "$tree" $(($1 + process)) "$2" &
            pids+=($!)
        done
        wait "${pids[@]}"
    }
    rates() { # name
        measure "$1" "$tree" --phases 'small/create,small/stat uncached,small/unlink' --procs 1 --runs "$runs"
    }
    status() { "$bin" status --json "$store" | jq "$1"; }
    limit() { # figure, most, value
        row "$1" "$2" '<=' "$3" ''
    }
    "$bin" mkfs "$store" > /dev/null
    "$bin" mount -o memory=256M,slow=50 "$store" "$tree"
    fill 1 10
    limit 'cache, bytes for an empty file' 500 "$(status '.figures.cache | .bytes / .inodes | round')"
    rates scale-before
    fill 11 $((scale / 10000))
    rates scale-after
    for phase in create 'stat uncached' unlink; do
        before=$(jq ".phases[] | select(.name == \"small/$phase\").ops_per_s" "$out/scale-before.json")
        after=$(jq ".phases[] | select(.name == \"small/$phase\").ops_per_s" "$out/scale-after.json")
        row "$phase among $scale files against 100000" 0.8 '>=' "$(jq -n "$after / $before * 100 | round / 100")" ''
    done
    limit 'operations of a thousand that took over 50 ms' 1 \
        "$(status '.figures | .slow_operations * 1000 / ([.operations[].count] | add) * 100 | round / 100')"
    limit 'resident MiB with memory=256M' 256 "$(awk '/^VmHWM/ { print int($2 / 1024) }' "/proc/$(status .pid)/status")"
    "$bin" umount "$tree"
    limit 'disk, bytes for an empty file' 250 "$(($(du -s -B1 --exclude=journal "$store" | cut -f1) / scale))"
    begin=$(date +%s%N)
    "$bin" mount "$store" "$tree"
    ls "$tree" > /dev/null
    limit 'seconds to mount it' 2 "$(jq -n "($(date +%s%N) - $begin) / 10000000 | round / 100")"
    "$bin" umount "$tree"
fi
if wanted rados; then
    . scripts/rados-figures.sh
fi

{
    echo '| figure                                                     | target   |    value | spread           |     |'
    echo '|------------------------------------------------------------|----------|----------|------------------|-----|'
    printf '%s\n' "${rows[@]}"
    echo
    echo "$(uname -sr), $(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg), $runs pairs, $(((SECONDS - begun + 59) / 60)) minutes"
} | tee "$out/table.md"

# rados-figures.sh: the part `rados` of bench.sh, which sources it: CephFS beside Espalier in one
# throw-away Ceph cluster, whose OSD is on the loop device. FILES= files of all processes (4000);
# SIDES= mounts of Espalier to compare (served embedded).

for program in ceph-mon ceph-osd ceph rados ceph-mds ceph-fuse; do
    PATH=$PATH:/usr/sbin command -v "$program" > /dev/null || lacking=$program
done
if [ -n "${lacking:-}" ]; then
    echo "bench: rados: skipped: there is no $lacking; scripts/setup.sh bench installs it where it can" >&2
    return
fi

sides=$work/disk/rados
mkdir "$sides"
scripts/rados-sides.sh up "$sides" "$bin"
cephfs=$sides/cephfs
counting=(--counters "scripts/rados-sides.sh counters")

# rados NAME SIDE PROCESSES FILES OPTION...: a side against CephFS.
rados() {
    local name=rados-$1 side=$2 procs=$3 files=$4
    shift 4
    measure "$name" "$sides/$side" "$cephfs" --runs "$runs" --procs "$procs" --files $((files / procs)) \
        --uncache "${cold}scripts/rados-sides.sh remount" "$@"
}

files=${FILES:-4000}
compared=${SIDES:-served embedded}
for side in $compared; do
    cold=
    [ $side = served ] || cold='COLD=1 '
    for procs in 1 4; do
        for place in own shared; do
            option=() counted=() name=$side-$place-$procs at="$side, $place directory, procs $procs"
            [ $place = own ] || option=(--shared)
            [ "$name" != "$side-own-1" ] || counted=("${counting[@]}")
            rados "$name" $side $procs "$files" --phases small "${option[@]}" "${counted[@]}"
            for phase in create create+write+close unlink; do
                figure "$phase against CephFS, $at" 10 '>=' "rados-$name" "against(\"small/$phase\"; $procs; 0) | spread"
            done
            for phase in 'stat uncached' 'readdir+stat uncached'; do
                figure "$phase against CephFS, $at" 5 '>=' "rados-$name" "against(\"small/$phase\"; $procs; 0) | spread"
            done
            rados "synced-$name" $side $procs $((files / 8)) --phases synced "${option[@]}"
            for phase in create create+write unlink; do
                figure "$phase, all synced, against CephFS, $at" 10 '>=' "rados-synced-$name" \
                    "against(\"synced/$phase\"; $procs; 0) | spread"
            done
        done
    done
    rados "tree-$side" $side 1 "$files" --phases tree
    for phase in untar 'find -ls uncached' 'rm -rf'; do
        figure "$phase against CephFS, $side" 5 '>=' "rados-tree-$side" "against(\"tree/$phase\"; 1; 0) | spread"
    done
done

# Of all costs, these are per create: of an empty file in the process's own directory.
create='phase("small/create"; 1)'
costs() { # name, what it includes
    local of
    for of in server_us client_us osd_us osd_ops osd_writes osd_received; do
        figure "$of of a create, $2, of CephFS's" 0.1 '<=' "rados-$1" \
            "$create | [.counts.$of / .against[0].counts.$of, .counts.$of, .against[0].counts.$of]"
    done
}
for side in $compared; do
    cold=
    costs $side-own-1 "$side"
    FLUSH=1 runs=1 rados "flushed-$side" $side 1 $((files * 2)) --phases small/create "${counting[@]}"
    costs "flushed-$side" "$side, journal written to tables"
done

[[ $compared = *served* ]] || return 0
# Replay by a server that was killed. One directory after a checkpoint: most events are creates.
scripts/rados-sides.sh flush "$sides/served"
perl -e 'mkdir $ARGV[0] or die "$ARGV[0]: $!";
    for (1 .. 50000) { open F, ">", "$ARGV[0]/$_" or die "$_: $!"; close F }' "$sides/served/replay"
"$bin" sync "$sides/served"
kill -9 "$("$bin" cluster status --json "$sides/cluster" | jq '.servers[0].pid')"
CEPH_CONF=$sides/ceph/ceph.conf "$bin" cluster up "$sides/cluster" > /dev/null
ls "$sides/served" > /dev/null
replayed=$(sed -n 's/.*replayed the journal.*events=\([0-9]*\) milliseconds=\([0-9]*\).*/\1 \2/p' "$sides/cluster/server-0/log" | tail -n 1)
row 'replay, events /s' 200000 '>=' "$(awk '{ print int($1 / ($2 + 0.5) * 1000) }' <<< "$replayed")" "${replayed% *} events"

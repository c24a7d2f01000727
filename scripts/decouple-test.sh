#!/bin/bash
# decouple-test.sh: a decoupled directory on mounts of one server and of four ranks: a command in a
# namespace of its own, interference from another mount, namespace syncs, merges that are killed and continued,
# damaged and foreign namespaces, and what each level loses in a crash.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${BUILD:-target/release}/espalier")
work=$(mktemp -d)
chmod 755 "$work" # other users access the mounts
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    umount "$a"/*/ "$work/mnt"/*/ "$work/mnt" 2> /dev/null || true
    for mount in "$a" "$b"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
    # Clients that were killed leave their namespaces in memory.
    for place in "$memory"*; do
        grep -qxF "$place" <<< "$before" || rm -rf "$place"
    done
}
memory=/dev/shm/espalier-decoupled-
before=$(echo "$memory"* | tr ' ' '\n')
trap cleanup EXIT
. scripts/cluster-functions.sh

port=17770
start() { # number of ranks
    "$bin" cluster init "$cluster" --insecure --listen "127.0.0.1:$port" --servers "$1" --ranks "$1"
    # A restarted server waits for a client that has crashed as long as its session lasts.
    sed -i 's/^session_seconds = .*/session_seconds = 15/' "$cluster"/server-*/server.toml
    up
    for mount in "$a" "$b"; do
        "$bin" mount "espalier://127.0.0.1:$port/" "$mount" -o insecure --log-file "$mount.log"
    done
}
stop() {
    umount "$a" "$b"
    "$bin" cluster down "$cluster" > /dev/null
    "$bin" cluster fsck "$cluster"
    rm -rf "$cluster"
    port=$((port + 5))
}

# Describes a tree, except access times, which reading it changes: types, permissions, links, sizes, times to the nanosecond, bytes, attributes.
describe() {
    (
        cd "$1"
        find . -mindepth 1 -printf '%P %y %m %U %G %n %s %l %T@\n' | LC_ALL=C sort
        find . -type f -print0 | LC_ALL=C sort -z | xargs -0r md5sum
        find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -hd -m - 2> /dev/null
        find . ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -p 2> /dev/null
    )
}

# fill DIR: entries of all types.
fill() {
    mkdir -p "$1/sub/deep" "$1/empty" "$1/new"
    for number in $(seq 200); do echo "$number" > "$1/sub/file$number"; done
    head -c 50000 /dev/urandom > "$1/sub/nearly"
    head -c 3000000 /dev/urandom > "$1/sub/big"
    truncate -s 9000000 "$1/sub/sparse"
    printf x | dd of="$1/sub/sparse" bs=1 seek=5000000 conv=notrunc status=none
    ln "$1/sub/big" "$1/also"
    ln "$1/sub/file7" "$1/sub/deep/linked"
    ln -s sub/file7 "$1/symlink"
    mkfifo "$1/fifo"
    mknod "$1/device" c 1 3
    echo moved > "$1/sub/moves"
    mv "$1/sub/moves" "$1/new/moved"
    mv "$1/sub/file9" "$1/sub/file10" # replaces it
    rm "$1/sub/file11"
    chown 65534:65533 "$1/sub/file1"
    chmod 4751 "$1/sub/file2"
    setfattr -n user.color -v blue "$1/sub/file3"
    setfattr -n user.color -v red "$1/sub/big"
    setfacl -m u:65534:rw "$1/sub/file4" "$1/sub/big"
    setfacl -d -m u:65534:rx "$1/empty"
    touch -d '2001-02-03 04:05:06.789' "$1/sub/file5" "$1/empty" "$1/sub/big"
    touch -h -d '2001-02-03' "$1/symlink"
}


check_command() {
    section "a command in a namespace of its own"
    mkdir "$a/job"
    chmod 2775 "$a/job"
    setfattr -n user.label -v job "$a/job"
    ls "$a/job/early" 2> /dev/null || true
    ls "$b/job/early" 2> /dev/null || true
    export -f fill describe
    export job=$a/job work
    "$bin" decouple "$a/job" --store "$work/store" -- bash -ec '
        fill "$job"
        getfattr -n user.label "$job" > /dev/null
        echo early > "$job/early"
        describe "$job" > "$work/inside"'
    describe "$a/job" > "$work/outside"
    cmp "$work/inside" "$work/outside" || { diff "$work/inside" "$work/outside" | head >&2; fail 'the merged tree differs'; }
    describe "$b/job" | cmp "$work/inside" - || fail 'another mount shows another tree'
    is "$(stat -c '%a %h' "$b/job")" '2775 5'
    [ ! -e "$work/store" ] || fail 'the namespace stays after the merge'
    echo more >> "$b/job/sub/big"
    echo new > "$b/job/sub/new"
    is "$(cat "$a/job/sub/new")" new
    rm -r "$b/job"
    if [ -e "$a/job" ]; then fail 'a merged tree cannot be removed'; fi
}

works_in() { [ "$(readlink "/proc/$1/cwd")" = "$2" ]; } # PROCESS DIR

check_interference() {
    section "interference of another mount"
    mkdir "$a/job"
    "$bin" decouple "$a/job" --store "$work/store" > /dev/null
    echo inside > "$a/job/file"
    is "$(ls -A "$b/job")" ''
    refused 'busy' touch "$b/job/file"
    refused 'busy' rmdir "$b/job"
    refused 'busy' mv "$b/job" "$b/moved"
    refused 'decoupled already' "$bin" decouple "$b/job"
    refused 'not empty' "$bin" decouple "$b"
    sleep 1 # another mount's lookups end leases on names; the namespace stays mounted
    is "$(cat "$a/job/file")" inside
    (cd "$a/job" && exec sleep 100) &
    sleeper=$!
    until_true works_in "$sleeper" "$a/job"
    until_true grep -q sleep "/proc/$sleeper/comm"
    refused 'end what uses it' "$bin" merge "$a/job"
    kill "$sleeper"
    wait "$sleeper" || true
    "$bin" merge "$a/job"
    is "$(cat "$b/job/file")" inside
    refused 'not decoupled' "$bin" merge "$a/job"
    rm -r "$b/job"
}

check_failures() {
    section "a command that fails, aborts, and damaged namespaces"
    mkdir "$a/job"
    if "$bin" decouple "$a/job" --store "$work/store" -- sh -c "fill() { echo x > '$a/job/file'; }; fill; exit 3" \
        2> "$work/said"; then
        fail 'the failure of the command is lost'
    else
        is $? 3
    fi
    grep -q 'stays decoupled' "$work/said"
    "$bin" umount "$a/job"
    cp -a "$work/store" "$work/copy"
    refused 'is not the store' sh -c "'$bin' mkfs '$work/foreign' > /dev/null; '$bin' merge '$a/job' --from '$work/foreign'"
    for file in "$work/copy/journal"; do
        printf '\377' | dd of="$file" bs=1 seek=100 conv=notrunc status=none
        truncate -s 5000 "$file"
    done
    refused '' "$bin" merge "$a/job" --from "$work/copy"
    is "$(ls -A "$b/job")" ''
    "$bin" merge --abort "$a/job"
    refused 'not decoupled' "$bin" merge "$a/job" --from "$work/store"
    touch "$b/job/file"
    rm -r "$work/store" "$work/copy" "$work/foreign" "$b/job"
}

# Merges with kills of the merging program and of the server.
check_kills() {
    section "merges that are killed and continued"
    mkdir "$a/job"
    "$bin" decouple "$a/job" --store "$work/store" > /dev/null
    for dir in $(seq 8); do
        mkdir "$a/job/$dir"
        (cd "$a/job/$dir" && seq 1500 | xargs touch)
    done
    head -c 2000000 /dev/urandom > "$a/job/8/big"
    sum=$(md5sum < "$a/job/8/big")
    kill -9 "$("$bin" status "$a/job" --json | jq .pid)"
    umount "$a/job"
    for wait in 0.05 0.1 0.15 0.2; do
        timeout -s KILL "$wait" "$bin" merge "$a/job" --from "$work/store" > /dev/null 2>&1 || true
        [ -e "$work/store" ] || break
        is "$(ls -A "$b/job")" ''
    done
    if [ -e "$work/store" ]; then
        "$bin" merge "$a/job" --from "$work/store" > "$work/merged" 2>&1 &
        merging=$!
        sleep 0.1
        kill_server 0
        up
        wait "$merging" || "$bin" merge "$a/job" --from "$work/store"
    fi
    is "$(find "$b/job" -type f | wc -l)" 12001
    is "$(md5sum < "$b/job/8/big")" "$sum"
}

# decouple_with SETTING...: decouples the new directory job with these settings.
decouple_with() {
    mkdir "$a/job"
    "$bin" policy "$a/job" "${@/#/--set=}"
    "$bin" decouple "$a/job" > /dev/null
}

crash_namespace() {
    kill -9 "$("$bin" status "$a/job" --json | jq .pid)"
    umount "$a/job"
}

# Ends the whole client $a, as a crash of its machine does.
crash_client() {
    crash_namespace
    kill -9 "$(cat "$work/a.pid")"
    umount -l "$a"
}

mount_a() {
    "$bin" mount --foreground "espalier://127.0.0.1:$port/" "$a" -o insecure --log-file "$a.log" &
    echo $! > "$work/a.pid"
    until_true mountpoint -q "$a"
}

# Consistency: when others see what a command has made.
check_visibility() {
    section "consistency: strong, invisible, weak"
    mkdir "$a/job"
    export b
    refused 'goes with durability global' "$bin" policy "$a/job" --set consistency=strong --set durability=local
    refused 'do not go together' "$bin" policy "$a/job" --compose 'append client journal+RPCs'
    refused 'is not offered' "$bin" policy "$a/job" --compose 'append client journal+nonvolatile apply'
    "$bin" policy "$a/job" --compose RPCs+stream
    is "$("$bin" policy "$a/job" --json | jq -c '[.level.consistency, .level.durability, .level.composition]')" \
        '["strong","global","RPCs+stream"]'
    grep -q '^others see  *changes immediately$' <<< "$("$bin" policy "$a/job")"
    refused 'nothing to merge' "$bin" decouple "$a/job"
    "$bin" decouple "$a/job" -- sh -c "echo now > '$a/job/file' && grep -q now '$b/job/file'" 2> /dev/null
    rm "$a/job/file"
    "$bin" policy "$a/job" --set consistency=invisible --set durability=local --set allocated_inodes=10
    "$bin" decouple "$a/job" -- sh -c "echo later > '$a/job/file'; ! seq 20 | (cd '$a/job' && xargs touch)" 2> "$work/said"
    grep -q 'stays decoupled until' "$work/said"
    is "$(ls -A "$b/job")" ''
    "$bin" merge "$a/job"
    is "$(cat "$b/job/file")" later
    rm -r "$b/job"
}

# Durability: what is left after crashes of the client, the server and both.
check_durability() {
    section "durability none: the client's memory"
    decouple_with durability=none
    store=$(findmnt -no SOURCE "$a/job")
    is "$(stat -f -c %T "$store")" tmpfs
    (cd "$a/job" && seq 500 | xargs touch)
    kill_server 0
    up
    "$bin" merge "$a/job"
    is "$(ls "$b/job" | wc -l)" 500
    [ ! -e "$store" ] || fail 'the namespace stays in memory'
    rm -r "$b/job"
    decouple_with durability=none
    echo lost > "$a/job/file"
    store=$(findmnt -no SOURCE "$a/job")
    crash_namespace
    rm -r "$store" # as the memory of the machine
    refused 'if it is lost' "$bin" merge "$a/job"
    "$bin" merge --abort "$a/job"
    is "$(ls -A "$b/job")" ''
    if [ "$(stat -f -c %T "$work")" != tmpfs ]; then
        refused 'is not in memory' "$bin" decouple "$a/job" --store "$work/store"
        [ ! -e "$work/store" ] || fail 'a refused namespace leaves its directory'
    fi
    rmdir "$b/job"

    section "durability local: the client's disk"
    decouple_with durability=local
    store=$(findmnt -no SOURCE "$a/job")
    (cd "$a/job" && seq 500 | xargs touch)
    "$bin" sync "$a/job"
    crash_namespace
    "$bin" merge "$a/job"
    is "$(ls "$b/job" | wc -l)" 500
    rm -r "$b/job"
    decouple_with durability=local
    store=$(findmnt -no SOURCE "$a/job")
    crash_namespace
    rm -r "$store" # as its disk
    refused 'if it is lost' "$bin" merge "$a/job"
    "$bin" merge --abort "$a/job"
    rmdir "$b/job"

    section "durability global: the servers"
    umount "$a"
    mount_a
    mkdir "$a/job"
    "$bin" policy "$a/job" --set durability=global
    refused 'is not at the servers' "$bin" decouple "$a/job" --store "$work/store"
    rmdir "$a/job"
    for crash in server client both; do
        decouple_with durability=global
        (cd "$a/job" && seq 500 | xargs touch)
        head -c 300000 /dev/urandom > "$a/job/big"
        sum=$(md5sum < "$a/job/big")
        "$bin" sync "$a/job"
        echo unsynced > "$a/job/last"
        is "$(ls -A "$b/job")" ''
        if [ "$crash" != client ]; then
            kill_server 0
            up
        fi
        if [ "$crash" != server ]; then
            crash_client
            "$bin" merge "$b/job"
            mount_a
        else
            is "$(cat "$a/job/last")" unsynced
            "$bin" merge "$a/job"
            is "$(cat "$b/job/last")" unsynced
        fi
        rm -f "$b/job/last"
        is "$(ls "$b/job" | wc -l)" 501
        is "$(md5sum < "$b/job/big")" "$sum"
        is "$(ls -A "$b")" job
        rm -r "$b/job"
    done
}

check_allow() {
    section "interference that is allowed"
    mkdir "$a/job"
    "$bin" policy "$a/job" --set interfere=allow --set consistency=weak
    grep -q 'by the merge when the command has ended, one by one$' <<< "$("$bin" policy "$a/job")"
    rmdir "$a/job"
    decouple_with interfere=allow
    mkdir "$a/job/sub"
    echo ours | tee "$a/job/both" "$a/job/sub/both" > "$a/job/ours"
    mkdir "$b/job/sub"
    echo theirs | tee "$b/job/both" "$b/job/sub/theirs" > "$b/job/theirs"
    is "$(ls "$a/job" | xargs)" 'both ours sub'
    is "$(cat "$b/job/both")" theirs
    refused busy rmdir "$b/job"
    "$bin" merge "$a/job"
    for mount in "$a" "$b"; do
        is "$(ls "$mount/job" "$mount/job/sub" | tail -n +2 | xargs)" "both ours sub theirs $mount/job/sub: both theirs"
        is "$(cat "$mount/job/both" "$mount/job/sub/both" "$mount/job/theirs" | xargs)" 'ours ours theirs'
    done
    rm -r "$b/job"
}

# With several ranks a directory of others may be at another one.
check_allow_ranks() {
    section "interference that is allowed, with several ranks"
    decouple_with interfere=allow
    mkdir "$a/job/sub"
    echo ours > "$a/job/both"
    for number in 1 2 3 4; do mkdir "$b/job/theirs$number"; done
    mkdir "$b/job/sub"
    echo theirs > "$b/job/both"
    if [ $(($(stat -c %i "$b/job/sub") >> 48)) = $(($(stat -c %i "$b/job") >> 48)) ]; then
        "$bin" merge "$a/job"
    else
        refused "cannot merge 'sub': File exists" "$bin" merge "$a/job"
        rmdir "$b/job/sub"
        "$bin" merge "$a/job"
    fi
    is "$(ls "$b/job" | xargs)" 'both sub theirs1 theirs2 theirs3 theirs4'
    is "$(cat "$b/job/both")" ours
    rm -r "$b/job"
}

# make_namespace [FILE...]: the new directory job, decoupled in $work/store, with entries of all types except these; not mounted.
make_namespace() {
    mkdir "$a/job"
    "$bin" decouple "$a/job" --store "$work/store" > /dev/null
    fill "$a/job"
    (cd "$a/job" && rm -f "$@")
    describe "$a/job" > "$work/inside"
    "$bin" umount "$a/job"
}

merged_as_inside() {
    describe "$b/job" > "$work/outside"
    cmp "$work/inside" "$work/outside" || { diff "$work/inside" "$work/outside" | head >&2; fail 'the merged tree differs'; }
}

check_journal() {
    section "journals: inspected, exported, erased, imported, applied"
    make_namespace
    "$bin" journal inspect "$work/store" > "$work/said"
    grep -q '^namespace ' "$work/said"
    is "$("$bin" journal inspect "$work/store" --json | jq -r .kind)" namespace
    refused 'use' "$bin" journal inspect "$cluster/server-0/store"
    "$bin" journal export "$work/store" "$work/exported" 2> /dev/null
    "$bin" journal export "$work/store" 2> /dev/null | cmp - "$work/exported"
    is "$("$bin" journal inspect "$work/exported" --json | jq .kinds.Big)" 3
    cp "$work/exported" "$work/damaged"
    printf 'X' | dd of="$work/damaged" bs=1 seek=5000 conv=notrunc status=none
    refused 'is damaged at byte' "$bin" journal inspect "$work/damaged"
    refused 'is damaged at byte' "$bin" journal apply --volatile "$work/damaged" "$a/job"
    refused 'is damaged at byte' "$bin" merge "$a/job" --from "$work/damaged"
    is "$(ls -A "$b/job")" ''
    is "$("$bin" policy "$a/job" --json | jq .merged)" 0
    "$bin" journal apply --volatile --json "$work/exported" "$a/job" > "$work/said"
    is "$(jq -r .mechanism "$work/said")" 'volatile apply'
    merged_as_inside
    refused 'not decoupled' "$bin" journal apply --volatile "$work/exported" "$a/job"
    refused 'not decoupled' "$bin" merge "$a/job" --from "$work/store"
    rm -r "$b/job" "$work/store" "$work/damaged"

    mkdir "$a/job"
    "$bin" decouple "$a/job" --store "$work/store" > /dev/null
    refused 'a namespace is mounted' "$bin" journal apply --volatile "$work/exported" "$a/job"
    "$bin" umount "$a/job"
    refused 'is not the store of the namespace' "$bin" merge "$a/job" --from "$work/exported"
    "$bin" merge --abort "$a/job" > /dev/null
    rm -r "$work/store"
    rmdir "$a/job"

    make_namespace
    "$bin" journal export "$work/store" "$work/exported" 2> /dev/null
    rm -r "$work/store"
    "$bin" journal import "$work/exported" "$work/store" > /dev/null
    "$bin" fsck "$work/store" > /dev/null
    mkdir -p "$work/mnt"
    "$bin" mount "$work/store" "$work/mnt"
    describe "$work/mnt" | cmp - "$work/inside" || fail 'the imported namespace differs'
    touch "$work/mnt/undone"
    "$bin" sync "$work/mnt"
    kill -9 "$("$bin" status "$work/mnt" --json | jq .pid)"
    umount "$work/mnt"
    last=$("$bin" journal inspect "$work/store" --json | jq .in_tables)
    if [ "$("$bin" journal inspect "$work/store" --json | jq .events)" -gt 0 ]; then
        "$bin" journal inspect "$work/store" --events | grep undone > /dev/null
    fi
    "$bin" journal erase "$work/store" --after "$last" > /dev/null
    refused 'are in the tables' "$bin" journal erase "$work/store" --after 1
    "$bin" merge "$a/job" --from "$work/store"
    merged_as_inside
    rm -r "$b/job"
}

# check_nonvolatile [FILE...]: nonvolatile apply, without these files, while the servers are stopped.
check_nonvolatile() {
    section "nonvolatile apply"
    make_namespace "$@"
    refused 'use' "$bin" journal apply --nonvolatile "$work/store" "$cluster"
    umount "$a" "$b"
    "$bin" cluster down "$cluster" > /dev/null
    "$bin" journal inspect "$cluster/server-0/store" > "$work/said"
    grep -q '^file system ' "$work/said"
    "$bin" journal export "$cluster/server-0/store" "$work/events"
    jq -e .event "$work/events" > /dev/null
    "$bin" journal apply --nonvolatile "$work/store" "$cluster" 2> "$work/said" || fail "$(cat "$work/said")"
    grep -q '^nonvolatile apply  *[0-9]' "$work/said"
    refused 'merged or aborted before' "$bin" journal apply --nonvolatile "$work/store" "$cluster"
    "$bin" cluster fsck "$cluster"
    up
    for mount in "$a" "$b"; do
        "$bin" mount "espalier://127.0.0.1:$port/" "$mount" -o insecure --log-file "$mount.log"
    done
    merged_as_inside
    rm -r "$b/job" "$work/store"
}

check_compositions() {
    section "compositions of mechanisms, each timed"
    export -f fill describe
    export job=$a/job work
    while read -r composition; do
        mkdir "$a/job"
        "$bin" decouple "$a/job" --compose "$composition" -- bash -ec 'fill "$job"; describe "$job" > "$work/inside"' 2> "$work/said"
        tr '+' '\n' <<< "${composition//||/+}" | while read -r mechanism; do
            grep -q "^$mechanism  *[0-9.]* s$" "$work/said" || fail "$mechanism has no time: $(cat "$work/said")"
        done
        if [[ $composition != *'volatile apply'* && $composition != RPCs* ]]; then
            is "$(ls -A "$b/job")" ''
            "$bin" merge "$a/job"
        fi
        merged_as_inside
        rm -r "$b/job"
        is "$(ls -A "$a")" ''
    done << 'END'
append client journal
append client journal+volatile apply
append client journal+local persist+volatile apply
append client journal||local persist+volatile apply
append client journal+global persist||volatile apply
append client journal||global persist
append client journal+local persist
RPCs
RPCs+stream
END
    mkdir "$a/job"
    refused 'needs the servers stopped' "$bin" decouple "$a/job" --compose 'append client journal+nonvolatile apply' -- true
    rmdir "$a/job"
}

# change_level FROM TO: CONSISTENCY-DURABILITY before the command, and set by it.
change_level() {
    mkdir "$a/job"
    "$bin" policy "$a/job" --set "consistency=${1%-*}" --set "durability=${1#*-}"
    new=("--set=consistency=${2%-*}" "--set=durability=${2#*-}")
    "$bin" decouple "$a/job" -- sh -c "findmnt -no SOURCE '$a/job' > '$work/at' && '$bin' policy '$a/job' ${new[*]} && echo done > '$a/job/file' && ! ls '$b/job/file' 2> /dev/null" \
        2> "$work/said" || fail "$1 to $2: $(cat "$work/said")"
    if [ "${2%-*}" = invisible ]; then
        is "$(ls -A "$b/job")" ''
        # A crash of the client leaves what the new level says.
        case "${1#*-} ${2#*-}" in
            'none local' | 'none global' | 'local global') rm -r "$(cat "$work/at")" ;;
        esac
        "$bin" merge "$a/job"
    fi
    is "$(cat "$b/job/file")" 'done'
    is "$("$bin" policy "$b/job" --json | jq -r '.level | .consistency + "-" + .durability')" "$2"
    rm -r "$b/job"
}

check_changes() {
    section "levels that are changed while the directory is decoupled"
    for from in invisible-none weak-none invisible-local weak-local invisible-global weak-global; do
        for to in invisible-none weak-none invisible-local weak-local invisible-global weak-global strong-global; do
            [ "$from" = "$to" ] || change_level "$from" "$to"
        done
    done
}

# Namespace sync: others see a running command's results, which it goes on to change.
check_sync() {
    section "namespace sync"
    export -f fill describe
    export job=$a/job b work bin
    mkdir "$a/job"
    "$bin" policy "$a/job" --set sync_interval=1s
    grep -q 'others see .*, and before it what was done 1s and a sync ago' <<< "$("$bin" policy "$a/job")"
    "$bin" decouple "$a/job" -- bash -ec '
        seen() { for _ in $(seq 150); do if "$@" 2> /dev/null; then return; fi; sleep 0.1; done; exit 9; }
        no() { if "$@" 2> /dev/null; then echo "succeeds: $*" >&2; exit 8; fi; }
        fill "$job"
        touch "$job/early"
        seen test -e "$b/job/early"
        cmp "$job/sub/file7" "$b/job/sub/deep/linked"
        test "$(stat -c %a%h "$b/job/sub/file2")" = 47511
        test ! -e "$b/job/sub/big"
        no touch "$b/job/sub/theirs"
        no rm "$b/job/sub/file20"
        no chmod 777 "$b/job/sub"
        no sh -c "echo theirs >> $b/job/sub/file20"
        rm "$job/early" "$job/sub/file12" "$job/symlink"
        echo changed > "$job/sub/file13"
        chmod 600 "$job/sub/file14"
        mv "$job/sub/file15" "$job/sub/file16" # replaces it
        ln "$job/sub/file17" "$job/again"
        mv "$job/sub" "$job/new/sub"
        mv "$job/new" "$job/empty"
        setfattr -x user.color "$job/empty/new/sub/file3"
        truncate -s 100000 "$job/empty/new/sub/file18"
        echo late > "$job/late"
        seen grep -q late "$b/job/late"
        grep -q changed "$b/job/empty/new/sub/file13"
        test ! -e "$b/job/sub" -a ! -e "$b/job/early" -a ! -e "$b/job/empty/new/sub/file15"
        is_gone() { ! getfattr -n user.color "$b/job/empty/new/sub/file3"; }
        seen is_gone
        describe "$job" > "$work/inside"' || fail "the command fails: $?"
    merged_as_inside
    is "$("$bin" policy "$b/job" --json | jq .merged)" null
    touch "$b/job/empty/new/sub/theirs"
    rm -r "$b/job"

    section "namespace sync: a client that dies, and an abort"
    decouple_with sync_interval=1s
    fill "$a/job"
    until_true test -e "$b/job/new/moved"
    mv "$a/job/sub" "$a/job/moved"
    rm "$a/job/moved/file20"
    "$bin" sync "$a/job"
    describe "$a/job" > "$work/inside"
    crash_namespace
    refused busy touch "$b/job/new/theirs"
    "$bin" merge "$a/job"
    merged_as_inside
    rm -r "$b/job"
    decouple_with sync_interval=1s durability=none
    touch "$a/job/file"
    until_true test -e "$b/job/file"
    "$bin" merge --abort "$a/job" > /dev/null
    is "$(ls "$b/job")" file
    touch "$b/job/theirs"
    rm -r "$b/job"

    section "namespace sync: a server that is killed"
    decouple_with sync_interval=1s
    for dir in 1 2 3 4; do
        mkdir "$a/job/$dir"
        (cd "$a/job/$dir" && seq 1500 | xargs touch)
        until_true test -e "$b/job/$dir"
        kill_server 0
        up
        until_true reconnected
    done
    until_true test -e "$b/job/4/1500"
    rm -r "$a/job/1"
    until_true test ! -e "$b/job/1"
    describe "$a/job" > "$work/inside"
    "$bin" merge "$a/job"
    merged_as_inside
    rm -r "$b/job"
}

check_examples() {
    section "examples: five semantics side by side"
    ESPALIER=$bin examples/levels/run.sh "$a" "$b" > "$work/listing" 2> "$work/said"
    printf '%s\n' 'posix: file1 file2 file3' 'hdfs: file1 file2 file3 log' 'batchfs: file1 file2 file3' 'deltafs:' 'ramdisk:' \
        'deltafs, merged: file1 file2 file3' | cmp - <(sed 's/ *$//' "$work/listing") || fail "$(cat "$work/listing" "$work/said")"
    grep -q 'a reader has seen: begun' "$work/said"
    is "$(cat "$b/deltafs/file2")" 'result 2'
    rm -r "$b"/{posix,hdfs,batchfs,deltafs,ramdisk}
}

check_status() {
    section "what is at risk, in the status"
    decouple_with durability=none allocated_inodes=20
    touch "$a/job/file"
    grep -q '^at risk  *[1-9][0-9]* changes: a client crash loses all changes since' <<< "$("$bin" status "$a/job")"
    is "$("$bin" status "$a/job" --json | jq -c '[.namespace.durability, .namespace.inodes, .namespace.warnings]')" '["none",20,[]]'
    (cd "$a/job" && seq 18 | xargs touch)
    grep -q '^WARNING  *[0-9]* of 20 inode numbers are left' <<< "$("$bin" status "$a/job")"
    "$bin" merge "$a/job"
    rm -r "$b/job"
}

check_embedded() {
    section "a mount without servers"
    mkdir "$work/mnt"
    "$bin" mkfs "$work/embedded" > /dev/null
    "$bin" mount "$work/embedded" "$work/mnt"
    mkdir "$work/mnt/job"
    "$bin" policy "$work/mnt/job" --set durability=global
    refused 'its mount has no servers' "$bin" decouple "$work/mnt/job"
    "$bin" policy "$work/mnt/job" --set durability=none
    "$bin" decouple "$work/mnt/job" -- touch "$work/mnt/job/file"
    is "$(ls "$work/mnt/job")" file
    "$bin" umount "$work/mnt"
    "$bin" fsck "$work/embedded" > /dev/null
}

start 1
check_command
check_interference
check_failures
check_visibility
check_sync
check_allow
check_embedded
check_journal
check_compositions
check_changes
check_examples
check_status
check_nonvolatile
check_durability
check_kills
stop
start 4
check_command
check_interference
check_visibility
check_sync
check_allow_ranks
# The servers of this cluster are data servers, too, which must run for big files.
check_nonvolatile also sub/big sub/nearly sub/sparse
stop
echo 'decouple-test: passed'

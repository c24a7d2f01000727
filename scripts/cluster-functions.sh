# cluster-functions.sh: shared functions of the cluster tests. A test sets $bin, $work and $cluster
# before it sources this file.

. scripts/section-functions.sh

fail() {
    tail -n 5 "$cluster"/server-*/log "$work"/*.log >&2 || true
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}

# refused TEXT COMMAND...: checks that the command fails and prints TEXT.
refused() {
    local text=$1
    shift
    if "$@" > "$work/said" 2>&1 < /dev/null; then fail "$* succeeds"; fi
    grep -q -- "$text" "$work/said" || fail "$* does not print '$text': $(cat "$work/said")"
}

# until_true COMMAND...: waits until the command succeeds, for a minute at most.
until_true() {
    for _ in $(seq 600); do
        if "$@" > /dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "does not succeed within a minute: $*"
}

# is FOUND EXPECTED: checks that both are equal.
is() {
    [ "$1" = "$2" ] || fail "'$1' instead of '$2'"
}

# pid NUMBER: the process of a server.
pid() {
    # `cluster status` fails if a server does not run.
    { "$bin" cluster status "$cluster" || true; } | sed -n "s/^server-$1 .* process \([0-9]*\) .*/\1/p"
}

# kill_server NUMBER: kills a server and waits for its end.
kill_server() {
    local pid
    pid=$(pid "$1")
    kill -9 "$pid"
    until_true test ! -e "/proc/$pid"
}

# reconnected: succeeds if the mounts at $a and $b have sessions with all servers. A mount that
# changes names while it reconnects invalidates all names, which detaches mounts on top of it
# (docs/semantics.md).
reconnected() {
    ! grep -q 'NOT CONNECTED' <<< "$("$bin" status "$a") $("$bin" status "$b")"
}

# remove_cluster: unmounts $a and $b, stops the servers, and removes all files.
remove_cluster() {
    for mount in "$a" "$b"; do umount -f "$mount" 2> /dev/null || umount -l "$mount" 2> /dev/null || true; done
    "$bin" cluster down "$cluster" > /dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}

# Starts all servers, without the test's open files.
up() {
    "$bin" cluster up "$cluster" > "$work/up" < /dev/null 8>&- 9>&-
}

# cluster-functions.sh: what the tests of clusters share. They set $bin, $work and $cluster before they use it.

. scripts/section-functions.sh

fail() {
    tail -n 5 "$cluster"/server-*/log "$work"/*.log >&2 || true
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}

# refused TEXT COMMAND...: it fails, and says so.
refused() {
    local text=$1
    shift
    if "$@" > "$work/said" 2>&1 < /dev/null; then fail "$* succeeds"; fi
    grep -q -- "$text" "$work/said" || fail "$* does not say '$text': $(cat "$work/said")"
}

# until_true COMMAND...: waits for it, a minute at most.
until_true() {
    for _ in $(seq 600); do
        if "$@" > /dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "in a minute it did not come true: $*"
}

# is WHAT WANTED: what was found is what was wanted.
is() {
    [ "$1" = "$2" ] || fail "'$1' instead of '$2'"
}

# pid NUMBER: of a server.
pid() {
    # It fails when one does not run.
    { "$bin" cluster status "$cluster" || true; } | sed -n "s/^server-$1 .* process \([0-9]*\) .*/\1/p"
}

# kill_server NUMBER
kill_server() {
    local pid
    pid=$(pid "$1")
    kill -9 "$pid"
    until_true test ! -e "/proc/$pid"
}

# reconnected: the mounts at $a and $b have sessions with all servers again. A mount that changes names while it
# reconnects has all names invalidated, which detaches what is mounted on top: docs/semantics.md.
reconnected() {
    ! grep -q 'NOT CONNECTED' <<< "$("$bin" status "$a") $("$bin" status "$b")"
}

# Servers are not to have open what a test has.
up() {
    "$bin" cluster up "$cluster" > "$work/up" < /dev/null 8>&- 9>&-
}

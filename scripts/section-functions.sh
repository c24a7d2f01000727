# section-functions.sh: prints the sections of a test and their duration.

section_began=

# section NAME: ends the previous section and starts the next one.
section() {
    [ -z "$section_began" ] || echo "   ($((SECONDS - section_began)) s)"
    section_began=$SECONDS
    echo "== $1"
}

# Options of espalier-conformance that leave out cases of many thousand files or links, where each of
# these costs several messages.
without_large_cases() { # espalier-conformance
    "$1" --list | sed 's/ .*//' | grep -Ev 'max_links|^many::|creates_in_one_directory' | sed 's/^/--filter=/'
}

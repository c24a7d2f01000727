# section-functions.sh: prints the sections of a test and their duration.

section_began=

# section NAME: ends the previous section and starts the next one.
section() {
    [ -z "$section_began" ] || echo "   ($((SECONDS - section_began)) s)"
    section_began=$SECONDS
    echo "== $1"
}

# section-functions.sh: prints what a test does, and how long each section of it takes.

section_began=

# section NAME: ends the section before it.
section() {
    [ -z "$section_began" ] || echo "   ($((SECONDS - section_began)) s)"
    section_began=$SECONDS
    echo "== $1"
}

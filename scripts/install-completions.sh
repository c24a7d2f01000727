#!/bin/sh
# install-completions.sh PREFIX: installs completions where each shell searches below a prefix.
set -eu
share=$1/share
put() { # shell, directory, file
    mkdir -p "$share/$2"
    "${BIN:-target/release/espalier}" completions "$1" > "$share/$2/$3"
}
put bash bash-completion/completions espalier
put zsh zsh/site-functions _espalier
put fish fish/vendor_completions.d espalier.fish

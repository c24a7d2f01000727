#!/bin/bash
# large-directory-test.sh: one directory that splits over all ranks while four processes fill it by
# two mounts, list it and rename in it, a rank joins, a subtree moves again and again, and servers
# are killed every few seconds.
#
# FILES= is the number of files, SPLIT= that of entries from which on a fragment splits.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/release}")
bin=$BUILD/espalier
files=${FILES:-1000000}
split=${SPLIT:-2000}
work=$(mktemp -d)
cluster=$work/cluster
a=$work/a b=$work/b
mkdir "$a" "$b"
cleanup() {
    touch "$work/made1.end" "$work/made2.end"
    remove_cluster
}
trap cleanup EXIT
. scripts/cluster-functions.sh

# fill.pl DIR NAME COUNT PROGRESS: makes files with their names in them, and renames every tenth.
cat > "$work/fill.pl" << 'END'
my ($dir, $name, $count, $progress) = @ARGV;
for my $n (1 .. $count) {
    my $path = "$dir/$name-$n";
    open(my $file, '>', $path) or die "$path: $!";
    print($file "$name $n\n") && close($file) or die "$path: $!";
    if ($n % 10 == 0) { rename($path, "$dir/renamed-$name-$n") or die "$path: $!" }
    next if $n % 1000;
    open(my $made, '>', $progress) or die "$progress: $!";
    print($made "$n\n") && close($made) or die "$progress: $!";
}
END
# list.pl DIR PROGRESS NAME: lists the directory until PROGRESS.end exists: no name is there twice, and none
# is missing that was there before.
cat > "$work/list.pl" << 'END'
my ($dir, $progress, $name, $count) = @ARGV;
until (-e "$progress.end") {
    open(my $file, '<', $progress) or do { sleep 1; next };
    my $made = <$file>;
    opendir(my $entries, $dir) or die "$dir: $!";
    my %seen;
    while (my $entry = readdir $entries) { die "$entry is listed twice" if $seen{$entry}++ }
    for my $n (1 .. $made) {
        my $entry = $n % 10 ? "$name-$n" : "renamed-$name-$n";
        die "$entry is missing after $made" unless $seen{$entry};
    }
    $count++;
}
print "$count listings\n";
END

section "make a cluster of four ranks; $files files"
"$bin" cluster init "$cluster" --servers 4 --ranks 4 --listen "127.0.0.1:${PORT:-17890}" > /dev/null
sed -i 's/^lease_seconds = .*/lease_seconds = 2/' "$cluster"/server-*/server.toml
up
for mount in "$a" "$b"; do
    "$bin" mount "espalier://127.0.0.1:${PORT:-17890}/" "$mount" -o "credentials=$cluster/clients/admin" --log-file "$mount.log"
done
mkdir "$a/large" "$a/tree"
"$bin" policy "$a/large" --set "dir_split=$split" > /dev/null
cp -r docs "$work/docs"
cp -r docs "$a/tree"
fillers=
for n in 1 2 3 4; do
    mount=$([ $((n % 2)) = 0 ] && echo "$a" || echo "$b")
    perl "$work/fill.pl" "$mount/large" "file$n" $((files / 4)) "$work/made$n" & fillers+=" $!"
done
perl "$work/list.pl" "$a/large" "$work/made1" file1 > "$work/listed" & lister=$!
perl "$work/list.pl" "$b/large" "$work/made2" file2 > "$work/listed2" & other=$!
made() { cat "$work"/made? 2> /dev/null | awk '{ sum += $1 } END { print sum + 0 }'; }
filling() {
    local filler
    for filler in $fillers; do if [ -e "/proc/$filler" ]; then return; fi; done
    return 1
}

# Moves the subtree from rank to rank while its servers are killed.
move_on() {
    local rank=0
    while filling; do
        rank=$(((rank + 1) % 5))
        "$bin" subtree move "$a/tree" --to "$rank"
        diff -r "$work/docs" "$b/tree/docs"
    done
}

section 'filled, listed and renamed in, while servers are killed'
began=$SECONDS kills=0 servers=4 added= mover=
while filling; do
    sleep 5
    kill_server $((RANDOM % servers))
    kills=$((kills + 1))
    sleep 0.3
    up
    done=$(made)
    if [ -z "$added" ] && [ "$done" -gt $((files / 4)) ]; then
        added=$done
        "$bin" cluster add "$cluster" < /dev/null
        servers=5
    elif [ -n "$added" ] && [ -z "$mover" ]; then
        move_on > "$work/moves" & mover=$!
    fi
done
for filler in $fillers; do wait "$filler" || fail 'a change has failed'; done
[ -n "$mover" ] || fail 'the files were made too quickly for a rank to join: let FILES be larger'
wait "$mover" || fail 'a subtree does not move'
touch "$work/made1.end" "$work/made2.end"
wait "$lister" || fail 'a listing is wrong'
wait "$other" || fail 'a listing is wrong'
echo "$files files in $((SECONDS - began)) s; $kills servers killed; $(wc -l < "$work/moves") moves; $(cat "$work/listed" "$work/listed2" | tr '\n' ' ')"

section 'every file is there once'
for mount in "$a" "$b"; do
    perl -e 'opendir(D, shift); print "$_\n" while $_ = readdir D' "$mount/large" | grep -v '^\.' | sort > "$work/names"
    is "$(wc -l < "$work/names") $(uniq "$work/names" | wc -l)" "$files $files"
done
is "$(cat "$a/large/renamed-file3-10" "$b/large/file4-$((files / 4 - 1))")" $'file3 10\n'"file4 $((files / 4 - 1))"
is "$(stat -c %h "$b/large")" 2
diff -r "$work/docs" "$b/tree/docs"
"$bin" subtree show "$a/large" --json | jq -c '[.fragments[] | .rank] | group_by(.) | map([.[0], length])'
is "$("$bin" subtree show "$a/large" --json | jq -c '[.fragments[].rank] | unique')" '[0,1,2,3,4]'

section 'the stopped cluster is sound'
umount "$a" "$b"
"$bin" cluster down "$cluster"
"$bin" cluster fsck "$cluster"
echo 'large-directory-test: passed'

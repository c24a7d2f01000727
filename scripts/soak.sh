#!/bin/bash
# soak.sh: the random tests of `make test` with seeds that it has not had, and the combinations that it leaves out.
#
# It runs for SOAK_HOURS= hours, or until it is stopped, and goes on where it was when it is started again: SOAK_DIR=
# (target/soak) holds the number of the next job, and the logs of those that failed. It prints how to repeat each.
set -uo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/debug}")
export BUILD
dir=${SOAK_DIR:-target/soak}
mkdir -p "$dir"
ends=$(($(date +%s) + $(awk -v hours="${SOAK_HOURS:-1000000}" 'BEGIN { printf "%d", hours * 3600 }')))

# FIRST is the first seed of the 2,000 of a round, the first of which `make test` has in round 0; SEEDED is the only seed of a job that has one.
jobs=(
    'SIM_SEED=FIRST SIM_SEEDS=2000 cargo test --workspace --test fuzz nothing_is_found'
    'RANKS_SEED=FIRST RANKS_SEEDS=2000 cargo test --workspace --test machine ranks::'
    'SEED=FIRST SEEDS=2000 cargo test --workspace --test machine repair::'
    'RACE_SEED=FIRST RACE_SEEDS=2000 cargo test --workspace --test file_system race::'
    'SEED=SEEDED POINTS=100 scripts/powerloss-test.sh'
    'SEED=SEEDED ONLY=model scripts/mount-tests.sh'
    'SEED=SEEDED ONLY="cluster data ranks" scripts/mount-tests.sh'
    'SOAK=1 ONLY=small scripts/mount-tests.sh'
)

step=$(cat "$dir/next" 2> /dev/null || echo 0) failed=0
child=
stop() {
    echo "soak: stopped in job $step, with which it begins when it is started again"
    [ -z "$child" ] || { kill -- "-$child"; wait "$child"; }
    exit 130
}
trap stop INT TERM
while [ "$(date +%s)" -lt "$ends" ]; do
    round=$((step / ${#jobs[@]}))
    job=${jobs[step % ${#jobs[@]}]}
    job=${job//FIRST/$((round * 2000))}
    job=${job//SEEDED/$((round + 1000))}
    echo "soak: job $step: $job"
    # With a process group of its own, to be stopped with all that it has started.
    setsid bash -c "$job" > "$dir/log" 2>&1 < /dev/null &
    child=$!
    if ! wait "$child"; then
        failed=$((failed + 1))
        mv "$dir/log" "$dir/failed-$step.log"
        tail -n 20 "$dir/failed-$step.log"
        echo "soak: job $step FAILED; its log is $dir/failed-$step.log; once more: $job"
    fi
    child=
    step=$((step + 1))
    echo "$step" > "$dir/next"
done
echo "soak: $failed jobs failed; the next is $step"
[ "$failed" = 0 ]

#!/bin/bash
# soak.sh: runs the random tests of `make test` with new seeds, and combinations that it omits.
#
# Runs for SOAK_HOURS= hours, or until it is stopped, and resumes with the next job when it is
# started again: SOAK_DIR= (target/soak) has the number of the next job, and the logs of failed
# jobs. Prints the command that repeats a failed job.
set -uo pipefail
cd "$(dirname "$0")/.."
BUILD=$(realpath "${BUILD:-target/debug}")
export BUILD
dir=${SOAK_DIR:-target/soak}
mkdir -p "$dir"
ends=$(($(date +%s) + $(awk -v hours="${SOAK_HOURS:-1000000}" 'BEGIN { printf "%d", hours * 3600 }')))

# FIRST: the first of a round's 2,000 seeds. `make test` uses the first seeds of round 0.
# SEEDED: the seed of a job that has only one.
jobs=(
    'SIM_SEED=FIRST SIM_SEEDS=2000 cargo test --workspace --test fuzz fuzzing_finds_no_violation'
    'RANKS_SEED=FIRST RANKS_SEEDS=2000 cargo test --workspace --test machine ranks::'
    'SEED=FIRST SEEDS=2000 cargo test --workspace --test machine repair::'
    'RACE_SEED=FIRST RACE_SEEDS=2000 cargo test --workspace --test file_system race::'
    'cargo test --package espalier-paper -- --ignored'
    'SEED=SEEDED POINTS=100 scripts/powerloss-test.sh'
    'SEED=SEEDED ONLY=model scripts/mount-tests.sh'
    'SEED=SEEDED ONLY="cluster data ranks" scripts/mount-tests.sh'
    'SOAK=1 ONLY=small scripts/mount-tests.sh'
    'scripts/large-directory-test.sh'
    'SEED=SEEDED scripts/failover-soak.sh'
)

step=$(cat "$dir/next" 2> /dev/null || echo 0) failed=0
child=
stop() {
    echo "soak: stopped in job $step; the next start repeats this job"
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
    # In a new process group, so that `stop` can end all processes of the job.
    setsid bash -c "$job" > "$dir/log" 2>&1 < /dev/null &
    child=$!
    if ! wait "$child"; then
        failed=$((failed + 1))
        mv "$dir/log" "$dir/failed-$step.log"
        tail -n 20 "$dir/failed-$step.log"
        echo "soak: job $step FAILED; its log is $dir/failed-$step.log; to repeat: $job"
    fi
    child=
    step=$((step + 1))
    echo "$step" > "$dir/next"
done
echo "soak: $failed jobs failed; the next is $step"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# Kills a run by SIGKILL at random moments, goes on each time, and compares the end with an undisturbed run's, bit for bit.
#
#   tests/e2e/kill_and_resume.sh UNDISTURBED_DIRECTORY KILLS SECONDS_MAX train -c run.yaml [a.b=c ...]
#
# UNDISTURBED_DIRECTORY is the output.directory of a finished run of the same configuration; the arguments after
# SECONDS_MAX, the longest time until a kill, are percheron's and must name another output.directory. SEED=N repeats
# the same moments.
set -euo pipefail
cd "$(dirname "$0")/../.."

undisturbed=${1:?} kills=${2:?} seconds_max=${3:?}
shift 3
program=build/release/bin/percheron
output=
for argument in "$@"; do
  case $argument in output.directory=*) output=${argument#*=} ;; esac
done
[[ -n $output ]] || { echo "error: give output.directory=DIR, the killed run's own" >&2; exit 1; }
RANDOM=${SEED:-$$}
echo "seed ${SEED:-$$}"

for ((i = 1; i <= kills; ++i)); do
  "$program" "$@" >"$output.log" 2>&1 &
  pid=$!
  wait_ms=$((RANDOM * 32768 + RANDOM))
  wait_ms=$((wait_ms % (seconds_max * 1000)))
  sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
  kill -KILL "$pid" 2>/dev/null || { echo "the run ended before kill $i" >&2; exit 1; }
  wait "$pid" 2>/dev/null || true
  found='no checkpoint yet'
  if [[ -e $output/latest ]]; then
    "$program" inspect "$output/latest" >/dev/null
    found="latest is $(readlink "$output/latest") and loads"
  fi
  echo "kill $i after $((wait_ms / 1000)) s: $found"
done
"$program" "$@" >"$output.log" 2>&1
for file in model.safetensors training_state/masters.safetensors training_state/optimizer.safetensors; do
  cmp "$undisturbed/latest/$file" "$output/latest/$file"
done
echo "$(readlink "$output/latest"): parameters and moments equal $undisturbed's, bit for bit"

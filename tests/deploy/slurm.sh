#!/usr/bin/env bash
# slurm.sh PROGRAM WORK CONFIG STATE: runs deploy/slurm/percheron.sbatch on two nodes, both of which are this machine,
# with stand-ins for Slurm's commands. STATE is how the run shall end: done, or stopped, for which the job is told to end.
set -euo pipefail
program=$1 work=$2 config=$3 state=$4

rm -rf "$work"
mkdir -p "$work/bin" "$work/local" "$work/submitted"
cat >"$work/bin/scontrol" <<'FAKE'
#!/usr/bin/env bash
[[ "$1 $2 $3" == "show hostnames n[1-2]" ]] && printf 'n1\nn2\n'
FAKE
cat >"$work/bin/getent" <<'FAKE'
#!/usr/bin/env bash
[[ $1 == ahostsv4 ]] && echo "127.0.0.${2#n}       STREAM $2"
FAKE
cat >"$work/bin/srun" <<'FAKE'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
tasks=()
for id in 0 1; do
  SLURM_NODEID=$id SLURMD_NODENAME=n$((id + 1)) "$@" &
  tasks+=($!)
done
trap 'kill -TERM "${tasks[@]}"' TERM
wait "${tasks[@]}" || wait "${tasks[@]}"
FAKE
chmod +x "$work"/bin/*

port=$(python3 -c '
import socket
one, two = socket.socket(), socket.socket()
one.bind(("127.0.0.1", 0))
two.bind(("127.0.0.2", one.getsockname()[1]))
print(one.getsockname()[1])')
script=$PWD/deploy/slurm/percheron.sbatch
cd "$work/submitted"
PATH=$work/bin:$PATH SLURM_JOB_ID=77 SLURM_JOB_NODELIST='n[1-2]' TARGETS=cpu:0 TRAINERS=cpu:1 PERCHERON=$program \
  PERCHERON_PORT=$port PERCHERON_LOCAL=$work/local bash "$script" "$config" "output.directory=$work/output" >"$work/job.log" 2>&1 &
job=$!
if [[ $state == stopped ]]; then
  for _ in $(seq 300); do
    ! grep -q '^step ' "$work/job.log" || break
    sleep 0.1
  done
  kill -TERM "$job" || true
fi
well=1
wait "$job" || well=0
# Told to join itself, the first node does not.
[[ $(grep -c 'node n1 at .* has joined' "$work/job.log") == 1 ]] || well=0
((well)) && grep -q "run job-77: $state" "$work/job.log" && [[ -L $work/output/latest ]] && [[ -z $(ls) ]] && exit 0
cat "$work/job.log"
ls -la . "$work/output"
exit 1

#!/usr/bin/env bash
# Two daemons on this machine, joined by mutual TLS as on two: submit, watch, pause, resume, kill a worker, the end.
#
#   tools/demo/several_machines.sh CONFIG.yaml [SECTION.KEY=VALUE ...]
#
# Prints each command that a user would type, with what it answers. PERCHERON names the program (default:
# build/release/bin/percheron), PERCHERON_PORTS two free ports (default: two that are free now). Certificates, state
# and logs of the daemons lie in a temporary folder, which is deleted at the end; the run's output stays.
set -euo pipefail
(($#)) || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }

program=$(realpath "${PERCHERON:-build/release/bin/percheron}")
[[ -x $program ]] || { echo "error: no program at $program; run 'make build' first" >&2; exit 1; }
config=$1
shift
python=${PERCHERON_PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
daemons=()

end() {
  local status=$?
  ((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null || true
  wait
  if ((status)); then
    tail -n 20 "$folder"/*.log >&2 || true
  fi
  rm -rf "$folder"
}
trap end EXIT

# Every run of the program stands in the output as it would be typed in the temporary folder.
percheron() {
  echo "\$ percheron ${*//"$folder"\//}"
  "$program" "$@"
}
free_ports() {
  "$python" -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))'
}
# What `status --json` says of the run: field NAME.
field() {
  "$program" status "$run" --json --node "$alpha" --certs "$folder/certs" |
    "$python" -c 'import json, sys; print(json.load(sys.stdin)["runs"][0][sys.argv[1]])' "$1"
}
wait_for() { # FIELD VALUE
  for _ in {1..3000}; do
    local now
    now=$(field "$1")
    [[ $now == "$2" ]] && return
    [[ $now != failed ]] || break
    sleep 0.1
  done
  echo "error: $1 of the run is '$now', not '$2'" >&2
  exit 1
}
wait_for_step() {
  for _ in {1..3000}; do
    (($(field step) >= $1)) && return
    [[ $(field state) != failed ]] || break
    sleep 0.1
  done
  echo "error: step $1 is not reached" >&2
  exit 1
}

read -r port_alpha port_beta <<<"${PERCHERON_PORTS:-$(free_ports)}"
alpha=127.0.0.1:$port_alpha beta=127.0.0.1:$port_beta

echo '# once, on any machine'
percheron certs init "$folder/certs"
for name in alpha beta operator; do
  percheron certs issue "$folder/certs" $name --address 127.0.0.1
done

echo
echo '# a daemon on each machine'
start_node() { # NAME OPTIONS...
  echo "$1\$ percheron node --name $1 --certs certs ${*:2} &"
  "$program" node --name "$1" --certs "$folder/certs" --state "$folder/$1" "${@:2}" >"$folder/$1.log" 2>&1 &
  daemons+=($!)
}
start_node alpha --listen "$alpha"
start_node beta --listen "$beta" --join "$alpha"
cluster=(--node "$alpha" --certs "$folder/certs")
for _ in {1..300}; do
  grep -q 'beta' "$folder/alpha.log" 2>/dev/null && break
  sleep 0.1
done

echo
echo '# from anywhere: targets on both, the trainer on beta'
percheron submit -c "$config" "$@" 'placement.targets=[alpha/cpu:0, beta/cpu:0]' \
  'placement.trainers=[beta/cpu:1]' "${cluster[@]}"
run=$("$program" status --json "${cluster[@]}" |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["runs"][-1]["run"])')
wait_for_step 2
percheron status "${cluster[@]}"
percheron pause "$run" "${cluster[@]}"
percheron status "$run" --node "$beta" --certs "$folder/certs"
percheron resume "$run" "${cluster[@]}"

echo
echo '# a target dies in the night'
step=$(field step)
worker=$(pgrep -P "${daemons[0]}" -f "^percheron worker $run/cpu:0")
echo "alpha\$ kill -9 $worker    # percheron worker $run/cpu:0"
kill -9 "$worker"
wait_for_step $((step + 2))
wait_for state "done"
percheron logs "$run" "${cluster[@]}" | grep -E 'is lost|is started again|is ready|handed out again|^\$' || true
percheron status "$run" "${cluster[@]}"

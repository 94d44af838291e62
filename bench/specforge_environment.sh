#!/usr/bin/env bash
# Makes .venv-specforge: SpecForge's data preparation, with PyTorch and transformers from .venv-bench, again whenever the
# versions below change.
set -euo pipefail
cd "$(dirname "$0")/.."

# SpecForge without its dependencies: it pins a PyTorch and an SGLang that its preparation does not need.
specforge='specforge==0.2.0'
datasets='datasets>=3,<6'
stamp=.venv-specforge/versions
if [[ ! -f $stamp || $(<"$stamp") != "$specforge $datasets" ]]; then
  bench/python_environment.sh
  echo "      installing $specforge into .venv-specforge"
  python=.venv-specforge/bin/python
  [[ -x $python ]] || .venv-bench/bin/python -m venv .venv-specforge
  packages=$(.venv-bench/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$packages" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/bench.pth"
  "$python" -m pip install --quiet --disable-pip-version-check "$datasets"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps "$specforge"
  echo "$specforge $datasets" >"$stamp"
fi

#!/usr/bin/env bash
# Makes .venv-bench with what bench/pytorch/requirements.txt names, PyTorch among it (some gigabytes), again whenever
# that file changes.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=bench/pytorch/requirements.txt
wanted=$(sha256sum <"$requirements")
stamp=.venv-bench/requirements.sha256
if [[ ! -x .venv-bench/bin/python || ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
  echo "      installing the Python packages of $requirements into .venv-bench (PyTorch: some gigabytes)"
  [[ -x .venv-bench/bin/python ]] || python3 -m venv .venv-bench
  .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
  echo "$wanted" >"$stamp"
fi

# torch.compile builds C++ against Python's headers, which Debian keeps in a package of their own.
header=$(.venv-bench/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
if [[ ! -f $header ]]; then
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y install --no-install-recommends python3-dev >/dev/null || {
    echo "No $header: PyTorch's compiled variants will fail. Install python3-dev." >&2
  }
fi

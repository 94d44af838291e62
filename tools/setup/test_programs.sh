#!/usr/bin/env bash
# Puts Debian's prometheus, promtool, shellcheck and systemd-analyze into build/test-programs for the tests that run
# them, without installing the packages: that would start a server. 26 MB to download, 120 MB unpacked. The tests skip
# where they are absent.
set -euo pipefail
cd "$(dirname "$0")/../.."

directory=build/test-programs
packages=(prometheus shellcheck systemd libsystemd-shared)
[[ ! -f $directory/packages || $(<"$directory/packages") != "${packages[*]}" ]] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "This is no Debian or Ubuntu system: tests skip those of ${packages[*]} that are not in PATH." >&2
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
download() { apt-get -q -o Acquire::Retries=3 download "${packages[@]}" >log 2>&1; }
download || { apt-get -q update >log 2>&1 && download; } || {
  cat log >&2
  echo "${packages[*]} can't be downloaded; the tests that need them are skipped without." >&2
  exit 1
}
cd - >/dev/null
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
rm -rf "$directory"
mkdir -p "$directory/systemd"
mv "$work"/root/usr/bin/{prometheus,promtool,shellcheck} "$directory/"
# With its library and the units that ours names, which only a machine that runs systemd has.
mv "$work"/root/usr/bin/systemd-analyze "$work"/root/lib/systemd/system "$directory/systemd/"
find "$work/root" -name 'libsystemd-shared-*.so' -exec mv {} "$directory/systemd/" ';'
cat >"$directory/systemd-analyze" <<'RUN'
#!/bin/sh
systemd=$(dirname "$(readlink -f "$0")")/systemd
LD_LIBRARY_PATH=$systemd SYSTEMD_UNIT_PATH=$systemd/system exec "$systemd/systemd-analyze" "$@"
RUN
chmod +x "$directory/systemd-analyze"
echo "${packages[*]}" >"$directory/packages"

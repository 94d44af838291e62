#!/usr/bin/env bash
# Puts Debian's prometheus and promtool into build/prometheus for the tests that run them, without installing the
# package: that would start a server. 19 MB to download, 95 MB unpacked. The tests skip where they are absent.
set -euo pipefail
cd "$(dirname "$0")/../.."

directory=build/prometheus
[[ -x $directory/prometheus && -x $directory/promtool ]] && exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "This is no Debian or Ubuntu system: the tests with Prometheus are skipped unless it is in PATH." >&2
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
download() { apt-get -q -o Acquire::Retries=3 download prometheus >log 2>&1; }
download || { apt-get -q update >log 2>&1 && download; } || {
  cat log >&2
  echo "prometheus can't be downloaded; the tests that need it are skipped without." >&2
  exit 1
}
cd - >/dev/null
dpkg-deb -x "$work"/prometheus_*.deb "$work/root"
mkdir -p "$directory"
mv "$work"/root/usr/bin/{prometheus,promtool} "$directory/"

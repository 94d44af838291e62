#!/usr/bin/env bash
# package.sh BUILD WORK: makes the Debian package of what BUILD holds and looks into it.
set -euo pipefail
build=$1 work=$2
for program in dpkg-deb dpkg-shlibdeps; do
  command -v "$program" >/dev/null || { echo "no $program"; exit 77; }
done

rm -rf "$work"
mkdir -p "$work"
cpack --config "$build/CPackConfig.cmake" -B "$work" -D CPACK_COMPONENTS_ALL=percheron >"$work/cpack.log" 2>&1 ||
  { cat "$work/cpack.log"; exit 1; }
package=$(echo "$work"/percheron_*.deb)
dpkg-deb --info "$package" >"$work/info"
dpkg-deb --contents "$package" >"$work/contents"
dpkg-deb --raw-extract "$package" "$work/root"

has() { grep -Eq -- "$2" "$1" || { echo "$(basename "$1") lacks '$2':"; cat "$1"; exit 1; }; }
has "$work/info" '^ Package: percheron$'
has "$work/info" '^ Depends: .*libc6 .*libcaf-core'
has "$work/info" '^ Depends: .*adduser'
has "$work/info" '^ Architecture: (amd64|arm64)$'
for path in /usr/bin/percheron /usr/bin/percheron-setup-python /usr/lib/percheron/ /usr/lib/systemd/system/percheron-node.service \
  /etc/percheron/node.env /usr/share/doc/percheron/copyright /usr/share/percheron/kubernetes/percheron.yaml; do
  has "$work/contents" "\\./${path#/}$"
done
# Nothing elsewhere, nothing that others may write, all root's.
if grep -Ev ' \./((usr|etc)(/.*)?)?$' "$work/contents"; then echo "is out of place"; exit 1; fi
if grep -E '^(.{5}|.{8})w' "$work/contents" || grep -v ' root/root ' "$work/contents"; then echo "has wrong rights"; exit 1; fi
for script in postinst prerm postrm; do test -x "$work/root/DEBIAN/$script"; done
[[ $(<"$work/root/DEBIAN/conffiles") == /etc/percheron/node.env ]]
(cd "$work/root" && md5sum --quiet --check DEBIAN/md5sums)
! readelf --sections "$work/root/usr/bin/percheron" | grep -q '\.debug_info' || { echo "the program is not stripped"; exit 1; }
"$work/root/usr/bin/percheron" --version

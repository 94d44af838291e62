#!/usr/bin/env bash
# installed.sh BUILD WORK CONFIG: installs what BUILD holds, moves it, hides the source and the build, and uses it.
set -euo pipefail
build=$1 work=$2 config=$3
source=$PWD

rm -rf "$work"
mkdir -p "$work/home"
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/percheron --component percheron --strip >"$work/install.log"

unit=$work/stage/opt/percheron/lib/systemd/system/percheron-node.service
grep -q '^ExecStart=/opt/percheron/bin/percheron node ' "$unit"
grep -q '^EnvironmentFile=-/opt/percheron/etc/percheron/node.env' "$unit"
for file in etc/percheron/node.env share/percheron/python/percheron_prepare/prepare.py share/percheron/examples/eagle3.yaml \
  share/percheron/monitoring/dashboard.json share/percheron/slurm/percheron.sbatch share/percheron/kubernetes/percheron.yaml \
  share/doc/percheron/service.md share/doc/percheron/LICENSE; do
  test -s "$work/stage/opt/percheron/$file" || { echo "$file is not installed"; exit 1; }
done
if grep -rIl "$source" "$work/stage"; then
  echo "these installed files name the source"
  exit 1
fi
# What an administrator has set stays.
echo '# mine' >"$work/stage/opt/percheron/etc/percheron/node.env"
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/percheron --component percheron >"$work/again.log"
grep -q '# mine' "$work/stage/opt/percheron/etc/percheron/node.env"

mv "$work/stage/opt/percheron" "$work/moved"
hide=()
if unshare --mount true 2>/dev/null; then
  # shellcheck disable=SC2016 # The inner shell expands this.
  hide=(unshare --mount bash -c 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"' hide "$source")
else
  echo "the source can't be hidden here: that needs root"
fi

cat >"$work/use.sh" <<'USE'
set -euo pipefail
work=$1 config=$2
cd "$work"
percheron=$work/moved/bin/percheron
fail() { echo "$*"; exit 1; }

"$percheron" --version
"$percheron" inspect --devices | grep -q 'cpu:' || fail "inspect --devices names no processor"
"$percheron" train -c "$config" "output.directory=$work/train" 'placement.targets=[cpu:0]' >train.log 2>&1 ||
  fail "train: $(<train.log)"
test -L train/latest || fail "train has left no checkpoint"

# Plug-ins and the Python parts are looked for where they are installed.
! "$percheron" train -c "$config" "output.directory=$work/none" 'placement.targets=[cuda:0]' >cuda.log 2>&1 ||
  fail "there is a GPU without a plug-in"
grep -q "$work/moved/lib/percheron/libpercheron_cuda.so" cuda.log || fail "cuda: $(<cuda.log)"
! "$percheron" prepare --help >python.log 2>&1 || fail "prepare needs no Python environment"
grep -q "run \`$work/moved/bin/percheron-setup-python\`" python.log || fail "prepare: $(<python.log)"
mkdir -p moved/lib/percheron/python/bin
ln -s "$(command -v python3)" moved/lib/percheron/python/bin/python
"$percheron" prepare --help >python.log 2>&1 || grep -q "No module named 'numpy'\|jinja2\|tokenizers" python.log ||
  fail "prepare: $(<python.log)"

"$percheron" node --name one --state "$work/state" >node.log 2>&1 &
node=$!
for _ in $(seq 100); do
  "$percheron" status --state "$work/state" >/dev/null 2>&1 && break
  sleep 0.1
done
"$percheron" submit --state "$work/state" -c "$config" --name served "output.directory=$work/served" \
  'placement.targets=[cpu:0]' 'placement.trainers=[cpu:1]'
"$percheron" logs -f served --state "$work/state" >served.log
"$percheron" status --state "$work/state" | grep -q '^served *done' || fail "$(<node.log)" "$(<served.log)"
kill -TERM "$node"
wait "$node" || fail "the node has ended badly: $(<node.log)"
USE
exec env -i HOME="$work/home" PATH=/usr/sbin:/usr/bin:/sbin:/bin "${hide[@]}" bash "$work/use.sh" "$work" "$config"

#!/usr/bin/env bash
# Checks every shell script of the repository with shellcheck; those that begin with #!/bin/sh as such.
set -euo pipefail
export PATH=$PATH:$PWD/build/test-programs
command -v shellcheck >/dev/null || { echo "no shellcheck; tools/setup/test_programs.sh fetches it"; exit 77; }
mapfile -t scripts < <(grep -rlIE '^#!/(usr/bin/env bash|bin/(ba)?sh)' .ci bench deploy tests tools)
((${#scripts[@]} >= 20)) || { echo "only ${#scripts[@]} scripts found: ${scripts[*]}"; exit 1; }
exec shellcheck "${scripts[@]}"

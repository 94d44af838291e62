#!/usr/bin/env bash
# Checks deploy/docker/Dockerfile with hadolint.
set -euo pipefail
export PATH=$PATH:$PWD/build/deploy-checks/bin
command -v hadolint >/dev/null || { echo "no hadolint; tools/setup/deploy_checks.sh fetches it"; exit 77; }
# DL3008: Debian's own archive fixes versions. DL3013, DL3018: the same for others.
exec hadolint --ignore DL3008 deploy/docker/Dockerfile

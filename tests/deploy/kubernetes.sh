#!/usr/bin/env bash
# Checks deploy/kubernetes against the schemas of Kubernetes, and that its parts name each other.
set -euo pipefail
python=build/deploy-checks/bin/python
[[ -x $python ]] || { echo "no kubernetes-validate; tools/setup/deploy_checks.sh fetches it"; exit 77; }
exec "$python" tests/deploy/check_kubernetes.py deploy/kubernetes

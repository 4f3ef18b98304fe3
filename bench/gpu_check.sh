#!/usr/bin/env bash
# Builds, tests and measures on a machine with an NVIDIA GPU; one JSON document at the end.
#
#   bench/gpu_check.sh [--rehearse] [--out FILE]
#
# FILE is $OUT/gpu_check.json where OUT is set, else build/gpu_check.json. Nothing is installed and
# nothing is downloaded: what python3 (or $PYTHON) has is used, .venv/bin/python where there is one.
# --rehearse runs the same stages on the CPU with tiny shapes. See docs/kernels.md.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  [ -x .venv/bin/python ] && .venv/bin/python -c 'import torch' 2>/dev/null && python=.venv/bin/python
fi
command -v "$python" >/dev/null || {
  echo "bench/gpu_check.sh: $python was not found; name one with PYTHON=/path/to/python3" >&2
  exit 2
}
exec "$python" -m bench.gpu_check "$@"

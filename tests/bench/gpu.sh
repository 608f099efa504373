#!/usr/bin/env bash
# CosyVoice 3 on an NVIDIA card, at full size with random weights: memory, speed, 200 generations, 4, 6 and 12 GB cards.
#
#   bash tests/bench/gpu.sh --json gpu.json        below 8 minutes; needs Python with torch, onnxruntime, safetensors, tokenizers
#   bash tests/bench/gpu.sh --dry-run              the same on a CPU at the tiny kit's size, in seconds: is the script ready?
#
# No network, no checkpoint: weights are drawn on the card. PYTHON names another interpreter.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

# As the supervisor sets them (pipeline/planning/environment.py).
export PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF-expandable_segments:True}
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF-$PYTORCH_ALLOC_CONF}
export CUDA_DEVICE_ORDER=PCI_BUS_ID MALLOC_ARENA_MAX=1 PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec timeout --signal=INT --kill-after=15 475 "${PYTHON:-python3}" -m tests.bench.gpu "$@"

#!/usr/bin/env bash
# What only a machine with a GPU can show, part by part, each with a time limit; a part that fails does not stop the others.
#
#     benchmarks/gpu.sh [OUT] [PART ...]
#
# OUT: where logs and publications go (default: reports/gpu). Parts: doctor, tests, floor, shapes, train, study (default: all, in this order).
# PYTHON names the interpreter (default: .venv/bin/python); LIMIT is each part's limit in seconds (default: 1800).
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-reports/gpu}")
shift || true
parts=("${@:-}")
[[ -n ${parts[0]} ]] || parts=(doctor tests floor shapes train study)
python=${PYTHON:-.venv/bin/python}
limit=${LIMIT:-1800}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
  || { echo "torch finds no GPU here: install a CUDA build of it (docs/scale.md), or run this on a machine with a GPU" >&2; exit 2; }
mkdir -p "$out"

doctor() { "$python" -m specrig doctor; }
# Decoding, replayed as CUDA graphs and not, against plain decoding; training on the GPU against training on the CPU.
# What needs no GPU passes elsewhere and is left out. Side by side, since a tiny model leaves both GPU and host idle.
tests() {
  "$python" -m pytest -q -n "${WORKERS:-$(($(nproc) < 12 ? $(nproc) : 12))}" -k "cuda or gpu" \
    tests/contract/test_drafters.py tests/contract/test_replay.py tests/unit/test_training_device.py
}
# How near decoding comes to the limit of the memory.
floor() { "$python" benchmarks/floor.py; }
# What passes of Llama 8B's shape cost: two minutes on an H200.
shapes() { snakemake configs/gpu_shapes_8b.yaml; }
# SmolLM2's text, draft and heads; what is finished is kept in results/, so the same command goes on after a limit.
train() { snakemake configs/smollm2_train.yaml; }
study() { snakemake configs/gpu_shapes.yaml; }
snakemake() {
  "$python" -m snakemake --workflow-profile profiles/gpu --configfile "$1" \
    && "$python" -m specrig publish "$1" --to "$out"
}

failed=0
for part in "${parts[@]}"; do
  declare -F "$part" > /dev/null || { echo "no part $part: doctor, tests, floor, shapes, train, study" >&2; exit 2; }
  started=$SECONDS
  export -f "$part" snakemake
  export python out
  timeout "$limit" bash -c "$part" > "$out/$part.log" 2>&1
  code=$?
  echo "$part: $([[ $code == 0 ]] && echo passed || echo "failed with exit code $code (124: its time was over)"), $((SECONDS - started)) s, $out/$part.log"
  ((code == 0)) || failed=1
done
exit $failed

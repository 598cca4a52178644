#!/usr/bin/env bash
# Measures the speed of strategies: four nodes as network namespaces, 1 Gbit/s links; two nodes without a limit for pipelines.
# Needs root and iproute2. Usage: results/strategies/measure.sh [FOLDER FOR THE RESULTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "${1:-results/strategies}")
export OMP_NUM_THREADS=1
nodes() { # COUNT RATE COMMAND...
  python tests/network.py --nodes "$1" --rate "$2" "${@:3}"
}
bench=(python -m firetrain bench strategies)

# AlexNet at 128 px on four nodes; in two runs, because the weights of all contenders are in memory at once
alexnet=(squeezenet-digits --set model.name=alexnet --set model.stem=imagenet --set data.image_size=128 --set reduction.name=ring)
for batch in 32 64 128; do
  nodes 4 1gbit "${bench[@]}" "${alexnet[@]}" --set "batch.global_size=$batch" --steps 2 --repeats 5 \
    --strategies data-parallel,one-weird-trick,tensor-parallel:split=inputs --against ddp,dtensor --json >"$out/alexnet-$batch.json"
  nodes 4 1gbit "${bench[@]}" "${alexnet[@]}" --set "batch.global_size=$batch" --steps 2 --repeats 5 \
    --strategies "one-weird-trick,tensor-parallel:split=outputs,tensor-parallel:split=alternate,grid:images=2,outputs=2,pipeline:stages=4,pipeline:stages=4,micro_batches=4" \
    --against pipelining:micro_batches=4 --json >"$out/alexnet-$batch-others.json"
done
# GoogLeNet, whose one fully connected layer is small
for batch in 32 128; do
  nodes 4 1gbit "${bench[@]}" googlenet-paper-digits --set data.image_size=64 --set reduction.name=ring \
    --set model.auxiliary_heads=false --set "batch.global_size=$batch" --steps 2 --repeats 5 \
    --strategies data-parallel,one-weird-trick --json >"$out/googlenet-$batch.json"
done
# the idle time of two stages, without a limit of the links
nodes 2 none "${bench[@]}" googlenet-paper-digits --set data.image_size=64 --set reduction.name=ring \
  --set model.auxiliary_heads=false --set batch.global_size=32 --steps 2 --repeats 5 \
  --strategies "pipeline:stages=2,micro_batches=4,pipeline:stages=2,micro_batches=8,pipeline:stages=2,micro_batches=4,schedule=1f1b,pipeline:stages=2,micro_batches=8,schedule=1f1b" \
  --against pipelining:micro_batches=4,pipelining:micro_batches=8,pipelining:micro_batches=4,schedule=1f1b,pipelining:micro_batches=8,schedule=1f1b \
  --json >"$out/bubbles.json"

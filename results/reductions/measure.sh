#!/usr/bin/env bash
# Measures everything in this folder's README.md, in about a quarter of an hour: four nodes as network namespaces, 1 Gbit/s links.
# Needs root, iproute2, openmpi-bin and the extra [openmpi]. Usage: results/reductions/measure.sh [FOLDER FOR THE RESULTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "${1:-results/reductions}")
network=(python tests/network.py --nodes 4 --rate 1gbit)
bench=(python -m firetrain bench)
some=native,direct,double-tree,halving-doubling,parameter-server,pipelined-tree,ring,tree,torus

rm -f "$out/profile.json"
"${network[@]}" "${bench[@]}" link --save "$out/profile.json"
# the table that auto uses
"${network[@]}" "${bench[@]}" allreduce --reductions "$some" --sizes 4KiB:64KiB --repeats 101 \
  --profile "$out/profile.json" --save "$out/profile.json"
"${network[@]}" "${bench[@]}" allreduce --reductions "$some" --sizes 256KiB:4MiB --repeats 15 \
  --profile "$out/profile.json" --save "$out/profile.json"
"${network[@]}" "${bench[@]}" allreduce --reductions native,direct,double-tree,halving-doubling,ring,torus \
  --sizes 16MiB,27MB,64MiB --repeats 5 --profile "$out/profile.json" --save "$out/profile.json"
# the tables: one rank per node
"${network[@]}" "${bench[@]}" allreduce --reductions "$some,auto" --sizes 4KiB:4MiB --repeats 61 \
  --profile "$out/profile.json" --json > "$out/small.json"
"${network[@]}" --mpirun python tests/openmpi.py --sizes 4KiB:64MiB,27MB --repeats 9 --json "$out/openmpi.json"
"${network[@]}" "${bench[@]}" allreduce --reductions "$some,auto" --sizes 16MiB,27MB,64MiB --repeats 7 \
  --profile "$out/profile.json" --json > "$out/large.json"
# 27 MB with fewer reductions, and so fewer sockets and buffers, in each process
"${network[@]}" "${bench[@]}" allreduce --reductions native,ring,halving-doubling,double-tree,tree --sizes 64KiB,27MB --repeats 9 \
  --json > "$out/few.json"
"${network[@]}" --ranks-per-node 2 "${bench[@]}" allreduce --sizes 27MB --repeats 9 --reductions native,hierarchical \
  --json > "$out/two-per-node-few.json"
# two ranks on each node
"${network[@]}" --ranks-per-node 2 "${bench[@]}" allreduce --sizes 27MB --repeats 15 \
  --reductions native,ring,hierarchical,hierarchical:outer=halving-doubling --json > "$out/two-per-node.json"
# bfloat16 on the wire
"${network[@]}" "${bench[@]}" allreduce --reductions native,ring,halving-doubling,double-tree,direct --sizes 27MB \
  --wire-dtype bfloat16 --repeats 9 --json > "$out/bfloat16.json"
"${network[@]}" --ranks-per-node 2 "${bench[@]}" allreduce --reductions native,direct,hierarchical,ring,powersgd,top-k --sizes 27MB \
  --wire-dtype bfloat16 --repeats 5 --json > "$out/bfloat16-two-per-node.json"
# a whole training step compared with DistributedDataParallel
for model in "squeezenet1_1 --repeats=15 --steps=3" "googlenet --repeats=8 --steps=2"; do
  read -r -a options <<<"$model"
  "${network[@]}" "${bench[@]}" step squeezenet-digits "${options[@]:1}" --set "model.name=${options[0]}" \
    --set data.image_size=64 --set batch.global_size=32 --set reduction.name=auto --set reduction.bucket_mib=null \
    --set "reduction.profile=$out/profile.json" --json > "$out/step-${options[0]}.json"
done

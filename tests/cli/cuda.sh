#!/bin/bash
# SPDX-License-Identifier: MIT
#
# GPU memory, over an emulator of NVIDIA's driver, without a GPU.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

: "${HAUL_DOUBLES:?set HAUL_DOUBLES to tests/doubles of the build folder}"

with_gpus() {
  LD_LIBRARY_PATH=$HAUL_DOUBLES/cuda/${driver:-current} "$@"
}
export -f with_gpus
export HAUL_DOUBLES driver=current
gpus=(bash -c 'with_gpus "$@"' with_gpus)

section "info and doctor"
expect 0 "info" "${gpus[@]}" "$HAUL" info
says "^cuda:0  *double of a GPU (no hardware) 0  *4.00 GiB .* 0000:da:00.0  *descriptor\(, dma-buf to NICs\)\?$"
says "^cuda:1  *double of a GPU (no hardware) 1 .* 0000:db:00.0"
expect 0 "info with one visible GPU" env CUDA_VISIBLE_DEVICES=1 "${gpus[@]}" "$HAUL" info
says "^cuda:0  *double of a GPU (no hardware) 1 "
holds "the other one is hidden" bash -c "! grep -q '^cuda:1 ' '$work/out'"
expect 0 "doctor" "${gpus[@]}" "$HAUL" doctor cuda
says "^ok  *cuda.driver  *libcuda.so.1 is there"
says "^ok  *cuda.device  *2 GPUs"
expect 0 "doctor requires a GPU" "${gpus[@]}" "$HAUL" doctor --require cuda.device
expect 0 "doctor without a visible GPU" env CUDA_VISIBLE_DEVICES= "${gpus[@]}" "$HAUL" doctor cuda --json
holds_json "the check is missing" '[c["state"] for c in it if c["name"] == "cuda.device"] == ["missing"]'
expect 1 "doctor requires a GPU" env CUDA_VISIBLE_DEVICES= "${gpus[@]}" "$HAUL" doctor \
  --require cuda.device
driver=before-vmm
expect 0 "doctor over an old driver" "${gpus[@]}" "$HAUL" doctor cuda
says "older than CUDA 10.2's: it lacks 10 calls"
expect 1 "serve over an old driver" "${gpus[@]}" "$HAUL" serve --listen "unix://$work/old" \
  --region kv=cuda:0:1M
complains "older than CUDA 10.2"
complains "cuMemCreate"
complains_briefly
driver=current

section "there and back"
random_file "$work/odd" 7000003
LD_LIBRARY_PATH=$HAUL_DOUBLES/cuda/current serve --region kv=cuda:0:8M --region other=cuda:1:8M
expect 0 "ls" "$HAUL" ls "$unix"
says "^kv  *8.00 MiB  *cuda:0  *read-write"
for path in map tcp; do
  for region in kv other; do
    expect 0 "put into $region over $path" "${gpus[@]}" "$HAUL" put "$work/odd" "$unix/$region" \
      --only "$path" --checksum
    says "path $path"
    says "device DMA 1"
    expect 0 "get" "${gpus[@]}" "$HAUL" get "$unix/$region" "$work/copy" --only "$path" --checksum \
      --length 7000003
    holds "the bytes are the same" cmp "$work/odd" "$work/copy"
  done
done

section "copies"
expect 0 "explain memory that is not pinned" "${gpus[@]}" "$HAUL" explain host "$unix/kv"
says "^map  *chosen .* cpu 1, kernel 0, dma 1  *no  *mapped, copied by the device, through pinned memory"
says "^tcp .* cpu 0, kernel 1, dma 1  *no "
expect 0 "explain zero copy" "${gpus[@]}" "$HAUL" explain host "$unix/kv" --require-zero-copy
says "^map  *closed .* zero copy was required"
expect 0 "explain memory of another GPU" "${gpus[@]}" "$HAUL" explain cuda:1 "$unix/kv"
says "^map  *chosen .* cpu 0, kernel 0, dma 1  *yes  *mapped, copied by the device"

section "a client without access to the GPU"
expect 0 "explain" env CUDA_VISIBLE_DEVICES=0 "${gpus[@]}" "$HAUL" explain host "$unix/other"
says "is not visible"
expect 0 "put" env CUDA_VISIBLE_DEVICES=0 "${gpus[@]}" "$HAUL" put "$work/odd" "$unix/other"
says "path tcp"
expect 0 "put without a driver" "$HAUL" put "$work/odd" "$unix/kv"
says "path tcp"
expect 0 "get" "${gpus[@]}" "$HAUL" get "$unix/kv" "$work/copy" --length 7000003
holds "the bytes are the same" cmp "$work/odd" "$work/copy"

finish

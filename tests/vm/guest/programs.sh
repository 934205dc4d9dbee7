#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The library's test programs on this kernel: all of them with KVM, else those that tolerate emulation.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

# Programs that take minutes under emulation, or measure times.
declare -A slow=(
  [node_kill]="more than 120 s" [node_load]="more than 100 s" [node_messages]="40 s" [node_names]="50 s" [node_oom]="more than 120 s"
  [node_raw_control]="70 s" [node_raw_rails]="90 s" [node_submit]="100 s" [conformance_provider]="70 s"
  [conformance_transport]="more than 120 s for each path"
  [conformance_transport_faults]="its bounds are in seconds"
)

# run_program NAME
run_program() {
  local began=$SECONDS status
  timeout 240 "$1" >"$work/out" 2>"$work/err" </dev/null
  status=$?
  case $status in
  0) passed "$1, $((SECONDS - began)) s" ;;
  77) skipped "$1: $(sed -n 's/^skipped //p' "$work/out" | head -n 1)" ;;
  *) failed "$1: exit status $status after $((SECONDS - began)) s" ;;
  esac
}

for program in /haul/tests/*_*; do
  name=${program##*/}
  if [[ $name == unit_gaudi_driver || $name == unit_gaudi_memory || $name == unit_memory_cuda ]]; then
    skipped "$name: it stands on a double of a driver's library, which is not in this machine"
  elif [[ $name == unit_rdma_* || $name == rdma_double || $name == rdma_faults || $name == rdma_atomics ]]; then
    skipped "$name: it stands on a double of libibverbs, and the real one is here"
  elif [[ -n ${slow[$name]-} ]] && ! is_fast; then
    skipped "$name in emulation: ${slow[$name]}"
  else
    run_program "$name"
  fi
done

finish

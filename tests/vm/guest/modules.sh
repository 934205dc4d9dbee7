#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Memory from DPDK and the plugin for NCCL, over Soft-RoCE.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

export HAUL_TEST_SLOW=1
limit=190
section "memory from DPDK, which the NIC reads and writes itself"
if [[ -e /lib/librte_eal.so.23 ]]; then
  expect 0 "what every transport does with it" on a env HAUL_TEST_DEVICE=dpdk:0 \
    conformance_transport rdma tcp://127.0.0.1:0 brief
else
  skipped "memory from DPDK: librte_eal.so.23 is not installed"
fi

section "the plugin for NCCL"
export HAUL_NCCL=/haul/lib/libnccl-net-haul.so
export HAUL_PATHS=rdma
expect 0 "ranks" on a /haul/nccl/nccl_traffic
expect 0 "NCCL's faults" on a /haul/nccl/nccl_faults
unset HAUL_PATHS

finish

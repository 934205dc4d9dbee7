#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Real dma-bufs: of udmabuf and of a dma-heap, and registered with a NIC, for which a double stands.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

mount -t debugfs debugfs /sys/kernel/debug # where the kernel counts them
double=/haul/doubles/libdmabuf-nic.so

section "of memory that haul allocates"
expect 0 "processes share it, and nothing of it is left" conformance_dmabuf

section "of a dma-heap"
expect 0 "on one host" node_dma_heap
serve_on b --region target=host:8M
expect 0 "between hosts, with NICs" on a env "HAUL_TEST_PEER=tcp://$v4_b:7420" node_dma_heap
stop $server

section "the double of a NIC that takes dma-bufs"
expect 0 "its own test" env LD_PRELOAD=$double HAUL_DMABUF_NIC_REPORT="$work/report" unit_dmabuf_nic
holds "it reports what it saw" grep -q '^unit_dmabuf_nic probes=[1-9].* violations=12$' "$work/report"
expect 77 "without the double there is nothing to test" unit_dmabuf_nic

section "device memory over Soft-RoCE"
expect 0 "through stages" on a rdma_device
says "device memory goes through stages"
echo 256 >/sys/module/udmabuf/parameters/size_limit_mb
rm -f "$work/report"
expect 0 "straight, with the double of a NIC that takes dma-bufs" \
  on a env LD_PRELOAD=$double HAUL_DMABUF_NIC_REPORT="$work/report" rdma_device
says "device memory goes straight"
holds "every registration was as the kernel wants it" grep -q ' violations=0$' "$work/report"

finish

#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Real dma-bufs, of udmabuf and of a dma-heap, registered with a mock of a NIC.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

mount -t debugfs debugfs /sys/kernel/debug # the kernel's list of dma-bufs
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
holds "it reports the registrations" grep -q '^unit_dmabuf_nic probes=[1-9].* violations=12$' "$work/report"
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

# straight MODE: a file into device memory and back, with the mock in this mode on both hosts.
straight() {
  rm -f "$work/report" "$work/copy"
  export LD_PRELOAD=$double HAUL_DMABUF_NIC=$1 HAUL_DMABUF_NIC_REPORT=$work/report
  serve_on b --region kv=sim:0:8M
  expect 0 "put" on a "$HAUL" put "$work/file" "$v4_b/kv" --only rdma --checksum
  expect 0 "get" on a "$HAUL" get "$v4_b/kv" "$work/copy" --length $length --only rdma
  unset LD_PRELOAD HAUL_DMABUF_NIC HAUL_DMABUF_NIC_REPORT
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  stop $server
}

length=3000001
random_file "$work/file" $length
section "device memory, registered through its dma-buf"
straight on
holds "it was, and nothing was wrong or is left" all_ended "$work/report"

section "device memory that the NIC has no room for"
straight full
holds "it was tried" grep -q "refused=[1-9]" "$work/report"
holds "and nothing was registered" test -z "$(grep -v "registered=0 .*violations=0" "$work/report")"

finish

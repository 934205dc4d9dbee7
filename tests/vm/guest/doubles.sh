#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Accelerator memory over Soft-RoCE, with mocks of the GPU and Gaudi drivers and of dma-buf registration;
# dma-bufs and verbs are real.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

echo 256 >/sys/module/udmabuf/parameters/size_limit_mb
mkdir "$work/gaudi"
export LD_LIBRARY_PATH=/haul/doubles/drivers HAUL_DOUBLE_GAUDI=$work/gaudi HAUL_TEST_SLOW=1
export LD_PRELOAD=/haul/doubles/libdmabuf-nic.so HAUL_DMABUF_NIC_REPORT=$work/report
limit=190

# places WAY: from each kind of memory to each other.
places() {
  rm -f "$work/report"
  expect 0 "between all kinds of memory" on a env HAUL_TEST_WAY="$1" \
    HAUL_TEST_PLACES="host sim:0 cuda:0 gaudi:0" rdma_places
}

# between HERE THERE: two processes, each with its device.
between() {
  expect 0 "$1 here, $2 there" on a env HAUL_TEST_DEVICE="$1" HAUL_TEST_OWNER_DEVICE="$2" \
    conformance_transport rdma tcp://127.0.0.1:0 brief
}

section "through stages"
HAUL_DMABUF_NIC=off places staged

section "straight"
places straight
between cuda:0 gaudi:0
between gaudi:0 cuda:0
holds "all that was registered ended, and nothing was wrong" all_ended "$work/report"

section "between the files of a server and a GPU"
mkdir -p /var/tmp
rm -f "$work/report"
expect 0 "straight" on a env HAUL_PATHS=rdma HAUL_TEST_DEVICE=cuda:0 storage_devices wire
holds "all that was registered ended, and nothing was wrong" all_ended "$work/report"

finish

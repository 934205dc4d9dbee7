#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A NIC is removed under way (`rdma link delete`), at the writer and at the owner. The kernel keeps
# Soft-RoCE's devices until their last user closes them; vendors' drivers do not, see
# tests/rdma/faults.c.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

length=$((64 << 20))
random_file "$work/file" $length

is_over() { ! kill -0 "$1" 2>/dev/null; }

# removed DEVICE: a put during which the device is deleted. Sets $deletion.
removed() {
  serve_on b --region memory=host:64M
  begin "$work/file" $v4_b/memory
  rdma link delete "$1" &
  deletion=$!
  restore
  end
  holds "the put ends" test $status = 0
  expect 0 "its bytes are there" on a "$HAUL" get $v4_b/memory "$work/copy" --length $length --only tcp
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  rm -f "$work/copy"
}

section "at the writer"
removed rxe0
holds "it is gone with the command that used it" await is_over $deletion
expect 0 "the next put takes the remaining rails" on a "$HAUL" put "$work/file" $v4_b/memory --checksum
says "path rdma, rxe1"
stop $server
holds "serve ends with 0" test $status = 0
rdma link add rxe0 type rxe netdev eth0

section "at the owner"
removed rxe1
expect 0 "the node lives on" on a "$HAUL" ls $v4_b
stop $server
holds "serve ends with 0" test $status = 0
holds "the device is gone with it" await is_over $deletion
rdma link add rxe1 type rxe netdev eth1

section "and afterwards"
serve_on b --region memory=host:64M
expect 0 "a new connection takes rdma again" on a "$HAUL" put "$work/file" $v4_b/memory --checksum
says "path rdma"
stop $server

finish

#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The command between the two hosts over Soft-RoCE, and transfers whose wire breaks.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

length=4000003
long=$((96 << 20))
random_file "$work/file" $length
random_file "$work/long" $long
serve_on b --region a=host:8M --region kv=sim:0:8M --region large=host:96M

wire_carries() { holds "its bytes went over Soft-RoCE's wire" moved "$1"; }

section "the choice of path"
for size in 4K 1M; do
  expect 0 "explain $size" on a "$HAUL" explain host $v4_b/a --size $size
  says "^rdma  *chosen .*  yes  *rxe0, 1 rail"
  says "^tcp  *open "
done
expect 0 "explain, device memory" on a "$HAUL" explain sim:0 $v4_b/kv --size 1M
says "^rdma  *chosen .*staged on both sides"

for host in $v4_b "[$v6_b]"; do
  section "over $host"
  for region in a kv; do
    before=$(on_wire)
    expect 0 "put into $region" on a "$HAUL" put "$work/file" "$host/$region" --checksum
    says "path rdma"
    says "checksum verified"
    says "not tcp: "
    wire_carries $length
    before=$(on_wire)
    expect 0 "get from $region" on a "$HAUL" get "$host/$region" "$work/copy" --length $length --checksum
    says "path rdma"
    says "checksum verified"
    wire_carries $length
    holds "the bytes are the same" cmp "$work/file" "$work/copy"
    rm -f "$work/copy"
  done
done

section "zero copy"
expect 0 "put" on a "$HAUL" put "$work/file" $v4_b/a --require-zero-copy
says "path rdma"

section "the traffic class"
rdma_dscp eth1 >"$work/packets" &
processes+=($!)
await has_lines 1 "^listening" "$work/packets" || failed "packets are watched"
expect 0 "put" on a env HAUL_RDMA_TRAFFIC_CLASS=104 "$HAUL" put "$work/file" $v4_b/a
says "path rdma"
await has_lines 1 "^dscp 26$" "$work/packets" || failed "its packets have DSCP 26"
expect 0 "the port" on a env HAUL_RDMA_TRAFFIC_CLASS=104 "$HAUL" info
says "^rxe0/1  *[0-9]* .* 104 "

section "the wire breaks"
begin "$work/long" $v4_b/large
impair loss 100%
end
holds "the put goes on, and ends" test $status = 0
says "slices retried"
says "the path changed during the transfer: .* rdma, .* tcp"
restore
expect 0 "it is compared over tcp" on a "$HAUL" get $v4_b/large "$work/copy" --length $long --only tcp
holds "the bytes are the same" cmp "$work/long" "$work/copy"
rm -f "$work/copy"

section "it breaks, and only zero copy will do"
begin "$work/long" $v4_b/large --require-zero-copy
impair loss 100%
end
holds "the put fails" test $status = 1
complains "no path meets the constraints"
complains "not tcp: it buffers the data"
restore

section "it breaks, and only rdma will do"
begin "$work/long" $v4_b/large --only rdma
impair loss 100%
end
holds "the put fails" test $status = 1
complains "no path meets the constraints"
complains "rdma: "
restore

section "and afterwards"
expect 0 "a new connection takes rdma again" on a "$HAUL" put "$work/file" $v4_b/a --checksum
says "path rdma"
stop $server
holds "serve ends with 0" test $status = 0

finish

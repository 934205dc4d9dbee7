#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The command between the two hosts.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

length=4000003
random_file "$work/file" $length
serve_on b --region a=host:8M --region kv=sim:0:8M

for host in $v4_b "[$v6_b]"; do
  section "over $host"
  expect 0 "ls" on a "$HAUL" ls "$host"
  says "^a  *8.00 MiB  *host  *read-write$"
  for region in a kv; do
    expect 0 "put into $region" on a "$HAUL" put "$work/file" "$host/$region" --only tcp --checksum
    says "path tcp"
    says "checksum verified"
    expect 0 "get from $region" on a "$HAUL" get "$host/$region" "$work/copy" --length $length --only tcp
    holds "the bytes are the same" cmp "$work/file" "$work/copy"
    rm -f "$work/copy"
  done
done

section "the end"
stop $server
holds "serve ends with 0" test $status = 0

finish

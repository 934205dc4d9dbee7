#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Peer-to-peer memory of an NVMe disk, read and written by that disk without a copy by the host. It
# needs the machine of tests/vm/run --p2p. The emulated disk reports each range of its own memory that a
# command of the driver names.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

# moved_by_disk: bytes that disks have read from or written to their own memory so far.
moved_by_disk() {
  awk '/^pci_nvme_map_addr_cmb / { sum += $NF } END { print sum + 0 }' /host/disks
}

published=(/sys/bus/pci/devices/*/p2pmem/published)
[[ -e ${published[0]} ]] ||
  skip_all "no PCI device publishes memory here; tests/vm/run --p2p has one"

section "the place"
holds "one disk publishes memory" test "$(cat "${published[@]}")" = 1
expect 0 "haul info names it" "$HAUL" info
says "p2p:0"
expect 0 "the suite of providers" env HAUL_TEST_SLOW=1 conformance_provider p2p

section "the disk that has the memory"
expect 0 "a file system" mount /dev/nvme0n1 /mnt
mounts+=(/mnt)
before=$(moved_by_disk)
expect 0 "reads 8 MiB into it and writes them from it; nothing else may" storage_p2p /mnt/file
holds "all of them straight" test $(($(moved_by_disk) - before)) = $((16 << 20))

# serve_file FOLDER SOCKET: a node with a region of 8 MiB of peer-to-peer memory, which a new file of that
# size in the folder fills. What it prints goes to $work/SOCKET.
serve_file() {
  random_file "$1/weights" $((8 << 20))
  sync
  echo 3 >/proc/sys/vm/drop_caches
  before=$(moved_by_disk)
  "$HAUL" serve --listen "unix://$work/$2.socket" --region w=p2p:0:8M --load "w=$1/weights" >"$work/$2" 2>&1 &
  processes+=($!)
  await has_lines 1 "^listening on " "$work/$2" || failed "haul serve"
  moved=$(($(moved_by_disk) - before))
}

section "a file read into a region that peers use"
serve_file /mnt own
holds "the report says that no host copy was made" \
  grep -q "^loaded w: 8.00 MiB .*: O_DIRECT, into peer-to-peer memory, no copy in host memory" "$work/own"
holds "the disk wrote all of it to the memory" test "$moved" = $((8 << 20))
expect 0 "a peer gets it" "$HAUL" get "unix://$work/own.socket/w" "$work/got" --checksum
holds "the bytes are the file's" cmp /mnt/weights "$work/got"

section "another disk"
expect 0 "its file system" mount /dev/nvme1n1 /srv
mounts+=(/srv)
before=$(moved_by_disk)
expect 0 "is refused by the kernel, and haul says so" storage_p2p /srv/file refused
holds "nothing was moved" test "$(moved_by_disk)" = "$before"
serve_file /srv other
holds "the report says why the file was copied" \
  grep -q "8.00 MiB copied in host memory: .*no way from this disk to the memory" "$work/other"
holds "the disk wrote nothing to the memory" test "$moved" = 0
expect 0 "a peer gets it" "$HAUL" get "unix://$work/other.socket/w" "$work/got" --checksum
holds "the bytes are the file's" cmp /srv/weights "$work/got"

section "peers"
ip link set lo up
limit=190
expect 0 "the suite of transports over tcp, in brief" \
  env HAUL_TEST_SLOW=1 HAUL_TEST_DEVICE=p2p:0 conformance_transport tcp tcp://127.0.0.1:0 brief
random_file "$work/file" 3000001
"$HAUL" serve --listen "unix://$work/socket" --region "m=p2p:0:8M" >"$work/serve" 2>&1 &
processes+=($!)
await has_lines 1 "^listening on " "$work/serve" || failed "haul serve"
expect 0 "put" "$HAUL" put "$work/file" "unix://$work/socket/m" --checksum
expect 0 "get" "$HAUL" get "unix://$work/socket/m" "$work/copy" --length 3000001 --checksum
holds "the bytes are the same" cmp "$work/file" "$work/copy"
expect 0 "over tcp" "$HAUL" get "unix://$work/socket/m" "$work/copy" --length 3000001 --only tcp
holds "the bytes are the same" cmp "$work/file" "$work/copy"

finish

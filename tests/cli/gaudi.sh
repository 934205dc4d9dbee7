#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Gaudi memory, over an emulator of its driver.

: "${HAUL_DOUBLES:?set HAUL_DOUBLES to tests/doubles of the build folder}"
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh"

section "without a driver"
expect 0 "doctor" env LD_LIBRARY_PATH= "$HAUL" doctor gaudi
if [[ -e /sys/module/habanalabs ]] || grep -qs 0x1da3 /sys/bus/pci/devices/*/vendor; then
  says "^missing  gaudi.library .*libhl-thunk"
  says "gaudi.library: sudo apt-get install"
else
  holds "nothing is missing: this host has no Gaudi" \
    has_lines 6 "^ok  *gaudi\..* not needed: this host has no Gaudi$" "$work/out"
  holds "and nothing needs a fix" has_lines 0 "to fix it" "$work/out"
fi
expect 0 "doctor of a framework's device" env LD_LIBRARY_PATH= HAUL_GAUDI_FD=3 "$HAUL" doctor gaudi
says "^missing  gaudi.library .*libhl-thunk"
says "gaudi.library: sudo apt-get install"
expect 1 "a node that needs it" "$HAUL" serve --listen "unix://$work/none" --region kv=gaudi:0:8M
complains "libhl-thunk cannot be opened"
complains "^hint: .*apt-get install"

export HAUL_DOUBLE_GAUDI=$work LD_LIBRARY_PATH=$HAUL_DOUBLES/hlthunk/symbols

section "info and doctor"
expect 0 "info" "$HAUL" info
says "^gaudi:0 .*Gaudi2 double .*960.00 MiB .*0000:33:00.0  dma-buf to NICs alone$"
says "^gaudi:1 .*0000:34:00.0"
expect 0 "doctor" "$HAUL" doctor gaudi --require gaudi
says "^ok .*gaudi.free"
expect 1 "an unknown place" "$HAUL" serve --listen "unix://$work/none" --region kv=gaudi:2:8M
complains "gaudi has 2 devices"

section "there and back"
random_file "$work/in" 8388608
serve --region kv=gaudi:0:8M
for address in "$tcp" "$unix"; do
  expect 0 "put to $address" "$HAUL" put "$work/in" "$address/kv"
  says "at gaudi:0"
  says 'not map: the peer says "one process opens a Gaudi device'
  expect 0 "get from $address" "$HAUL" get "$address/kv" "$work/back"
  holds "the bytes are the same" cmp "$work/in" "$work/back"
  rm -f "$work/back"
done

section "one process a device"
expect 0 "doctor" "$HAUL" doctor gaudi
says "^limited .*gaudi.free .*in use by another process: gaudi:0"
says "gaudi.free: sudo fuser"
expect 1 "a second process" "$HAUL" explain gaudi:0 "$unix/kv"
complains "another process has the device"
expect 0 "the other device" "$HAUL" explain gaudi:1 "$unix/kv"
stop "$server"
holds "the server ends" test "$status" = 0
expect 0 "the device is free again" "$HAUL" doctor gaudi --require gaudi.free

section "a device that is reset"
for fault in abort:2:5 timeout:2:5 submit:2:12 host_map:2:5; do
  export HAUL_DOUBLE_GAUDI_FAIL=$fault
  serve --region kv=gaudi:0:8M
  unset HAUL_DOUBLE_GAUDI_FAIL
  expect 1 "put into it, $fault" "$HAUL" put "$work/in" "$tcp/kv"
  complains_briefly
  expect 0 "the node is still there" "$HAUL" ls "$tcp"
  stop "$server"
  holds "the server ends" test "$status" = 0
done
serve --region kv=gaudi:0:8M
expect 0 "put into it after a new start" "$HAUL" put "$work/in" "$tcp/kv"

section "a full device"
expect 1 "more memory than the device has" "$HAUL" serve --listen "unix://$work/none" --region kv=gaudi:1:2G
complains "no room"
complains "^hint: "

finish

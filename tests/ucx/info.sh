#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# info.sh WITH: tests the output of ucx_info (HAUL_UCX_INFO) with the module. WITH is tests/ucx/with.
set -eu
with=$1
info=${HAUL_UCX_INFO:-ucx_info}
command -v "$info" >/dev/null || { echo "skipped ucx.info: no $info (Debian: ucx-utils)" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shellcheck source=tests/support/holds.sh
source "$(dirname "$0")/../support/holds.sh"

UCX_LOG_LEVEL=info "$with" "$info" -d >"$work/devices" 2>&1 || { cat "$work/devices" && exit 1; }

# of NAME: prints the section of a transport.
of() { sed -n "/Transport: $1/,/error handling/p" "$work/devices"; }

holds "there is a memory domain" grep -q 'Memory domain: gaudi$' "$work/devices"
holds "it allocates and registers" \
  test "$(sed -n '/Memory domain: gaudi$/,/Transport/p' "$work/devices" |
    grep -c -E 'allocate: <= 960M$|register: unlimited')" = 2
for line in 'put_short: <= 4294967295$' 'put_bcopy: <= 32K' 'put_zcopy: <= 1G' 'get_short: <= 4294967295$' \
  'get_bcopy: <= 32K' 'get_zcopy: <= 1G' 'latency: 5000 nsec' 'bandwidth: 24414.06/ppn'; do
  holds "gaudi_cpy: $line" grep -q "$line" <(of gaudi_cpy)
done
for line in 'put_zcopy: <= 1G' 'latency: 1000 nsec' 'bandwidth: 24414.06/ppn'; do
  holds "gaudi_dma: $line" grep -q "$line" <(of gaudi_dma)
done
for line in 'put_zcopy: <= 1G' 'latency: 1000 nsec' 'bandwidth: 12207.03/ppn'; do
  holds "gaudi_ipc: $line" grep -q "$line" <(of gaudi_ipc)
done
holds "nothing failed" test -z "$(grep ERROR "$work/devices" | grep -i gaudi)"

UCX_GAUDI_COPY_MAX_ZCOPY=8m UCX_GAUDI_COPY_MAX_BCOPY=8k UCX_GAUDI_DMA_BW=5000MBs \
  UCX_GAUDI_DMA_LATENCY=7us "$with" "$info" -d >"$work/devices" 2>&1
holds "thresholds are configurable" grep -q 'put_zcopy: <= 8M' <(of gaudi_cpy)
holds "each separately" grep -q 'get_bcopy: <= 8K' <(of gaudi_cpy)
holds "estimates are configurable" grep -q 'bandwidth: 5000.00/ppn' <(of gaudi_dma)
holds "latencies are configurable" grep -q 'latency: 7000 nsec' <(of gaudi_dma)

UCX_GAUDI_MEASURE=y "$with" "$info" -d >"$work/devices" 2>&1
holds "GAUDI_MEASURE replaces estimates" \
  test "$(of gaudi_dma | grep -c 'bandwidth: 24414.06/ppn')" = 0
holds "except for gaudi_ipc" grep -q 'bandwidth: 12207.03/ppn' <(of gaudi_ipc)
"$with" "$info" -c -f >"$work/settings" 2>&1
for name in GAUDI_TIMEOUT GAUDI_IMPORT_CACHE_MAX GAUDI_MEASURE GAUDI_COPY_MAX_FAST \
  GAUDI_DMA_MAX_ZCOPY GAUDI_IPC_BW; do
  holds "UCX_$name is a setting" grep -q "^#\? *UCX_$name=" "$work/settings"
done

# Without a device there is no domain and no log line.
HAUL_DOUBLE_GAUDI_DEVICES=0 "$with" "$info" -d >"$work/none" 2>&1
holds "without devices there is no domain" test "$(grep -c -i gaudi "$work/none")" = 0

echo "$failures failed"
((failures == 0))

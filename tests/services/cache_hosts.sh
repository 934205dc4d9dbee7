#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Four stores of a cache, each on a host of its own: a network namespace on a switch. Three clients share the
# host of the first store, reach that by `map` and the others over TCP, and run OPERATIONS while stores are
# killed.
#
#   cache_hosts.sh CACHE_KILL [OPERATIONS]

# shellcheck source=tests/cluster/lib.sh
. "$(dirname "$0")/../cluster/lib.sh"

everybody=(1 2 3 4)
# shellcheck disable=SC2119 # no more hosts
cluster_up
unset HAUL_KEY
stores=()
for one in "${everybody[@]}"; do stores+=("$(host "$one")" "tcp://$(address "$one"):7420"); done

section "${2:-10000} operations under kill -9, over four hosts"
if on 1 "$1" "${2:-10000}" "${stores[@]}" >"$work/out" 2>&1; then
  passed "no wrong bytes, and no replicated block is lost"
else
  failed "no wrong bytes, and no replicated block is lost"
fi
sed 's/^/        /' "$work/out"
cluster_end

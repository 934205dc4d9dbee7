#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The same applications over the real runtime, in the folder HAUL_CUDART if set. No package that the
# tests need has it. Without a GPU the runtime reports its own error.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

: "${HAUL_CUDAHOOK_PRELOAD:?set it to the libraries to preload}" "${KEEP:?set it to the application}"

folder=${HAUL_CUDART:-}
if [[ -z $folder ]]; then
  found=$(ldconfig -p | sed -n 's/.*libcudart\.so\.12 .*=> //p' | head -n 1)
  [[ -n $found ]] || skip_all "no libcudart.so.12 (hint: set HAUL_CUDART to its folder)"
  folder=$(dirname "$found")
fi
export LD_LIBRARY_PATH=$folder

holds "it is not the mock" bash -c "! nm -D '$folder/libcudart.so.12' | grep -q cudart_double"
if [[ -e /dev/nvidiactl ]]; then
  expect 0 "memory without the hook" "${KEEP%keep}memory"
  for program in memory async threads share ipc frameworks; do
    expect 0 "$program" env LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "${KEEP%keep}$program"
  done
else
  expect 1 "the runtime alone" "$KEEP" 3000000
  cp "$work/out" "$work/alone"
  expect 1 "with the hook" env HAUL_CUDAHOOK_LOG=1 LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" \
    "$KEEP" 3000000
  holds "the same error is reported" cmp "$work/alone" "$work/out"
  complains "cudaMalloc 3000000 .* passed on: the runtime has no device: error [0-9]*; error [0-9]*$"
  skipped "memory: no GPU"
fi

finish

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# refused.sh SOURCE TREE: CMake rejects unsupported trees of UCX with a reason. SOURCE is haul's tree, TREE
# a supported one of UCX.
set -eu
source=$1 tree=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# refuses FOLDER TEXT: cmake fails with this text.
refuses() {
  local said
  if cmake -S "$source" -B "$work/build" -DHAUL_TESTS=OFF -DHAUL_BENCH=OFF -DUCX_SOURCE_DIR="$1" \
    >"$work/output" 2>&1; then
    echo "FAILED  $1 was accepted"
    failures=$((failures + 1))
    return
  fi
  said=$(tr -s ' \n' ' ' <"$work/output")
  [[ $said == *"$2"* ]] && echo "ok      $2" && return
  echo "FAILED  missing text: $2"
  sed 's/^/        /' "$work/output"
  failures=$((failures + 1))
}

mkdir -p "$work/ucx/src/uct/base"
touch "$work/ucx/src/uct/base/uct_md.h"
refuses /usr "not a source tree of UCX"
sed 's/\(ucx_ver_minor\], *\)[0-9]*/\118/' "$tree/configure.ac" >"$work/ucx/configure.ac"
refuses "$work/ucx" "UCX 1.18 is not supported, only 1.13, 1.22 and 1.23"
cp "$tree/configure.ac" "$work/ucx/configure.ac"
refuses "$work/ucx" "no config.h in"

echo "$failures failed"
((failures == 0))

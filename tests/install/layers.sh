#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Includes point down the layers: a folder of src/ includes itself and the folders listed for it, and
# the command, the integrations and the services include nothing of src/, only the headers in include/; the NCCL plugin
# includes core/list.h, too.
#
#   layers.sh SOURCE

set -eu
cd "$1"
declare -A below=(
  [core]=core
  [memory]="core memory"
  [fabric]="core memory fabric"
  [transfer]="core memory fabric transfer"
  [directory]=directory
  [file]="memory file"
  [node]="core memory fabric transfer directory file node"
  [storage]="core storage"
  [metrics]=metrics
)
failed=0

# Lines "FILE INCLUDED" of every include of the folders.
includes() {
  grep -rHE --include='*.[ch]' '^[[:space:]]*#[[:space:]]*include' "$@" |
    sed -nE 's/^([^:]*):[^"<]*["<]([^">]*)[">].*/\1 \2/p'
}

fail() {
  echo "$1 includes $2: $3"
  failed=1
}

while read -r file included; do
  layer=${file#src/} layer=${layer%%/*} other=${included%%/*}
  if [[ $included == ../* || $included == */../* ]]; then
    fail "$file" "$included" "a path from src/ or include/ is expected"
  elif [[ -f src/$included && " ${below[$layer]} " != *" $other "* ]]; then
    fail "$file" "$included" "$layer may include: ${below[$layer]}"
  fi
done < <(includes src)

while read -r file included; do
  [[ $file == integrations/nccl/* && $included == core/list.h ]] && continue
  if [[ -f src/$included || $included == *src/* ]]; then
    fail "$file" "$included" "only headers of include/ are expected"
  fi
done < <(includes cmd integrations services)

exit "$failed"

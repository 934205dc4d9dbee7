#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul info --graph, with the emulated accelerator, doubles of GPUs and, where they are built, of a NIC.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

: "${HAUL_DOUBLES:?set HAUL_DOUBLES to tests/doubles of the build folder}"
legible() {
  python3 "$here/../command/svg.py" "$1"
}

section "this host"
expect 0 "as text" "$HAUL" info --graph
says "^  *.*\bsim:0\b.*\bhost\b.*\blo\b"
says "^sim:0 .* X "
says "^sim:0  .*  usable  emulated accelerator"
says "^places  tcp  *ok  *."
holds "each path has a state and what was found" \
  awk '/^FROM /{ on = 1; next } on && NF < 4 { bad = 1 } on { n++ } END { exit bad || n != 3 }' "$work/out"
expect 0 "with the form text" "$HAUL" info --graph=text
expect 0 "as SVG" "$HAUL" info --graph=svg
holds "it is legible" legible "$work/out"
expect 0 "into a file" "$HAUL" info --graph="$work/here.svg"
holds "it is legible" legible "$work/here.svg"
holds "nothing is printed" test ! -s "$work/out"
expect 0 "JSON has no graph" "$HAUL" info --json
is_json

section "two nodes"
serve --name far --region 'kv=host:1M' --region 'locked=host:1M:ro'
expect 0 "the paths to a region" "$HAUL" info --graph "$unix/kv"
says "^paths to far, kv at host$"
says "^host  *map  *chosen, .* for 1.00 MiB"
says "^host  *tcp  *open, .* times slower"
says "^host  *rdma  *[a-z]"
says "^sim:0  *map  *chosen"
expect 0 "a region that cannot be written" "$HAUL" info --graph "$tcp/locked"
says "^host  *[a-z]*  *chosen"
expect 0 "as SVG, with doubles of GPUs" env HAUL_PATHS=tcp LD_LIBRARY_PATH="$HAUL_DOUBLES/cuda/current" \
  "$HAUL" info --graph=svg "$tcp/kv"
holds "the double is named as such" grep -q ">double of a GPU (no hardware) 0<" "$work/out"
holds "a closed path has its reason" grep -q "left out by HAUL_PATHS" "$work/out"
holds "it is legible" legible "$work/out"
if [[ -d $HAUL_DOUBLES/ibverbs/moving ]]; then
  nic=("$here/../doubles/ibverbs-moving/with" "$HAUL_DOUBLES")
  expect 0 "with the double of a NIC" "${nic[@]}" "$HAUL" info --graph
  says "^host .* -\*"
  says "^host  .*  double0/1: the only one$"
  expect 0 "as SVG" "${nic[@]}" "$HAUL" info --graph=svg
  holds "a line leads from the host's memory to its port" grep -q 'class="link"' "$work/out"
  holds "it is legible" legible "$work/out"
else
  skipped "the double of a NIC: this haul was built without rdma"
fi

section "a terminal"
for columns in 60 200; do
  expect 0 "$columns columns" python3 "$here/terminal.py" 50 $columns "$HAUL" info --graph
  tr -d '\r' <"$work/out" | sed -n '3,/^X /p' | sed '$d' >"$work/matrix"
  holds "the lines of the matrix fit" awk -v most=$columns 'length($0) > most && NF > 2 { exit 1 }' "$work/matrix"
done

section "wrong usage"
expect 2 "another form" "$HAUL" info --graph=png
complains "expected text, svg or a file named"
expect 2 "with JSON" "$HAUL" info --graph --json
expect 2 "a target without a graph" "$HAUL" info "$tcp/kv"
expect 2 "a target without a region" "$HAUL" info --graph "$tcp"
expect 1 "an unknown region" "$HAUL" info --graph "$tcp/unknown"
expect 1 "a missing folder" "$HAUL" info --graph="$work/no/file.svg"
complains "cannot create"
expect 1 "a full disk" bash -c '"$HAUL" info --graph=svg >/dev/full'
complains "No space left on device"

finish

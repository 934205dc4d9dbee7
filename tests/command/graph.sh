#!/bin/bash
# SPDX-License-Identifier: MIT
#
# graph.sh COMMAND_GRAPH: the drawings of a mock host with many devices, as SVG and as text.
here=$(dirname "$0")
HAUL=${HAUL:-haul}
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"
graph=$1

section "SVG"
expect 0 "a host with 16 devices" "$graph" svg
cp "$work/out" "$work/drawing"
holds "all names are there" eval 'for i in 0 1 2 3 4 5 6 7; do
  grep -q ">cuda:$i<" "$work/drawing" && grep -q ">mlx5_$i/1<" "$work/drawing" || exit 1; done'
holds "and three bands" has_lines 3 'class="band"' "$work/drawing"
holds "a line leads from each GPU to its port" has_lines 7 'class="link"' "$work/drawing"
holds "a closed port is marked" has_lines 1 'class="box closed"' "$work/drawing"
holds "names are escaped" grep -q "&lt;/text&gt;&lt;script&gt;" "$work/drawing"
holds "control characters are gone" eval "! grep -qP '[^\\x0a\\x20-\\x7e]' '$work/drawing'"
expect 0 "it is valid and legible" python3 "$here/svg.py" "$work/drawing"
if command -v xmllint >/dev/null; then
  holds "for xmllint, too" xmllint --noout "$work/drawing"
fi
sed 's/y="252"/y="230"/' "$work/drawing" >"$work/broken"
holds "the check finds a box that was moved" eval '! cmp -s "$work/drawing" "$work/broken" &&
  ! python3 "$here/svg.py" "$work/broken"'

section "text"
expect 0 "unlimited" "$graph" 0
holds "one matrix has all columns" eval 'grep -q "cuda:0 .*cuda:7 .*mlx5_0/1 .*mlx5_7/1$" "$work/out"'
says "^cuda:2 .* NODE .* SYS .* PCI3\*"
says "^mlx5_1/1 *0  closed  mock of a device 1  *the port is down$"
holds "control characters are gone" eval "! grep -qP '[^\\x0a\\x20-\\x7e\\x80-\\xff]' '$work/out'"
for columns in 80 40 20 1; do
  expect 0 "$columns columns" "$graph" "$columns"
  sed -n '3,/^X /p' "$work/out" | sed '$d' >"$work/matrix"
  holds "each port heads one column" eval \
    '[[ $(grep "^ " "$work/matrix" | grep -o "mlx5_[0-9]/1" | sort | uniq -c | wc -l) == 8 ]]'
  holds "the lines of the matrix fit, or have one column" awk -v most="$columns" \
    'length($0) > most && NF > 2 { exit 1 }' "$work/matrix"
done

finish

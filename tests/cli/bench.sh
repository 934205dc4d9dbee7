#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul bench: all operations, all forms of output.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

serve --region 0=sim:0:4M --region a=host:4M --region s=sim:0:1M --region locked=host:16M:ro

section "write and read"
for path in map tcp; do
  for operation in write read; do
    expect 0 "$operation over $path" "$HAUL" bench "$unix" --op "$operation" --only "$path" \
      --sizes 8,4K,1M..4M --region a --duration 0.03 --json
    holds_json "every size has figures" 'it["region"] == "a" and
      [r["bytes"] for r in it["results"]] == [8, 4096, 1 << 20, 2 << 20, 4 << 20] and
      all(r["count"] > 0 and r["gb_per_second"] > 0 and r["path"] == "'$path'"
          for r in it["results"])'
    holds_json "percentiles rise" 'all(0 < r["latency_us"]["p50"] <= r["latency_us"]["p90"] <=
      r["latency_us"]["p99"] <= r["latency_us"]["p99.9"] <= r["latency_us"]["max"]
      for r in it["results"])'
  done
done
expect 0 "from device to device" "$HAUL" bench "$unix" --region s --place sim:0 --sizes 64K \
  --duration 0.03 --checksum --depth 3
expect 0 "the default region for writing" "$HAUL" bench "$tcp" --sizes 64 --duration 0.02 --json
holds_json "is the largest writable one, in host memory" 'it["region"] == "a"'
expect 0 "the default region for reading" "$HAUL" bench "$tcp" --op read --sizes 64 --duration 0.02 --json
holds_json "is the largest readable one" 'it["region"] == "locked"'
expect 0 "the default sweep" "$HAUL" bench "$unix" --region s --duration 0.01 --json
holds_json "stops at the size of the region" 'it["results"][-1]["bytes"] == 1 << 20'
expect 1 "a read-only region" "$HAUL" bench "$tcp" --region locked --sizes 64

section "all paths"
all_paths=("$HAUL" bench "$unix" --region a --sizes "64,1M" --duration 0.02 --all-paths)
expect 0 "each open path" "${all_paths[@]}" --json
holds_json "has one row for each size, by size, then by name" \
  '[(r["bytes"], r["path"]) for r in it["results"]] == sorted(
     {(b, r["path"]) for b in (64, 1 << 20) for r in it["results"]}) and
   {r["path"] for r in it["results"]} >= {"map", "tcp"}'
holds_json "has figures" 'all(r["gb_per_second"] > 0 and r["latency_us"]["p50"] > 0
  for r in it["results"])'
holds_json "and each other path a reason" 'all(c["reason"] for c in it["closed"]) and
  sorted({r["path"] for r in it["results"]} | {c["path"] for c in it["closed"]}) == ["map", "rdma", "tcp"]'
expect 0 "comma-separated values of all paths" "${all_paths[@]}" --csv
holds "have the path in each line" \
  awk -F, 'NR > 1 { seen[$2]++ } END { exit seen["map"] != 2 || seen["tcp"] != 2 }' "$work/out"
expect 0 "all paths with zero copy" "${all_paths[@]}" --require-zero-copy --json
stderr_has "tcp is not measured: "
holds_json "are not tcp" 'all(r["path"] != "tcp" for r in it["results"]) and
  any(c["path"] == "tcp" for c in it["closed"])'
expect 0 "all paths of the configuration" env HAUL_PATHS=tcp "${all_paths[@]}" --op read
stderr_has "map is not measured: left out by HAUL_PATHS"
holds "are tcp" awk 'NR > 2 && $3 != "tcp" { bad = 1 } END { exit bad || NR != 4 }' "$work/out"
expect 1 "none of all paths" env HAUL_PATHS=tcp "${all_paths[@]}" --require-zero-copy
complains "no path to 'a' is open"

section "messages"
expect 0 "without an echo" "$HAUL" bench "$tcp" --op message --sizes 8,4K --duration 0.05 --json
holds_json "there is a rate and no latency" \
  'all(r["count"] > 0 and r["latency_us"] is None for r in it["results"])'
stderr_has "latency is not measured: the node does not echo"
serve --echo
for name in tcp unix; do
  expect 0 "with an echo over $name" "$HAUL" bench "${!name}" --op message --sizes 8..64,1M \
    --duration 0.05 --json
  holds_json "there are both" \
    'all(r["count"] > 0 and r["latency_us"]["p50"] > 0 for r in it["results"])'
done
expect 1 "a node without regions" "$HAUL" bench "$tcp"
complains "the node has no region that allows write"
serve --echo --poll --region a=host:1M
expect 0 "with both sides polling" "$HAUL" bench "$tcp" --op message --sizes 8 --duration 0.05 --poll
stop "$server"
holds "a polling node ends on SIGTERM" test "$status" = 0

section "output"
serve --region a=host:4M
expect 0 "comma-separated values" "$HAUL" bench "$tcp" --sizes 8,1K --duration 0.02 --csv
holds "there is a heading and a line a size, of nine fields" \
  awk -F, 'NF != 9 { bad = 1 } END { exit bad || NR != 3 }' "$work/out"
expect 0 "a plot as text" "$HAUL" bench "$tcp" --sizes 64..256K --duration 0.02 --plot -
says "^rate of write over size"
says "^ *[0-9.]* [GMK]B/s |"
says "^  *+[+-]*$"
says "^  *64 B  .* 256 KiB$"
holds "sizes have points, and so do the lowest and the highest row" awk '
  / \|/ { rows[++n] = gsub(/\*/, ""); marks += rows[n] }
  END { exit !(marks > 6 && marks <= 13 && rows[1] && rows[n]) }' "$work/out"
expect 0 "a plot of all paths" "$HAUL" bench "$unix" --region a --sizes 64..256K --duration 0.02 --all-paths \
  --plot -
says "^rate of write over size.*: m map, t tcp"
holds "each path has its marks" eval 'grep -q "|.*m" "$work/out" && grep -q "|.*t" "$work/out"'
expect 0 "one size" "$HAUL" bench "$tcp" --sizes 64 --duration 0.02 --plot -
holds "has no plot" eval '! grep -q "over size" "$work/out"'
expect 0 "a pipe" "$HAUL" bench "$tcp" --sizes 64,4K --duration 0.02
holds "gets no plot without the option" eval '! grep -q "over size" "$work/out"'
for columns in 40 90 300; do
  expect 0 "a terminal of $columns columns" python3 "$here/terminal.py" 24 $columns "$HAUL" bench "$tcp" \
    --sizes 64,4K,64K --duration 0.02
  tr -d '\r' <"$work/out" | sed -n '/^rate of/,$p' >"$work/plot"
  holds "shows a plot that fits" awk -v most=$columns 'length($0) > most { bad = 1 } / \|/ { n++ }
    END { exit bad || n != 13 }' "$work/plot"
done
expect 2 "a plot as text beside JSON" "$HAUL" bench "$tcp" --sizes 64 --json --plot -
expect 0 "JSON on a terminal" python3 "$here/terminal.py" 24 80 "$HAUL" bench "$tcp" --sizes 64,4K \
  --duration 0.02 --json
holds "has no plot" eval '! grep -q "over size" "$work/out"'
mkdir "$work/mock"
cat >"$work/mock/gnuplot" <<END
#!/bin/sh
cat >"$work/script" && echo "<svg/>"
END
chmod +x "$work/mock/gnuplot"
expect 0 "a picture of all paths" env PATH="$work/mock:$PATH" "$HAUL" bench "$tcp" --sizes 8,1K,4M \
  --duration 0.02 --all-paths --plot "$work/all.svg"
paths=$(awk 'NR > 2 { print $3 }' "$work/out" | sort -u)
for path in $paths; do
  holds "has a curve of $path with a legend" grep -q "^plot.* \$$path using .* title '$path'" "$work/script"
  holds "which has a point a size" test "$(sed -n "/^\$$path <</,/^END/p" "$work/script" | cut -d' ' -f1 |
    sed '1d;$d' | xargs)" = "8 1024 4194304"
done
for axis in "xlabel 'size, bytes'" "ylabel 'bandwidth, GB/s'" "logscale x 2" "logscale y 10"; do
  holds "its axes: $axis" grep -q "^set $axis" "$work/script"
done
if command -v gnuplot >/dev/null; then
  expect 0 "a picture of all paths, drawn" "$HAUL" bench "$tcp" --sizes 8..4K --duration 0.02 --all-paths \
    --plot "$work/all.svg"
  for path in $paths; do
    holds "it shows $path" grep -q ">$path<" "$work/all.svg"
  done
  expect 0 "a picture" "$HAUL" bench "$tcp" --sizes 8..4K --duration 0.02 --plot "$work/it's.svg"
  holds "it is an SVG picture" grep -q "<svg" "$work/it's.svg"
  expect 1 "a picture on a full disk" "$HAUL" bench "$tcp" --sizes 8,16 --duration 0.02 --plot /dev/full
  complains "^haul: bench: cannot write /dev/full: No space left on device$"
  expect 1 "a picture in a missing folder" "$HAUL" bench "$tcp" --sizes 8 --plot "$work/no/a.svg"
  complains "cannot create"
else
  skipped "a picture: gnuplot is missing"
fi
mkdir "$work/empty"
expect 1 "a picture without gnuplot" env PATH="$work/empty" "$HAUL" bench "$tcp" --sizes 8 \
  --plot "$work/none.svg"
complains "cannot start gnuplot"
holds "nothing is left behind" test -z "$(find "$work" -name '*none.svg*')"

finish

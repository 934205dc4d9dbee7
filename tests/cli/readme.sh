#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The examples of README.md: each `console` and `pycon` block is run and must print what the page shows.
# Times, rates and ports are not compared, nor why rdma is closed; "..." stands for any lines. A comment
# <!-- needs: WORD --> before a block names what it takes. Other blocks are not run.
here=$(realpath "$(dirname "$0")")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"
root=$(realpath "$here/../..")
HAUL=$(realpath "$HAUL")
build=${HAUL%/cmd/haul/haul}
export HAUL_CONF=
PATH=$work/bin:${HAUL%/*}:$PATH
PYTHONPATH=$(find "$build" -path '*/haul/_haul.abi3.so' -printf '%h/..' -quit)
export PYTHONPATH

declare -A ports # of the page → those of this run
page=7420        # the port of the page's latest server

# to_run: the page's addresses become those of this run.
to_run() {
  local text one
  text=$(sed -E 's/localhost(:742[0-9])/127.0.0.1\1/g; s/localhost/127.0.0.1:7420/g')
  for one in "${!ports[@]}"; do
    text=${text//127.0.0.1:$one/127.0.0.1:${ports[$one]}}
  done
  printf '%s' "$text"
}

# normalised: what may be compared, of the page or of this run.
normalised() {
  local pattern="s/localhost(:742[0-9])/127.0.0.1\\1/g; s/localhost/127.0.0.1:7420/g" one
  for one in "${!ports[@]}"; do
    pattern+="; s/127\\.0\\.0\\.1:${ports[$one]}/127.0.0.1:$one/g"
  done
  sed -E "$pattern
    s/[0-9.]+ ([GMK]i?B\/s|ns|us|ms|s)([^a-z]|\$)/# \\1\\2/g; s/# ([GMK]i?B\/s|ns|us|ms|s)/#/g
    s/(estimated|measured) [0-9.]+ times slower/# times slower/
    s/(up) [0-9:]+/\\1 #/; s/(peers) [0-9]+/\\1 #/
    s/TLS by the (process|kernel)/TLS/; s/(copies: kernel) [0-9]/\\1 #/
    s/^( *not rdma:|rdma  *closed) .*/\\1 #/; s/(not rdma: )[^;]*/\\1#/
    s/ +/ /g; s/ \$//"
}

# same SHOWN PRINTED: lines are the same; "..." in SHOWN matches any number of them.
same() {
  python3 - "$1" "$2" <<'END'
import re, sys
shown, printed = (open(name).read() for name in sys.argv[1:])
pattern = "".join("(?:.*\n)*?" if line == "...\n" else re.escape(line)
                  for line in shown.splitlines(True))
sys.exit(not re.fullmatch(pattern, printed))
END
}

compare() {
  normalised <"$work/shown" >"$work/want"
  normalised <"$work/out" >"$work/got"
  if same "$work/want" "$work/got"; then
    passed "$1"
  else
    failed "README.md:$2: $1"
    diff "$work/want" "$work/got" | sed 's/^/        | /'
  fi
}

# start COMMAND LINE: a server, on a free port in place of the page's.
start() {
  local command=$1
  page=7420
  [[ $command =~ :(742[0-9]) ]] && page=${BASH_REMATCH[1]}
  command=${command/ --listen tcp:\/\/127.0.0.1:$page/}
  # shellcheck disable=SC2086 # the page's words
  (cd "$work/here" && exec ${command} --listen tcp://127.0.0.1:0) >"$work/out" 2>"$work/err" &
  processes+=("$!")
  await has_lines "$(wc -l <"$work/shown")" . "$work/out" || failed "$1 does not start"
  ports[$page]=$(sed -n 's/^listening on tcp:.*:\([0-9]*\)$/\1/p' "$work/out")
}

# run COMMAND LINE: compares its output with $work/shown.
run() {
  case $1 in
  export\ *) eval "$1" ;;
  haul\ serve\ *)
    start "$1"
    compare "$1" "$2"
    ;;
  *)
    (cd "$work/here" && timeout 60 bash -c "$(to_run <<<"$1")") >"$work/out" 2>&1 </dev/null
    compare "$1" "$2"
    ;;
  esac
}

# run_python LINE: the session in $work/shown.
run_python() {
  to_run <"$work/shown" | python3 -c '
import code, sys
lines = [line[4:] for line in sys.stdin if line.startswith((">>> ", "... "))]
console = code.InteractiveConsole()
for line in lines:
    console.push(line.rstrip("\n"))' >"$work/out" 2>&1
  grep -v -e '^>>> ' "$work/shown" >"$work/text"
  mv "$work/text" "$work/shown"
  compare "the session in Python" "$1"
}

# has WORD: what a block takes is here.
has() {
  case $1 in
  '') ;;
  cc) command -v cc >/dev/null && ! nm -D "$build/src/libhaul.so" | grep -q -e __asan_ -e __tsan_ ;;
  python) python3 -c 'import haul' 2>/dev/null ;;
  storage) [[ -e $build/cmd/lib/haul/libhaul-storage.so ]] ;;
  *) failed "README.md needs '$1', which this test does not know" ;;
  esac
}

mkdir "$work/bin" "$work/here"
# Stands for the installed library, that of the build.
cat >"$work/bin/pkg-config" <<END
#!/bin/sh
echo "-I$root/include -L$build/src -lhaul -Wl,-rpath,$build/src"
END
chmod +x "$work/bin/pkg-config"

number=0 command='' at=0 kind='' needs=''
: >"$work/shown"
flush() {
  [[ -z $command ]] || run "$command" "$at"
  command=''
  : >"$work/shown"
}

while IFS= read -r line <&3; do
  number=$((number + 1))
  case $line in
  '<!-- needs: '*) needs=${line#<!-- needs: } needs=${needs% -->} ;;
  '```console' | '```pycon' | '```c')
    kind=${line#'```'} at=$number
    section "README.md:$number: $kind"
    : >"$work/shown"
    if ! has "$needs"; then
      skipped "the block in line $number: $needs is missing"
      kind=''
    fi
    needs=''
    ;;
  '```')
    case $kind in
    console) flush ;;
    pycon) run_python "$at" ;;
    c) to_run <"$work/shown" >"$work/here/first.c" ;;
    esac
    kind=''
    ;;
  '$ '*)
    if [[ $kind == console ]]; then
      flush
      command=${line#\$ } at=$number
    fi
    ;;
  *) [[ -z $kind ]] || printf '%s\n' "$line" >>"$work/shown" ;;
  esac
done 3<"$root/README.md"

finish

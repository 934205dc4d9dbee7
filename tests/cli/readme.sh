#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The examples of README.md: each `console` and `pycon` block is run, in the order of the page, and must print what
# the page shows, line by line. Times, rates and ports are not compared, nor why rdma is closed. The prompts
# "storage$ " and "compute$ " name two hosts: network namespaces with an emulated NIC. A comment <!-- needs: WORD -->
# before a block names what it takes. The only other blocks are `sh`: `make demo` and `make check`.
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
  text=$(sed -E 's/localhost(:[0-9])/127.0.0.1\1/g; s/localhost/127.0.0.1:7420/g')
  for one in "${!ports[@]}"; do
    text=${text//127.0.0.1:$one/127.0.0.1:${ports[$one]}}
  done
  printf '%s' "$text"
}

# normalised: what may be compared, of the page or of this run.
normalised() {
  local pattern="s/localhost(:[0-9])/127.0.0.1\\1/g; s/localhost/127.0.0.1:7420/g" one
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

compare() {
  normalised <"$work/shown" >"$work/want"
  normalised <"$work/out" >"$work/got"
  if cmp -s "$work/want" "$work/got"; then
    passed "$1"
  else
    failed "README.md:$2: $1"
    diff "$work/want" "$work/got" | sed 's/^/        | /'
  fi
}

# start COMMAND LINE: a server, on a free port in place of the page's. On a host of its own the port is free.
start() {
  local command=$1 ready
  page=7420
  [[ $command =~ :(742[0-9]) ]] && page=${BASH_REMATCH[1]}
  if [[ -z $host ]]; then
    command=$(to_run <<<"${command/ --listen tcp:\/\/127.0.0.1:$page/} --listen tcp://127.0.0.1:0")
  fi
  (cd "$work/here" && exec "${on[@]}" bash -c "exec env $command") >"$work/out" 2>"$work/err" &
  processes+=("$!")
  await has_lines "$(wc -l <"$work/shown")" . "$work/out" || failed "$1 does not start"
  ready=$(sed -n 's/^listening on tcp:.*:\([0-9]*\)$/\1/p' "$work/out")
  [[ -n $host ]] || ports[$page]=$ready
}

# run COMMAND LINE: compares its output with $work/shown.
run() {
  on=()
  [[ -z $host ]] || on=(ip netns exec "haul-$host-$$" env "LD_LIBRARY_PATH=$build/tests/doubles/ibverbs/moving"
    "HAUL_DOUBLE_FABRIC=$work/fabric")
  case $1 in
  export\ PATH=*) ;; # set above
  export\ *) failed "README.md:$2: a server in another terminal does not have what is exported here" ;;
  *haul\ serve\ *)
    start "$1"
    compare "$1" "$2"
    ;;
  *)
    (cd "$work/here" && timeout 60 "${on[@]}" bash -c "$(to_run <<<"$1")") >"$work/out" 2>&1 </dev/null
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

# make_hosts: "storage", 10.0.0.1, and "compute", 10.0.0.2; once.
make_hosts() {
  local one
  ((${#networks[@]} == 0)) || return 0
  for one in storage compute; do
    ip netns add "haul-$one-$$" && networks+=("haul-$one-$$") || return 1
  done
  ip link add wire netns "${networks[0]}" type veth peer name wire netns "${networks[1]}" || return 1
  for one in 0 1; do
    ip -n "${networks[one]}" link set lo up
    ip -n "${networks[one]}" address add "10.0.0.$((one + 1))/24" dev wire
    ip -n "${networks[one]}" link set wire up
  done
}

# start_etcd: in place of the one on port 2379.
start_etcd() {
  local try port
  for try in 1 2 3; do
    port=$((20000 + (RANDOM + $$ + try) % 10000))
    etcd --data-dir "$work/etcd" --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$port" \
      --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$((port + 1))" \
      --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
      --initial-cluster "default=http://127.0.0.1:$((port + 1))" >"$work/etcd.log" 2>&1 &
    etcd=$!
    processes+=("$etcd")
    # shellcheck disable=SC2016 # for each try
    if await eval '! kill -0 $etcd 2>/dev/null || "$HAUL" ls "etcd://127.0.0.1:$port/cluster"' &&
      kill -0 "$etcd" 2>/dev/null; then
      ports[2379]=$port
      return 0
    fi
  done
  return 1
}

# has WORD: what a block takes is here.
has() {
  case $1 in
  '') ;;
  cc) command -v cc >/dev/null && ! nm -D "$build/src/libhaul.so" | grep -q -e __asan_ -e __tsan_ ;;
  python) python3 -c 'import haul' 2>/dev/null ;;
  storage) [[ -e $build/cmd/lib/haul/libhaul-storage.so ]] ;;
  mount) [[ -e $build/cmd/lib/haul/libhaul-storage.so && -w /dev/fuse ]] && command -v fusermount3 >/dev/null ;;
  hosts) [[ -e $build/tests/doubles/ibverbs/moving && $(id -u) == 0 ]] && mountpoint -q / && make_hosts 2>"$work/err" ;;
  etcd) [[ -e $build/src/haul/libhaul-directory.so ]] && command -v etcd >/dev/null && start_etcd ;;
  *) failed "README.md needs '$1', which this test does not know" ;;
  esac
}

trap 'mountpoint -q "$work/here/mnt" && fusermount3 -uz "$work/here/mnt"; clean_up' EXIT
mkdir "$work/bin" "$work/here"
# Stands for the installed library, that of the build.
cat >"$work/bin/pkg-config" <<END
#!/bin/sh
echo "-I$root/include -L$build/src -lhaul -Wl,-rpath,$build/src"
END
chmod +x "$work/bin/pkg-config"

number=0 command='' at=0 kind='' needs='' host=''
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
  '$ '* | 'storage$ '* | 'compute$ '*)
    if [[ $kind == console ]]; then
      flush
      host=${line%%\$*} command=${line#*\$ } at=$number
    fi
    ;;
  '```sh' | '```bash' | '```shell'*)
    kind=''
    [[ $line == '```sh' ]] || failed "README.md:$number: this block is not run"
    ;;
  *) [[ -z $kind ]] || printf '%s\n' "$line" >>"$work/shown" ;;
  esac
done 3<"$root/README.md"

finish

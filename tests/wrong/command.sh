#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Wrong uses of the command: runs each line of command.txt that begins with "$ ", and compares the output and, in
# brackets, the exit status. `command.sh print` prints the list as it would be now.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

# What the lines of the list find: files here, and the addresses $NODE, $KEYED, $HUNG and $DEAD.
make_files() {
  mkdir bin folder full
  ln -s "$HAUL" bin/haul
  printf 'haul' >small
  head -c 100K /dev/zero >large
  : >empty
  mkfifo fifo
  bin/haul key new key 2>err && bin/haul key new other --name other 2>err
  printf 'haul 1234\n' >short.key && chmod 600 short.key
  cp key open.key && chmod 644 open.key
  printf 'pol = 64M\n' >unknown.conf
  printf '# pool\npool = lots\n' >value.conf
  printf 'pool 64M\n' >no-equals.conf
  printf 'pool = 64M\npool = 1G\n' >twice.conf
}

start_nodes() {
  serve --region data=host:64K --region fixed=host:4K:ro --export folder --export sources=folder:rw --name node \
    --region mine=host:4K --allow mine=uid:4294967294
  NODE=${tcp#tcp://} UNIX=$unix
  HAUL_KEY=$PWD/key serve --region data=host:4K --echo
  KEYED=${tcp#tcp://}
  serve
  HUNG=${tcp#tcp://}
  freeze "$server"
  serve
  DEAD=$unix
  slay "$server"
  export NODE UNIX KEYED HUNG DEAD
}

# A full file system, for the lines that use it.
fill_file_system() {
  mount -t tmpfs -o size=16k full full 2>err || return
  mounts+=("$PWD/full")
}

normal() {
  sed -e "s|$NODE|\$NODE|g; s|$KEYED|\$KEYED|g; s|$HUNG|\$HUNG|g; s|$UNIX|\$UNIX|g; s|$DEAD|\$DEAD|g; s|$PWD|\$PWD|g" \
    -e "s|$(uname -n):[0-9]*|HOST:PID|g; s|not rdma: [^;]*|not rdma: REASON|g; /^$/d; s|Failed to connect to .* (http|TEXT OF CURL (http|"
}

run_line() {
  local status
  timeout -s KILL 30 bash -c "$1" </dev/null >out 2>&1
  status=$?
  normal <out
  echo "[$status]"
}

# The list with the present output; without a full file system it keeps what the list has for one.
run_list() {
  local line kept=0
  while IFS= read -r line; do
    case $line in
      "$ "*)
        kept=0
        printf '%s\n' "$line"
        if [[ $line == *full/* && ! -e full/there ]]; then
          kept=1
        else
          run_line "${line#"$ "}"
        fi
        ;;
      "" | "#"*) printf '%s\n' "$line" ;;
      *) ((kept == 0)) || printf '%s\n' "$line" ;;
    esac
  done <"$1"
}

list=$(realpath "$here/command.txt")
cd "$work" || exit
unset HAUL_KEY
export HAUL_CONF='' LC_ALL=C PATH=$work/bin:$PATH
make_files
start_nodes
if fill_file_system; then
  head -c 16K /dev/zero >full/there 2>err
else
  skipped "a full file system: $(cat err)"
fi
run_list "$list" >result
if [[ ${1-} == print ]]; then
  cat result
  exit
fi
diff -u "$list" result

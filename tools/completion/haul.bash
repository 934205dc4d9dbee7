# SPDX-License-Identifier: MIT
#
# Bash completion for haul. Commands and options come from `haul help`, so that they match the
# installed version.

_haul_commands() {
  haul help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p'
}

_haul_options() {
  haul help "$1" 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
}

# The values of an option with a fixed set.
_haul_values() {
  case $1 in
    --only) echo "map rdma tcp" ;;
    --op) [[ $2 == bench ]] && echo "write read message" || echo "write read fetch-add compare-swap" ;;
    --place) echo "host sim:0" ;;
    --require) haul doctor 2>/dev/null | awk 'NR > 1 && NF == 0 { exit } NR > 1 { print $2 }' ;;
    --log) echo "error warning info debug" ;;
    --log-format) echo "text json" ;;
    --sort) echo "busy out in errors queue name" ;;
    --color) echo "auto always never" ;;
    --listen) echo "tcp:// unix://" ;;
    *) return 1 ;;
  esac
}

_haul_takes_file() {
  case $1 in
    put | get | push | pull | bench | serve | mount | key | trace | cache) return 0 ;;
    *) return 1 ;;
  esac
}

_haul() {
  local current previous command values
  # ':' and '=' do not split words, as addresses contain them.
  _get_comp_words_by_ref -n := -c current -p previous 2>/dev/null || {
    current=${COMP_WORDS[COMP_CWORD]}
    previous=${COMP_WORDS[COMP_CWORD - 1]}
  }
  command=${COMP_WORDS[1]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "$(_haul_commands) --help --version" -- "$current")
    return
  fi
  if [[ $command == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_haul_commands)" -- "$current")
  elif values=$(_haul_values "$previous" "$command"); then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_haul_options "$command")" -- "$current")
  elif [[ $command == explain ]] && ((COMP_CWORD == 2)); then
    mapfile -t COMPREPLY < <(compgen -W "host sim:0" -- "$current")
  elif _haul_takes_file "$command"; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
  if declare -F __ltrim_colon_completions >/dev/null; then
    __ltrim_colon_completions "$current"
  fi
}

complete -o filenames -F _haul haul

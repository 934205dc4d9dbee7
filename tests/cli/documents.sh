#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Man pages and completion cover every command, option and check. What the README and docs/ name exists:
# functions, files, man pages and the targets of links.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"
root=$(realpath "$here/../..")

commands=$("$HAUL" help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -vx -e help -e version)

options_of() {
  "$HAUL" help "$1" | sed -n 's/^  --\([a-z-]*\).*/\1/p'
}

section "man pages"
holds "there are commands" test -n "$commands"
holds "the overview names every command" test "$(echo "$commands" | wc -w)" = \
  "$(grep -c '^\.It Xr haul-' "$root/man/haul.1")"
for command in $commands; do
  page=$root/man/haul-$command.1
  holds "$command has a page, and it is in the overview" \
    grep -q "^\.It Xr haul-$command 1" "$root/man/haul.1"
  for option in $(options_of "$command"); do
    holds "the page of $command explains --$option" grep -q "^\.It Fl -$option\b" "$page"
  done
  holds "the page of $command explains nothing else" \
    cmp <(sed -n 's/^\.It Fl -\([a-z-]*\).*/\1/p' "$page" | sort) <(options_of "$command" | sort)
  holds "the page has examples and exit statuses" \
    test "$(grep -c -x -e '.Sh EXAMPLES' -e '.Sh EXIT STATUS' "$page")" = 2
done
if command -v groff >/dev/null; then
  for page in "$root"/man/haul*.1; do
    holds "$(basename "$page") is well-formed" \
      test -z "$(groff -mdoc -Tutf8 -ww "$page" 2>&1 >/dev/null)"
  done
else
  skipped "the form of the pages: groff is missing"
fi

section "checks"
expect 0 "doctor" "$HAUL" doctor --json
json '"\n".join(sorted(c["name"] for c in it))' >"$work/checks"
sed -n 's/^\.It Li \([a-z0-9]*\..*\)/\1/p' "$root/man/haul_device.3" | tr -d ' ' | tr ',' '\n' | sort >"$work/explained"
while read -r check; do
  holds "haul_device(3) explains $check" grep -qx -e "$check" "$work/explained"
done <"$work/checks"
"$HAUL" doctor rdma >/dev/null 2>&1 || sed -i '/^rdma\./d' "$work/explained" # built without it
holds "and nothing else" cmp "$work/explained" "$work/checks"

section "names in the documentation"
rm -f "$work/out" "$work/err"
# named PATTERN FILE: a line "NUMBER NAME" for each match.
named() {
  grep -noP -e "$1" "$2" | sed 's/:/ /'
}
(cd "$root" && find src services cmd include integrations -name '*.[ch]' -exec cat {} +) |
  grep -oE '\b[a-z_0-9]+\(' | sort -u >"$work/functions"
for page in README.md CHANGELOG.md CONTRIBUTING.md "$root"/docs/*.md; do
  page=${page#"$root/"}
  absent=$failures
  while read -r line name; do
    grep -qxF -e "$name(" "$work/functions" || failed "$page:$line: there is no function $name()"
  done < <(named '`\K[a-z_0-9]+(?=\(\)`)' "$root/$page")
  while read -r line name; do
    [[ -e $root/${name%.} ]] || failed "$page:$line: there is no $name"
  done < <(named '(?<![\w/.:-])(src|tests|bench|cmd|include|integrations|tools|man|examples|packaging|docs|\.ci)/[\w./-]*' \
    "$root/$page" | grep -v '/\*\|NAME')
  while read -r line name; do
    name=${name%%#*}
    [[ -z $name || -e $root/$(dirname "$page")/$name ]] || failed "$page:$line: a link leads to $name"
  done < <(named '\]\(\K(?!http)[^)]+' "$root/$page")
  while read -r line name; do
    [[ -e $root/man/$(tr "(" . <<<"${name%)}") ]] ||
      failed "$page:$line: there is no page $name"
  done < <(named '\bhaul[a-z_.-]*\([1-8]\)' "$root/$page")
  ((failures > absent)) || passed "$page names what is there"
done

section "hints"
# Phrases with one replacement are variants, of which the library has one or more.
holds "the library has each phrase that the command replaces" python3 - "$root" <<'END'
import collections, pathlib, re, sys
root = pathlib.Path(sys.argv[1])
joined = lambda path: re.sub(r'"\s*\n\s*"', "", path.read_text())
library = "".join(joined(path) for part in ("src", "services") for path in (root / part).rglob("*.c"))
table = re.search(r"phrases\[\] = \{(.*?)\n\};", joined(root / "cmd/haul/common/fail.c"), re.S).group(1)
variants = collections.defaultdict(list)
for phrase, text in re.findall(r'\{"((?:\\.|[^"\\])*)",\s*"((?:\\.|[^"\\])*)"', table):
    variants[text].append(re.sub("HAUL_(READ|WRITE|READ . HAUL_WRITE) there", "HAUL_%s there", phrase))
missing = [some for some in variants.values() if not any(phrase in library for phrase in some)]
sys.exit(f"not in src or services: {missing}" if missing or len(variants) < 5 else 0)
END

# What is to complete in every shell: the words, and what they complete to.
completions() {
  local command
  for command in $commands; do
    echo "${command:0:2} $command"
    echo "$command --h --help"
  done
  cat <<'END'
put file localhost/name --only m map
put file localhost/name --only r rdma
bench localhost --op mess message
top localhost --sort err errors
top localhost --color al always
explain s sim:0
explain host localhost/name --op f fetch-add
help pi pingpong
put wei weights.bin
END
}

section "completion in bash"
# completes WORDS… WANTED: completion of the words offers WANTED.
completes() {
  local wanted=${*: -1}
  set -- "${@:1:$#-1}"
  COMP_WORDS=(haul "$@") COMP_CWORD=$# COMP_LINE="haul $*" COMP_POINT=100
  _haul
  holds "'haul $*' completes to '$wanted'" grep -qx -e "$wanted" \
    <(printf '%s\n' "${COMPREPLY[@]}")
}
mkdir "$work/bin"
ln -s "$(realpath "$HAUL")" "$work/bin/haul"
PATH=$work/bin:$PATH
# shellcheck source=tools/completion/haul.bash
. "$root/tools/completion/haul.bash"
cd "$work" && : >weights.bin
while read -r -a words; do
  completes "${words[@]}"
done < <(completions)

section "completion in fish"
if command -v fish >/dev/null; then
  mkdir -p "$work/config/fish/completions"
  cp "$root/tools/completion/haul.fish" "$work/config/fish/completions/"
  while read -r -a words; do
    wanted=${words[-1]} line="haul ${words[*]:0:${#words[@]}-1}"
    holds "'$line' completes to '$wanted'" grep -qx -e "$wanted" <(XDG_CONFIG_HOME=$work/config HOME=$work \
      fish -c 'complete -C "$argv"' "$line" | cut -f 1)
  done < <(completions)
else
  skipped "completion in fish: it is missing (apt-get install fish)"
fi

section "completion in zsh"
# The functions of its completion system print what they are given: without a terminal there is no line to complete.
zsh_completes() {
  # shellcheck disable=SC2016 # for zsh
  zsh -fc '
    cd $1 && shift
    compadd() { print -l -- ${@:#-*} }
    _describe() { print -l -- ${${(P)2}%%:*} }
    _files() { print -l -- * }
    words=(haul "$@") CURRENT=$((1 + $#))
    source $HAUL_COMPLETION' - "$work" "$@"
}
if command -v zsh >/dev/null; then
  export HAUL_COMPLETION
  HAUL_COMPLETION=$(realpath "$root/tools/completion/_haul")
  # shellcheck disable=SC2016 # for zsh
  holds "zsh finds the function" test _haul = \
    "$(zsh -fc 'fpath=($1 $fpath); autoload -U compinit; compinit -D -u; print $_comps[haul]' - "${HAUL_COMPLETION%/*}")"
  while read -r -a words; do
    wanted=${words[-1]}
    holds "'haul ${words[*]:0:${#words[@]}-1}' completes to '$wanted'" \
      grep -qx -e "$wanted" <(zsh_completes "${words[@]:0:${#words[@]}-1}")
  done < <(completions)
else
  skipped "completion in zsh: it is missing (apt-get install zsh)"
fi

finish

# SPDX-License-Identifier: MIT
#
# fish completion for haul. Commands and options come from `haul help`, so that they match the installed version.

function __haul_commands
    haul help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z]*\)  *\(.*\)/\1\t\2/p'
end

function __haul_options
    set -l words (commandline -opc)
    haul help $words[2] 2>/dev/null | sed -n 's/^  \(--[a-z-]*\)[^ ]*\( [^ ][^ ]*\)*  *\(.*\)/\1\t\3/p'
end

function __haul_checks
    haul doctor 2>/dev/null | awk 'NR > 1 && NF == 0 { exit } NR > 1 { print $2 }'
end

function __haul_needs_command
    test (count (commandline -opc)) -eq 1
end

# The word before the cursor is this option, whose value comes next.
function __haul_after
    set -l words (commandline -opc)
    test "$words[-1]" = "$argv[1]"
end

# Files are arguments of these commands, but not values of the options below.
function __haul_takes_file
    set -l words (commandline -opc)
    contains -- "$words[2]" put get push pull bench serve mount key trace cache
    and not contains -- "$words[-1]" --only --op --place --require --log --log-format --listen --sort --color
end

complete -c haul -f
complete -c haul -n __haul_needs_command -a '(__haul_commands)'
complete -c haul -n __haul_needs_command -l version -d 'Show the version'
complete -c haul -n '__fish_seen_subcommand_from help' -a '(__haul_commands)'
complete -c haul -n 'not __haul_needs_command; and string match -q -- "-*" (commandline -ct)' -a '(__haul_options)'
complete -c haul -n __haul_takes_file -F
complete -c haul -n '__haul_after --only' -a 'map rdma tcp'
complete -c haul -n '__haul_after --op; and __fish_seen_subcommand_from bench' -a 'write read message'
complete -c haul -n '__haul_after --op; and not __fish_seen_subcommand_from bench' -a 'write read fetch-add compare-swap'
complete -c haul -n '__haul_after --place' -a 'host sim:0'
complete -c haul -n '__haul_after --require' -a '(__haul_checks)'
complete -c haul -n '__haul_after --log' -a 'error warning info debug'
complete -c haul -n '__haul_after --log-format' -a 'text json'
complete -c haul -n '__haul_after --sort' -a 'busy out in errors queue name'
complete -c haul -n '__haul_after --color' -a 'auto always never'
complete -c haul -n '__haul_after --listen' -a 'tcp:// unix://'
complete -c haul -n 'test (count (commandline -opc)) -eq 2; and __fish_seen_subcommand_from explain' -a 'host sim:0'

#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Settings: where they come from, and what is said of a mistake.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

printf '# one\npool = 64M\nspin = 20us\n' >"$work/haul.conf"
export HAUL_CONF=$work/haul.conf

section "what is set"
expect 0 "a table" "$HAUL" info --config
holds "the file's line" grep -Eq "^pool +64M +$work/haul.conf:2$" "$work/out"
holds "a default" grep -Eq '^max_peers +1024 +default$' "$work/out"
expect 0 "the environment over the file" env HAUL_SPIN=always "$HAUL" info --config
holds "it is named" grep -Eq '^spin +always +HAUL_SPIN$' "$work/out"
expect 0 "JSON" "$HAUL" info --config --json
holds "it has all of them" python3 -c '
import json, sys
settings = {one["name"]: one for one in json.load(open(sys.argv[1]))["settings"]}
assert len(settings) == 34 and settings["pool"]["value"] == "64M", settings' "$work/out"

section "mistakes"
echo 'pol = 64M' >"$work/haul.conf"
expect 1 "a setting that is none" "$HAUL" info --config
complains "$work/haul.conf:1"
complains "unknown setting 'pol'"
expect 1 "no node opens with it" "$HAUL" info
complains "unknown setting 'pol'"
expect 1 "a file that is not there" env HAUL_CONF="$work/none" "$HAUL" info --config
complains "cannot read the configuration: No such file or directory"
expect 0 "no file is wanted" env HAUL_CONF= "$HAUL" info --config

finish

#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Settings: their sources, and errors of invalid ones.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

printf '# one\npool = 64M\nspin = 20us\n' >"$work/haul.conf"
export HAUL_CONF=$work/haul.conf

section "sources"
expect 0 "a table" "$HAUL" info --config
holds "the file's line" grep -Eq "^pool +64M +$work/haul.conf:2$" "$work/out"
holds "a default" grep -Eq '^max_peers +1024 +default$' "$work/out"
expect 0 "the environment over the file" env HAUL_SPIN=always "$HAUL" info --config
holds "the variable is named" grep -Eq '^spin +always +HAUL_SPIN$' "$work/out"
expect 0 "JSON" "$HAUL" info --config --json
holds "it has all settings" python3 -c '
import json, sys
settings = {one["name"]: one for one in json.load(open(sys.argv[1]))["settings"]}
assert len(settings) == 44 and settings["pool"]["value"] == "64M", settings' "$work/out"

section "invalid settings"
echo 'pol = 64M' >"$work/haul.conf"
expect 1 "an unknown setting" "$HAUL" info --config
complains "$work/haul.conf:1"
complains "unknown setting 'pol'"
expect 1 "no node opens with it" "$HAUL" info
complains "unknown setting 'pol'"
expect 1 "a missing file" env HAUL_CONF="$work/none" "$HAUL" info --config
complains "cannot read the configuration: No such file or directory"
expect 0 "without a file" env HAUL_CONF= "$HAUL" info --config

finish

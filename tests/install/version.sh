#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The version of the header is that of the command, the library, the files of an installation and the last
# entries of the change logs.
#
#   version.sh BUILD SOURCE

set -u # ctest bounds the time
build=$1 source=$2
version=$("$source/tools/version")
major=${version%%.*}
failures=0

# is WHAT FOUND WANTED
is() {
  if [[ $2 == "$3" ]]; then
    echo "ok      $1: $2"
  else
    failures=$((failures + 1))
    echo "FAILED  $1: '$2', and not '$3'"
  fi
}

library=$build/src/libhaul.so
is "the form of the version" "$(grep -cxE '[0-9]+\.[0-9]+\.[0-9]+' <<<"$version")" 1
is "haul version" "$("$HAUL" version)" "haul $version (libhaul $version)"
is "haul --version" "$("$HAUL" --version)" "haul $version (libhaul $version)"
is "haul.pc" "$(sed -n 's/^Version: //p' "$build/haul.pc")" "$version"
is "CMake package" "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$build/haulConfigVersion.cmake")" "$version"
is "the library's file" "$(basename "$(realpath "$library")")" "libhaul.so.$version"
is "SONAME" "$(readelf -dW "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')" "libhaul.so.$major"
is "version node" "$(sed -n 's/^\(HAUL_.*\) {$/\1/p' "$source/src/libhaul.map")" "HAUL_$major"
is "CHANGELOG.md" "$(sed -n 's/^## \([0-9.]*\) .*/\1/p;T;q' "$source/CHANGELOG.md")" "$version"
is "Debian's changelog" "$(sed -n '1s/^haul (\(.*\)-[0-9]*) .*/\1/p' "$source/packaging/debian/changelog")" "$version"
is "files of packages that state a version of their own" \
  "$(cd "$source" && grep -rlE --include=pyproject.toml --include=setup.py '^ *version *= *"' integrations)" ""
((failures == 0))

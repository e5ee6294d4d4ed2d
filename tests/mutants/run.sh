#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh [--check] [--only WORD] [--share K/N] BUILD: changes one line at a time (mutants.list) and requires that a test notices.
#   BUILD      an optimised build tree of this project with its library built
#   --check    only that every mutant still applies; needs no BUILD
#   --only     mutants whose name contains WORD
#   --share    part K (1 to N) of N parts that are disjoint, together all, and about equal; mutants of one test are in one part
# Prints one line a mutant and every survivor; status 1 when one survives, does not apply or does not compile.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cxx="${CXX:-c++}"

die() {
  echo "mutants: $*" >&2
  exit 1
}

check_only=false word='' share=1 shares=1 build=''
while (($#)); do
  case "$1" in
    --check) check_only=true ;;
    --only) word="${2:?--only needs a word}" && shift ;;
    --share)
      [[ "${2:-}" =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] || die "--share: expected K/N, got '${2:-}'"
      share="${BASH_REMATCH[1]}" shares="${BASH_REMATCH[2]}"
      ((share <= shares)) || die "--share: expected K of 1 to $shares, got $share"
      shift
      ;;
    -*) die "unknown option $1" ;;
    *) build="$1" ;;
  esac
  shift
done

names=() files=() froms=() tos=() tests=()
mutant() {
  [[ "$1" == *"$word"* ]] || return 0
  names+=("$1") files+=("$2") froms+=("$3") tos+=("$4")
  tests+=("${*:5}")
}
# shellcheck source=/dev/null
source "$root/tests/mutants/mutants.list"

# at TREE NUMBER: where that mutant's file is in a tree like this one
at() {
  [[ "${files[$2]}" == src/* ]] && echo "$1/${files[$2]}" || echo "$1/include/dsv41/${files[$2]}"
}

# Prints the mutated text of mutant $1; fails unless its line is there exactly once and changes.
mutated() {
  local path from="${froms[$1]}" to="${tos[$1]}" text rest
  path="$(at "$root" "$1")"
  [[ -r "$path" ]] || die "${names[$1]}: no file $path"
  text="$(<"$path")"
  rest="${text#*"$from"}"
  [[ "$rest" != "$text" ]] || die "${names[$1]}: its line is not in ${files[$1]}: $from"
  [[ "${rest#*"$from"}" == "$rest" ]] || die "${names[$1]}: its line is in ${files[$1]} more than once: $from"
  [[ "$from" != "$to" ]] || die "${names[$1]} changes nothing"
  printf '%s\n' "${text/"$from"/"$to"}"
}

((${#names[@]} > 0)) || die "no mutant's name contains '$word'"
for i in "${!names[@]}"; do
  mutated "$i" >/dev/null
  [[ -n "${tests[$i]}" ]] || die "${names[$i]} names no test"
  for t in ${tests[$i]}; do [[ -r "$root/tests/${t%/*}/test_${t#*/}.cpp" ]] || die "${names[$i]}: no test $t"; done
done
if [[ -n "$(printf '%s\n' "${names[@]}" | sort | uniq -d)" ]]; then die "a name is there twice"; fi
echo "${#names[@]} mutants apply"
! $check_only || exit 0

# Each test's mutants go where the fewest are so far, in the order of the list: one baseline then serves all of them.
declare -A group_size part_of
for t in "${tests[@]}"; do group_size[${t%% *}]=$((${group_size[${t%% *}]:-0} + 1)); done
part_size=()
for ((k = 1; k <= shares; ++k)); do part_size[k]=0; done
chosen=()
for i in "${!names[@]}"; do
  group="${tests[$i]%% *}"
  if [[ -z "${part_of[$group]:-}" ]]; then
    least=1
    for ((k = 2; k <= shares; ++k)); do ((part_size[k] >= part_size[least])) || least=$k; done
    part_of[$group]=$least
    ((part_size[least] += group_size[$group]))
  fi
  if ((part_of[$group] == share)); then chosen+=("$i"); fi
done
((${#chosen[@]} > 0)) || die "share $share/$shares of ${#names[@]} mutants is empty"
((shares == 1)) || echo "part $share of $shares: ${#chosen[@]} mutants"

library="$(find "${build:?run.sh needs a build tree}" -name 'libdsv41_core.a' | head -n 1)"
[[ -n "$library" ]] || die "no libdsv41_core.a in $build"
work="$(mktemp -d)"
catch2=(-lCatch2Main -lCatch2)  # 3.x; 2.13 has one library
if ! echo 'int main() {}' | "$cxx" -x c++ - -lCatch2Main -o "$work/catch2" 2>/dev/null; then catch2=(-lCatch2WithMain); fi
trap 'rm -rf "$work"' EXIT

flags=(-std=c++20 -O1 -ffp-contract=off -w "-DHWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)" -DHWY_SHARED_DEFINE
  -DDSV41_GOLDEN_DIR="\"$root/tests/golden\"" -DDSV41_TEXT_DATA_DIR="\"$root/tests/text/data\""
  -DDSV41_DEMO_DIR="\"$root/examples/tiny\"" -DDSV41_V4_TOKENIZER='""')
# Catch2 takes a fifth of a compilation: once is enough. A compiler that cannot use the precompiled file reads the header.
echo "#include \"$root/tests/support/catch.hpp\"" >"$work/first.hpp"
"$cxx" "${flags[@]}" -x c++-header "$work/first.hpp" -o "$work/first.hpp.gch" 2>/dev/null || true

# object TREE SOURCE OBJECT: against that tree
object() {
  "$cxx" "${flags[@]}" -include "$work/first.hpp" -I"$1/include" -I"$root/tests" -I"$1/src" -c "$2" -o "$3" 2>"${3%.o}.log"
}

# The object of an unchanged test, from its baseline.
object_of() { echo "$work/base_${1//\//_}.o"; }

# link TEST PROGRAM OBJECT...: the library behind them is the unchanged one, of which the linker takes nothing that they bring along.
link() {
  local extra=()
  [[ "$1" != model/* ]] || extra=("$work/counted_new.o")
  "$cxx" "${@:3}" "${extra[@]}" "$library" "${catch2[@]}" -lhwy -lpcre2-8 -lutf8proc -o "$2" 2>"$2.log"
}

# A test that fails on the unchanged headers proves nothing.
baseline() {
  local made program
  made="$(object_of "$1")" program="${made%.o}"
  if ! object "$root" "$root/tests/${1%/*}/test_${1#*/}.cpp" "$made" || ! link "$1" "$program" "$made"; then
    echo "INVALID  $1 does not compile: $(tail -n 3 "$program.log")"
  elif ! timeout 120 "$program" >/dev/null 2>&1; then
    echo "INVALID  $1 fails without a mutant, or takes two minutes"
  else
    echo "stands   $1"
  fi
}

one() {
  local i="$1" tree="$work/$1" t source sources=() objects=()
  mkdir "$tree"
  cp -r "$root/include" "$root/src" "$tree"
  mutated "$i" >"$(at "$tree" "$i")"
  case "${files[$i]}" in
    src/*.cpp) sources=("${files[$i]}") ;;
    src/runtime/engine_*.hpp | src/runtime/draft_runner.hpp) sources=("${engine[@]}") ;;  # nobody else includes them
    model/state.hpp) [[ "${tests[$i]}" != *runtime/* ]] || sources=("${engine[@]}") ;;
    src/cpu/*.hpp) sources=(src/cpu/cpu_backend.cpp) ;;
    src/runtime/judge.hpp) sources=(src/runtime/generator.cpp) ;;
  esac
  exec 2>/dev/null  # a crash is a catch, and bash would report it
  for source in "${sources[@]}"; do
    objects+=("$tree/${source//\//_}.o")
    if ! object "$tree" "$tree/$source" "${objects[-1]}"; then
      echo "INVALID  ${names[$i]}: $source does not compile: $(grep -m 1 error "${objects[-1]%.o}.log" || true)"
      return
    fi
  done
  for t in ${tests[$i]}; do
    local test_object="$tree/test.o"
    if [[ "${files[$i]}" == src/* ]] && ((${#sources[@]} > 0)); then
      test_object="$(object_of "$t")"  # does not include what changed
    elif ! object "$tree" "$root/tests/${t%/*}/test_${t#*/}.cpp" "$test_object"; then
      echo "INVALID  ${names[$i]}: does not compile with $t: $(grep -m 1 error "$tree/test.log" || true)"
      return
    fi
    if ! link "$t" "$work/t$i" "$test_object" "${objects[@]}"; then
      echo "INVALID  ${names[$i]}: does not link with $t: $(tail -n 1 "$work/t$i.log")"
      return
    fi
    local status=0
    timeout 300 "$work/t$i" >/dev/null 2>&1 || status=$?
    if ((status == 124)); then  # more than twice what a test may take: the mutant hangs, or the machine does
      echo "INVALID  ${names[$i]}: no end of $t within 300 s"
      return
    fi
    if ((status != 0)); then
      echo "caught   ${names[$i]} by $t"
      rm -rf "$tree" "$work/t$i"
      return
    fi
  done
  echo "SURVIVED ${names[$i]} (${files[$i]}): ${tests[$i]}"
}

# run FUNCTION ITEM...: as many at once as there are processors; each item prints one line, which is its result
run() {
  local function="$1"
  for item in "${@:2}"; do
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || true; done
    "$function" "$item" &
  done
  wait
}

engine=(src/runtime/engine_cpu.cpp)  # the library's object that holds the headers of the engine that tests open
object "$root" "$root/tests/model/counted_new.cpp" "$work/counted_new.o" || die "counted_new.cpp does not compile"
mapfile -t used < <(for i in "${chosen[@]}"; do echo "${tests[$i]}"; done | tr ' ' '\n' | sort -u)
run baseline "${used[@]}" >"$work/baseline"
grep '^INVALID' "$work/baseline" >&2 || true
(($(grep -c '^stands' "$work/baseline" || true) == ${#used[@]})) || die "the tests do not stand without mutants"
run one "${chosen[@]}" | tee "$work/report"
caught="$(grep -c '^caught' "$work/report" || true)"
echo "$caught of ${#chosen[@]} mutants caught"
((caught == ${#chosen[@]}))

#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh [--check] [--only WORD] BUILD: changes one line of the headers at a time (mutants.list) and requires that a test notices.
#   BUILD      an optimised build tree of this project with its library built
#   --check    only that every mutant still applies; needs no BUILD
#   --only     mutants whose name contains WORD
# Prints one line a mutant and every survivor; status 1 when one survives, does not apply or does not compile.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cxx="${CXX:-c++}"

die() {
  echo "mutants: $*" >&2
  exit 1
}

check_only=false word='' build=''
while (($#)); do
  case "$1" in
    --check) check_only=true ;;
    --only) word="${2:?--only needs a word}" && shift ;;
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

# Prints the mutated text of mutant $1; fails unless its line is there exactly once and changes.
mutated() {
  local path="$root/include/dsv41/${files[$1]}" from="${froms[$1]}" to="${tos[$1]}" text rest
  [[ -r "$path" ]] || die "${names[$1]}: no file $path"
  text="$(<"$path")"
  rest="${text#*"$from"}"
  [[ "$rest" != "$text" ]] || die "${names[$1]}: its line is not in ${files[$1]}: $from"
  [[ "${rest#*"$from"}" == "$rest" ]] || die "${names[$1]}: its line is in ${files[$1]} more than once: $from"
  [[ "$from" != "$to" ]] || die "${names[$1]} changes nothing"
  printf '%s\n' "${text/"$from"/"$to"}"
}

for i in "${!names[@]}"; do
  mutated "$i" >/dev/null
  [[ -n "${tests[$i]}" ]] || die "${names[$i]} names no test"
  for t in ${tests[$i]}; do [[ -r "$root/tests/${t%/*}/test_${t#*/}.cpp" ]] || die "${names[$i]}: no test $t"; done
done
if [[ -n "$(printf '%s\n' "${names[@]}" | sort | uniq -d)" ]]; then die "a name is there twice"; fi
echo "${#names[@]} mutants apply"
! $check_only || exit 0

library="$(find "${build:?run.sh needs a build tree}" -name 'libdsv41_core.a' | head -n 1)"
[[ -n "$library" ]] || die "no libdsv41_core.a in $build"
work="$(mktemp -d)"
catch2=(-lCatch2Main -lCatch2)  # 3.x; 2.13 has one library
if ! echo 'int main() {}' | "$cxx" -x c++ - -lCatch2Main -o "$work/catch2" 2>/dev/null; then catch2=(-lCatch2WithMain); fi
trap 'rm -rf "$work"' EXIT

# compile HEADERS TEST PROGRAM: the test's own translation unit against those headers; the library behind it is the unchanged one, of
# which the linker takes no inline function that the test brings along.
compile() {
  local extra=()
  [[ "$2" != model/* ]] || extra=("$root/tests/model/counted_new.cpp")
  "$cxx" -std=c++20 -O1 -ffp-contract=off -w -I"$1" -I"$root/tests" -I"$root/src" -DDSV41_GOLDEN_DIR="\"$root/tests/golden\"" \
    -DDSV41_TEXT_DATA_DIR="\"$root/tests/text/data\"" -DDSV41_DEMO_DIR="\"$root/examples/tiny\"" -DDSV41_V4_TOKENIZER='""' \
    "$root/tests/${2%/*}/test_${2#*/}.cpp" "${extra[@]}" "$library" "${catch2[@]}" -lpcre2-8 -lutf8proc -o "$3" 2>"$3.log"
}

# A test that fails on the unchanged headers proves nothing.
baseline() {
  compile "$root/include" "$1" "$work/base_${1//\//_}" || die "$1 does not compile: $(tail -n 3 "$work/base_${1//\//_}.log")"
  "$work/base_${1//\//_}" >/dev/null 2>&1 || die "$1 fails without a mutant"
}

one() {
  local i="$1" headers="$work/$1" t
  cp -r "$root/include" "$headers"
  mutated "$i" >"$headers/dsv41/${files[$i]}"
  exec 2>/dev/null  # a crash is a catch, and bash would report it
  for t in ${tests[$i]}; do
    if ! compile "$headers" "$t" "$work/t$i"; then
      echo "INVALID  ${names[$i]}: does not compile with $t: $(grep -m 1 error "$work/t$i.log" || true)"
      return
    fi
    if ! timeout 300 "$work/t$i" >/dev/null 2>&1; then
      echo "caught   ${names[$i]} by $t"
      rm -rf "$headers" "$work/t$i"
      return
    fi
  done
  echo "SURVIVED ${names[$i]} (${files[$i]}): ${tests[$i]}"
}

# run FUNCTION ITEM...: as many at once as there are processors
run() {
  local function="$1" status=0
  for item in "${@:2}"; do
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || status=1; done
    "$function" "$item" &
  done
  while (($(jobs -rp | wc -l) > 0)); do wait -n || status=1; done
  return "$status"
}

mapfile -t used < <(printf '%s\n' "${tests[@]}" | tr ' ' '\n' | sort -u)
run baseline "${used[@]}" || die "the tests do not stand without mutants"
run one "${!names[@]}" | tee "$work/report"
caught="$(grep -c '^caught' "$work/report" || true)"
echo "$caught of ${#names[@]} mutants caught"
((caught == ${#names[@]}))

# SPDX-License-Identifier: MIT
"""Writes src/text/unicode_tables.hpp: where the Rust `tokenizers` library and our Unicode libraries disagree.

The library mixes Unicode versions: its regex engine knows 16.0, its normaliser about 10.0, its lower-casing 17.0.
The tables are measured from the library itself, one code point at a time, so they need no copy of the Unicode database.
Usage: make_unicode_tables.py > src/text/unicode_tables.hpp   (Python 3.11, whose unicodedata is 14.0 as PCRE2 10.42's)
"""
import unicodedata

from tokenizers import Regex, __version__, normalizers

CHARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
EVERYTHING = "".join(CHARS)

HEAD = """// Written by tests/text/make_unicode_tables.py from `tokenizers` {version}; do not edit. Code points on which
// that library differs from PCRE2 with Unicode 14 (regex classes) and from utf8proc (normal forms, marks, lower case).
// clang-format off
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace dsv41::text {{
"""
FIND_RANGE = """/// The range of a table that holds c, or nullptr.
template <class Range, std::size_t n>
const Range* find_range(const Range (&ranges)[n], char32_t c) noexcept {
  const Range* after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                        [](char32_t value, const Range& r) { return value < r.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last ? std::prev(after) : nullptr;
}
"""


def ranges(chars):
    out = []
    for c in sorted(map(ord, chars)):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def emit(name, why, rows):
    print(f"/// {why}\ninline constexpr CodeRange {name}[] = {{")
    line = "   "
    for first, last in rows:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + "\n};\n")


def main():
    assert unicodedata.unidata_version == "14.0.0"
    print("// SPDX-License-Identifier: MIT\n//")
    print(HEAD.format(version=__version__))
    print("struct CodeRange {\n  char32_t first, last;\n};\n")
    for name in "LMNPS":
        members = set(normalizers.Replace(Regex(f"[^\\p{{{name}}}]"), "").normalize_str(EVERYTHING))
        old = {c for c in CHARS if unicodedata.category(c)[0] == name}
        assert old <= members
        emit(f"kNewIn{name}", f"Members of \\p{{{name}}} that Unicode 14 does not have.", ranges(members - old))
    strip = normalizers.StripAccents()
    emit("kMarks", "What StripAccents removes: marks of every kind (Mn, Mc, Me) of an old Unicode.",
         ranges(c for c in CHARS if strip.normalize_str("a" + c) == "a"))
    nfkc, nfd = normalizers.NFKC(), normalizers.NFD()
    plain = [c for c in CHARS if unicodedata.normalize("NFKD", c) != c and nfkc.normalize_str(c) == c
             and nfd.normalize_str(c) == c and unicodedata.normalize("NFKC", c) != c]
    plain += [c for c in CHARS if nfd.normalize_str(c) == c and unicodedata.normalize("NFD", c) != c]
    newer = [(0xA7F1, 0xA7F1), (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x11383, 0x11383), (0x11385, 0x11385),
             (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5), (0x113C7, 0x113C8), (0x16121, 0x16128),
             (0x16D68, 0x16D6A),
             (0x1CCD6, 0x1CCF9), (0x1E030, 0x1E06D)]   # decompositions of Unicode 15 to 17
    plain += [chr(c) for a, b in newer for c in range(a, b + 1)]
    assert all(nfkc.normalize_str(c) == c and nfd.normalize_str(c) == c for c in plain)
    emit("kUndecomposed", "Have a decomposition in a newer Unicode than the one behind NFKC and NFD there.",
         ranges(set(plain)))
    lower, rows = normalizers.Lowercase(), []
    for c in CHARS:
        got = lower.normalize_str(c)
        if len(got) == 1 and got != c.lower():
            delta = ord(got) - ord(c)
            if rows and rows[-1][1] == ord(c) - 1 and rows[-1][2] == delta:
                rows[-1][1] = ord(c)
            else:
                rows.append([ord(c), ord(c), delta])
    print("struct LowerRange {\n  char32_t first, last;\n  int delta;\n};\n")
    print("/// Upper case letters newer than Unicode 14.\ninline constexpr LowerRange kNewLower[] = {")
    for first, last, delta in rows:
        print(f"    {{0x{first:X}, 0x{last:X}, {delta}}},")
    print("};\n")
    print(FIND_RANGE)
    print("}  // namespace dsv41::text")


main()

// SPDX-License-Identifier: MIT
//
// The regular expressions of a tokenizer file. They are written for Oniguruma (Ruby syntax, Unicode 16); this runs them
// on PCRE2 after spelling out the classes on which the two differ. Used by the pre-tokenizer only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dsv41::text {

/// Rewrites an Oniguruma pattern for PCRE2.
///
/// Rules:  \p{X} gains the code points that are newer than Unicode 14; \s is the 25 White_Space characters (PCRE2 adds
///         U+180E); everything else the two read alike passes through.
/// Errors: unsupported names the construct (other properties, \d \w \h and the like, (?i), nested classes, &&, {n,m}+).
std::string translate_pattern(std::string_view pattern, std::string_view where);

/// The working memory of matching; one per encode call, not shared between threads.
class MatchScratch {
 public:
  /// Errors: out_of_memory.
  MatchScratch();
  ~MatchScratch();
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

 private:
  friend class Regex;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// A compiled pattern; immutable and usable from several threads.
class Regex {
 public:
  /// Errors: unsupported for constructs outside translate_pattern; format for a pattern that does not compile.
  Regex(std::string_view pattern, std::string_view where);

  /// Splits well-formed UTF-8 into matches and the gaps between them, in order, leaving out empty pieces.
  /// Errors: internal when PCRE2 fails (out of memory, or more backtracking than 10 million steps plus 64 per byte).
  void split(std::string_view text, MatchScratch& scratch, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string where_;
};

}  // namespace dsv41::text

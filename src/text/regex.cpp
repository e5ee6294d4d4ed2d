// SPDX-License-Identifier: MIT
//
// Translator: a small scanner over the pattern that knows only escapes, classes and groups. Regex: the PCRE2 calls.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.hpp"

#include <pcre2.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "dsv41/core/error.hpp"
#include "text/unicode_tables.hpp"
#include "text/utf8.hpp"

namespace dsv41::text {
namespace {

constexpr int kOldestUnicode = 14;  // kNewIn* start there
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::size_t kJitStackStart = 64 << 10, kJitStackMost = 8 << 20;

std::string hex_escape(char32_t c) {
  std::array<char, 8> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), static_cast<std::uint32_t>(c), 16).ptr;
  return "\\x{" + std::string(digits.data(), end) + "}";
}

std::span<const CodeRange> additions_to(char property) {
  switch (property) {
    case 'L': return kNewInL;
    case 'M': return kNewInM;
    case 'N': return kNewInN;
    case 'P': return kNewInP;
    case 'S': return kNewInS;
    default: return {};
  }
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        open_class();
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        take(1);
      } else {
        check_plain(c);
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error{Errc::unsupported, std::string(where_) + ": regex construct '" + std::string(construct) +
                                       "' is not supported, in the pattern " + std::string(pattern_)};
  }

  void take(std::size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }

  std::string_view ahead(std::size_t n) const { return pattern_.substr(at_, n); }

  void open_class() {
    if (in_class_) refuse("[ inside a class");
    in_class_ = true;
    take(ahead(2) == "[^" ? 2 : 1);
    if (ahead(1) == "]") refuse("[]");
  }

  void check_plain(char c) const {
    if (in_class_) {
      if (ahead(2) == "&&") refuse("&&");
      return;
    }
    if (c == '(' && ahead(2) == "(?") {
      const std::string_view kind = ahead(3);
      const bool plain = kind == "(?:" || kind == "(?=" || kind == "(?!" || kind == "(?>";
      if (!plain && ahead(4) != "(?<=" && ahead(4) != "(?<!") refuse(ahead(4));
    }
    if (c == '(' && ahead(2) == "(*") refuse("(*");
    if (ahead(2) == "{,") refuse("{,");  // a lower bound of 0 in Ruby syntax, literal in PCRE2 10.42
    if (ahead(2) == "}+") refuse("}+");  // possessive in PCRE2, a repeated quantifier in Ruby syntax
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("\\ at the end");
    const char kind = pattern_[at_ + 1];
    switch (kind) {
      case 'p': return property();
      case 's': return spaces(false);
      case 'S': return spaces(true);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v': return control(kind);
      default:
        if ((kind >= '0' && kind <= '9') || (kind >= 'A' && kind <= 'Z') || (kind >= 'a' && kind <= 'z')) {
          refuse(ahead(2));
        }
        take(2);
    }
  }

  void control(char kind) {  // \v is a class in PCRE2
    out_ += hex_escape(kind == 'r' ? 13 : kind == 'n' ? 10 : kind == 't' ? 9 : kind == 'f' ? 12 : 11);
    at_ += 2;
  }

  void spaces(bool negated) {
    if (negated && in_class_) refuse("\\S inside a class");
    at_ += 2;
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += kSpaces;
    if (!in_class_) out_ += ']';
  }

  void property() {
    const std::string_view name = ahead(5);
    if (name.size() != 5 || name[2] != '{' || name[4] != '}') refuse(ahead(6));
    if (additions_to(name[3]).empty() && name[3] != 'Z') refuse(name);
    if (!in_class_) out_ += '[';
    take(5);
    for (const CodeRange& r : additions_to(name[3])) {
      out_ += hex_escape(r.first);
      if (r.last != r.first) out_ += '-' + hex_escape(r.last);
    }
    if (!in_class_) out_ += ']';
  }

  std::string_view pattern_, where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

void require_unicode() {
  std::array<char, 64> version{};
  if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, nullptr) > static_cast<int>(version.size()) ||
      pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version.data()) < 0) {
    return;
  }
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  if (major < kOldestUnicode) {
    throw Error{Errc::unsupported,
                "tokenizer: PCRE2 must know Unicode 14 or newer, this build's knows " + std::string(version.data())};
  }
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const noexcept {
    Free(p);
  }
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

std::string translate_pattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

Regex::Regex(std::string_view pattern, std::string_view where) : where_(where) {
  require_unicode();
  if (const std::size_t bad = find_ill_formed(pattern); bad != std::string_view::npos) {
    throw Error{Errc::format, where_ + ": the regex has ill-formed UTF-8 at byte " + std::to_string(bad)};
  }
  const std::string translated = translate_pattern(pattern, where);
  auto code = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby's ^ and $ always work per line; UCP gives \b and the POSIX classes their Unicode meaning there as here.
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code->code == nullptr) {
    throw Error{Errc::format,
                where_ + ": the regex does not compile (" + message_of(error) + "): " + std::string(pattern)};
  }
  // Where there is no JIT the interpreter gives the same matches.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

struct MatchScratch::Memory {
  // One pair of offsets: groups are of no interest.
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr)};  // absent where there is no JIT
};

MatchScratch::MatchScratch() : memory_(std::make_unique<Memory>()) {
  if (!memory_->match || !memory_->context) throw Error{Errc::out_of_memory, "tokenizer: no memory for regex matching"};
  pcre2_jit_stack_assign(memory_->context.get(), nullptr, memory_->stack.get());
}

MatchScratch::~MatchScratch() = default;

void Regex::split(std::string_view text, MatchScratch& scratch,
                  const std::function<void(std::string_view)>& piece) const {
  pcre2_match_data* match = scratch.memory_->match.get();
  pcre2_match_context* context = scratch.memory_->context.get();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::size_t steps = 10'000'000 + 64 * text.size();
  pcre2_set_match_limit(context, static_cast<std::uint32_t>(steps < UINT32_MAX ? steps : UINT32_MAX));
  std::size_t done = 0, from = 0;
  while (from <= text.size()) {
    int found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, context);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error{Errc::internal, where_ + ": the regex gave up (" + message_of(found) + ") in a text of " +
                                      std::to_string(text.size()) + " bytes"};
    }
    // Copied at once: a piece may be split further with the same scratch.
    const std::size_t first = pcre2_get_ovector_pointer(match)[0], last = pcre2_get_ovector_pointer(match)[1];
    if (first > done) piece(text.substr(done, first - done));
    const std::string_view matched = text.substr(first, last - first);
    done = from = last;
    if (matched.empty()) {
      from += from < text.size() ? read_code_point(text.substr(from)).bytes : 1;
    } else {
      piece(matched);
    }
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace dsv41::text

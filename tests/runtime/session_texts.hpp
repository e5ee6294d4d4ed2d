// SPDX-License-Identifier: MIT
//
// What sessions are fed in their tests: texts with image spans that share beginnings, and what a fresh session says of them. And what
// sessions take and leave: bytes of a budget, and saved states.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/runtime/engine.hpp"
#include "support/random.hpp"

namespace dsv41::test {

/// Three layers with a window, ratios 2 and 1, candidates and Engram: the cheapest folder that has every mechanism.
inline runtime::ModelFolder every_mechanism() {
  return runtime::ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/13-deployed");
}

/// Three layers, the last of them above the boundary and with Engram: prefill exact has rows and keys to skip.
inline runtime::ModelFolder rows_to_skip() {
  return runtime::ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/20-engram-six-grams-image");
}

/// Tokens, image marks, and embeddings for some of the image tokens.
struct Text {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> marks;
  std::vector<std::int64_t> given;  ///< positions of the image tokens that come with an embedding, ascending
  std::vector<float> rows;          ///< those embeddings [given, dim]

  std::int64_t size() const { return std::ssize(ids); }
  std::int64_t dim() const { return given.empty() ? 0 : std::ssize(rows) / std::ssize(given); }

  /// Index of the first given embedding at or behind `position`.
  std::int64_t first_given(std::int64_t position) const {
    return std::lower_bound(given.begin(), given.end(), position) - given.begin();
  }
  std::span<const float> row(std::int64_t index) const {
    return std::span(rows).subspan(static_cast<std::size_t>(index * dim()), static_cast<std::size_t>(dim()));
  }

  /// Tokens [begin, end) with as many rows of logits as are asked for.
  runtime::Feed feed(std::int64_t begin, std::int64_t end, std::int64_t logit_rows = runtime::kAllRows) const {
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    const std::int64_t from = first_given(begin), to = first_given(end);
    return {.ids = std::span(ids).subspan(first, count),
            .logit_rows = logit_rows,
            .image = std::span(marks).subspan(first, count),
            .image_rows = {rows.data() + from * dim(), {to - from, dim()}}};
  }

  /// The furthest end of a feed from `begin` on, up to `end`: in one feed no given embedding stands behind an image token without.
  std::int64_t feedable(std::int64_t begin, std::int64_t end) const {
    std::int64_t next = first_given(begin);
    bool own = false;
    for (std::int64_t p = begin; p < end; ++p) {
      if (marks[static_cast<std::size_t>(p)] == 0) continue;
      const bool is_given = next < std::ssize(given) && given[static_cast<std::size_t>(next)] == p;
      if (is_given && own) return p;
      own = own || !is_given;
      next += is_given ? 1 : 0;
    }
    return end;
  }

  /// Makes [begin, begin + count) an image span whose first `with_rows` tokens come with embeddings. No span may stand behind it.
  void add_span(std::int64_t begin, std::int64_t count, std::int64_t with_rows, std::int64_t width, Random& random) {
    std::fill_n(marks.begin() + begin, count, std::uint8_t{1});
    for (std::int64_t i = 0; i < with_rows; ++i) {
      given.push_back(begin + i);
      const std::vector<float> row = random.normals(width);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
};

inline Text random_text(std::int64_t count, std::int64_t vocab, Random& random) {
  Text out;
  for (std::int64_t i = 0; i < count; ++i) out.ids.push_back(static_cast<std::int32_t>(random.below(vocab)));
  out.marks.resize(out.ids.size());
  return out;
}

/// The first `shared` tokens of a text without images, then others.
inline Text branch_of(const Text& text, std::int64_t shared, std::int64_t count, std::int64_t vocab, Random& random) {
  Text out = random_text(count, vocab, random);
  std::copy_n(text.ids.begin(), shared, out.ids.begin());
  const auto at = static_cast<std::size_t>(shared);
  if (out.ids[at] == text.ids[at]) out.ids[at] = static_cast<std::int32_t>((out.ids[at] + 1) % vocab);
  return out;
}

/// How many first positions are equal in ids, marks and embeddings.
inline std::int64_t shared_beginning(const Text& a, const Text& b) {
  const auto row_at = [](const Text& t, std::int64_t p) {
    const std::int64_t i = t.first_given(p);
    const bool is_given = i < std::ssize(t.given) && t.given[static_cast<std::size_t>(i)] == p;
    return is_given ? t.row(i) : std::span<const float>();
  };
  std::int64_t p = 0;
  for (; p < std::min(a.size(), b.size()); ++p) {
    const auto at = static_cast<std::size_t>(p);
    if (a.ids[at] != b.ids[at] || a.marks[at] != b.marks[at] || !std::ranges::equal(row_at(a, p), row_at(b, p))) break;
  }
  return p;
}

/// Logits [text.size(), vocab] of a session that has never been anything else, on an engine without any option.
inline std::vector<float> fresh_logits(const runtime::ModelFolder& folder, const Text& text,
                                       Numeric numeric = Numeric::exact) {
  runtime::Engine engine(folder, {.numeric = numeric, .max_context = text.size(), .max_rows = 64});
  runtime::Session session = engine.open_session();
  std::vector<float> out;
  for (std::int64_t p = 0; p < text.size();) {
    const std::int64_t end = text.feedable(p, text.size());
    session.append(text.feed(p, end));
    out.insert(out.end(), session.logits().data(), session.logits().data() + session.logits().size());
    p = end;
  }
  return out;
}

using Bytes = std::vector<std::byte>;

inline Bytes saved(const runtime::Session& session) {
  Bytes out;
  session.save([&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
  return out;
}

/// Makes the session the one that was saved at `at`, which moves behind it.
inline void restore(runtime::Session& session, const Bytes& from, std::size_t& at) {
  session.restore([&](std::span<std::byte> to) {
    const std::size_t count = std::min(to.size(), from.size() - at);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), count, to.begin());
    at += count;
    return count;
  });
}
inline void restore(runtime::Session& session, const Bytes& from) {
  std::size_t at = 0;
  restore(session, from, at);
}

/// What an allocation of the caches takes of the budget.
inline std::int64_t charged(std::int64_t bytes) {
  constexpr auto kRounding = static_cast<std::int64_t>(Cursor::kAlignment);
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

}  // namespace dsv41::test

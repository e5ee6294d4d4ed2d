// SPDX-License-Identifier: MIT
//
// What a sequence was fed, on the host: everything that a step over any of its rows takes as input, so that rows can run again, forks carry
// on, and equal beginnings are recognised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "content.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/numerics/engram_hash.hpp"
#include "dsv41/runtime/session.hpp"

namespace dsv41::runtime {

/// Image tokens that a feed marks.
inline std::int64_t marked(std::span<const std::uint8_t> image) {
  return std::count_if(image.begin(), image.end(), [](std::uint8_t mark) { return mark != 0; });
}

class Transcript {
 public:
  std::int64_t size() const { return std::ssize(ids_); }
  std::span<const std::int32_t> ids() const { return ids_; }
  bool is_image(std::int64_t position) const { return marks_[static_cast<std::size_t>(position)] != 0; }
  Content content() const { return {.ids = ids_, .marks = marks_, .images = digests_}; }

  /// The embedding row that was given for the image token at `position`; empty: none was.
  std::span<const float> image_row(std::int64_t position) const {
    const auto at = first_image(position);
    if (at == digests_.end() || at->position != position) return {};
    return *rows_[static_cast<std::size_t>(at - digests_.begin())];
  }

  /// Token ids before `position` as Engram sees them: the last `history.size()`, negative for image tokens and before the start.
  void history(std::int64_t position, std::span<std::int32_t> history) const {
    std::int32_t last[kMaxNgram];
    const std::int64_t count = std::min<std::int64_t>(position, std::ssize(history));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t p = position - count + i;
      last[i] = is_image(p) ? numerics::kEngramDead : ids_[static_cast<std::size_t>(p)];
    }
    numerics::engram_history(last, count, std::ssize(history), history.data());
  }

  /// Adds a feed that has been checked. Errors: bad_alloc; nothing is added then.
  void append(const Feed& feed) {
    const std::int64_t before = size();
    const std::vector<ImageDigest> digests = digest_rows(feed.image, feed.image_rows, before);
    try {
      add_tokens(feed.ids, feed.image);
      for (std::int64_t i = 0; i < std::ssize(digests); ++i) {
        const In<float, 1> row = feed.image_rows.row(i);
        add_image_row(digests[static_cast<std::size_t>(i)], {row.data(), static_cast<std::size_t>(row.extent(0))});
      }
    } catch (...) {
      truncate(before);
      throw;
    }
  }

  /// `ids` may be a part of this transcript's own; `image`: empty, or not zero for each token of an image span.
  void add_tokens(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image) {
    const std::size_t before = ids_.size();
    const bool own =
        !ids.empty() && !std::less<>()(ids.data(), ids_.data()) && std::less<>()(ids.data(), ids_.data() + before);
    const std::ptrdiff_t at = own ? ids.data() - ids_.data() : 0;
    ids_.resize(before + ids.size());  // grows by factors, unlike a reserve()
    marks_.resize(ids_.size());
    std::copy_n(own ? ids_.data() + at : ids.data(), ids.size(), ids_.data() + before);
    for (std::size_t i = 0; i < image.size(); ++i) marks_[before + i] = image[i] != 0 ? 1 : 0;
  }

  /// The embedding of an image token that is there, behind all that have one.
  void add_image_row(const ImageDigest& digest, std::span<const float> row) {
    rows_.push_back(std::make_shared<const std::vector<float>>(row.begin(), row.end()));
    digests_.push_back(digest);
  }

  void truncate(std::int64_t size) noexcept {
    ids_.resize(static_cast<std::size_t>(size));
    marks_.resize(ids_.size());
    digests_.erase(first_image(size), digests_.end());
    rows_.resize(digests_.size());  // also a row whose digest found no memory
  }

 private:
  std::vector<ImageDigest>::const_iterator first_image(std::int64_t position) const {
    return std::lower_bound(digests_.begin(), digests_.end(), position,
                            [](const ImageDigest& image, std::int64_t p) { return image.position < p; });
  }

  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> marks_;   // 1: of an image span
  std::vector<ImageDigest> digests_;  // of the rows given for image tokens, ascending by position
  std::vector<std::shared_ptr<const std::vector<float>>> rows_;  // those rows [dim]; shared by forks
};

}  // namespace dsv41::runtime

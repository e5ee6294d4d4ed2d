// SPDX-License-Identifier: MIT
//
// Attention of eight heads over blocks of unpacked rows: the kernel of ops::SparseAttention and ops::BlockAttention on a CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/attention.hpp"

namespace dsv41::cpu {

/// Heads that are computed side by side: a row is loaded once for all of them.
inline constexpr std::int64_t kHeads = 8;

/// A packed row and its stored_format.
struct PackedRow {
  const std::byte* data;
  CacheFormat format;
};

/// Channels of an unpacked row, zeros behind the width.
constexpr std::int64_t padded_width(std::int64_t width) noexcept {
  return (width + 31) / 32 * 32;
}

/// Floats between unpacked rows: not a power of two, so that one channel of all of them does not share a few sets of a cache.
constexpr std::int64_t row_stride(std::int64_t width) noexcept {
  return padded_width(width) + 16;
}

/// Floats of a block of rows.
constexpr std::int64_t block_floats(std::int64_t width) noexcept {
  return numerics::kSoftmaxBlock * row_stride(width);
}

/// What eight heads of a query remember from block to block, in floats that somebody else owns.
class HeadGroup {
 public:
  static constexpr std::int64_t floats(std::int64_t width) noexcept {
    return 2 * kHeads * row_stride(width) + numerics::kSoftmaxBlock * kHeads + 3 * kPair;
  }

  HeadGroup(float* at, std::int64_t width) noexcept : at_(at), width_(width) {}

  std::int64_t width() const noexcept { return width_; }
  float* q() const noexcept { return at_; }                                          // [kHeads, row_stride]
  float* sums() const noexcept { return at_ + kHeads * row_stride(width_); }         // [kHeads, row_stride]
  float* weights() const noexcept { return at_ + 2 * kHeads * row_stride(width_); }  // [kSoftmaxBlock, kHeads]
  float* top() const noexcept { return weights() + numerics::kSoftmaxBlock * kHeads; }
  float* total() const noexcept { return top() + kPair; }
  float* shrink() const noexcept { return total() + kPair; }

 private:
  static constexpr std::int64_t kPair = 2 * kHeads;  // sixteen lanes
  float* at_;
  std::int64_t width_;
};

/// Unpacks `count` rows, at most kSoftmaxBlock, to `to` [count, row_stride], zeros behind the width.
void unpack_rows(Target target, const PackedRow* rows, std::int64_t count, std::int64_t width, float* to) noexcept;

/// Begins with the queries q [count] of `group.width()` floats, 1 to kHeads of them.
void begin_heads(const HeadGroup& group, const float* const* q, std::int64_t count) noexcept;

/// Adds a block of slots: `count` of them, at least 1, as unpack_rows() left them. Behind an odd number one more row is read, whatever it
/// holds.
///
/// Rules:   a logit is a dot in sixteen lanes of fused multiply-adds, channel c in lane c % 16, lanes summed as a tree (lanes-inl.hpp),
///          then times inverse_root(width); maximum, exponentials and denominator as numerics::RunningSoftmax, to the bit; sums of
///          values by fused multiply-adds in slot order, each channel for itself. So neither the heads beside it nor the instruction set
///          change a bit.
void add_slots(Target target, Numeric numeric, const HeadGroup& group, const float* rows, std::int64_t count) noexcept;

/// Ends with the sinks and results of `count` heads.
void end_heads(Target target, Numeric numeric, const HeadGroup& group, const float* sinks, float* const* out,
               std::int64_t count) noexcept;

}  // namespace dsv41::cpu

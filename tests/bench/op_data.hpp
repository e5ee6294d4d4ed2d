// SPDX-License-Identifier: MIT
//
// What the benchmark of ops reads: stored matrices, more of them than caches hold, and caches of packed rows. Random codes of about the
// size that trained ones have: no NaN, nothing subnormal, which would take other paths of a processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/numerics/packed.hpp"
#include "support/random.hpp"

namespace dsv41::bench {

/// Different matrices of one format and shape, side by side in memory, each with its scales behind it.
class WeightSet {
 public:
  explicit WeightSet(std::size_t bytes) : bytes_(bytes) {}

  /// Fills the memory anew, unless it is that already. Cost: a second a GiB.
  void make(Format format, std::int64_t rows, std::int64_t cols) {
    if (format == shape_.format && rows == shape_.rows && cols == shape_.cols) return;
    shape_ = Matrix{.format = format, .rows = rows, .cols = cols};
    weight_bytes_ = rows * shape_.row_bytes();
    scale_bytes_ = shape_.scale_rows() * shape_.scale_cols();
    each_ = (weight_bytes_ + scale_bytes_ + 63) / 64 * 64;
    test::Random random(1);
    for (std::size_t at = 0; at + 8 <= bytes_.size(); at += 8) {
      const std::uint64_t word = codes(format, random.bits());
      std::memcpy(&bytes_[at], &word, 8);
    }
    if (scale_bytes_ == 0) return;
    for (std::int64_t i = 0; i < count(); ++i) {
      for (std::int64_t s = 0; s < scale_bytes_; ++s) {
        std::byte& scale = bytes_[static_cast<std::size_t>(i * each_ + weight_bytes_ + s)];
        scale = static_cast<std::byte>(116 + static_cast<int>(scale) % 4);  // 2^-11 to 2^-8
      }
    }
  }

  std::int64_t count() const { return static_cast<std::int64_t>(bytes_.size()) / each_; }

  /// Bytes of one, scales included.
  double matrix_bytes() const { return static_cast<double>(weight_bytes_ + scale_bytes_); }

  /// The i-th, from the first again behind the last.
  Matrix operator[](std::int64_t i) const {
    Matrix m = shape_;
    m.data = bytes_.data() + i % count() * each_;
    if (scale_bytes_ > 0) m.scales = reinterpret_cast<const std::uint8_t*>(m.data) + weight_bytes_;
    return m;
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  /// Eight random bytes as elements of a format.
  static std::uint64_t codes(Format format, std::uint64_t v) {
    const auto each16 = [](std::uint64_t x) { return x * 0x0001000100010001u; };
    const auto each32 = [](std::uint64_t x) { return x * 0x0000000100000001u; };
    switch (format) {
      case Format::f32:
        return (v & each32(0x807FFFFF)) | (each32(120u << 23) + (v & each32(3u << 23)));  // 2^-7 to 2^-3
      case Format::bf16: return (v & each16(0x807F)) | (each16(120u << 7) + (v & each16(3u << 7)));
      case Format::f16: return (v & each16(0x83FF)) | (each16(8u << 10) + (v & each16(3u << 10)));
      case Format::fp8_tile:
      case Format::fp8_row: {  // a byte whose lower seven bits are all set is NaN: its last one is cleared
        const std::uint64_t low = 0x0101010101010101u, nan = ((v & low * 127) + low) & low * 128;
        return v & ~(nan >> 7);
      }
      case Format::fp4_row: break;
    }
    return v;
  }

  std::vector<std::byte> bytes_;
  Matrix shape_;
  std::int64_t weight_bytes_ = 0, scale_bytes_ = 0, each_ = 1;
};

/// A cache in one page, filled with normal numbers.
class PackedCache {
 public:
  PackedCache(CacheFormat format, std::int64_t rows, std::int64_t width)
      : bytes_(static_cast<std::size_t>(rows * row_bytes(format, width))), format_(format), rows_(rows), width_(width) {
    test::Random random(2);
    for (std::int64_t i = 0; i < rows; ++i) numerics::store_row(view(), i, random.normals(width).data());
  }
  PackedCache(const PackedCache&) = delete;
  PackedCache& operator=(const PackedCache&) = delete;

  CacheRows view() const {
    return {.format = format_, .rows = rows_, .width = width_, .pages = {&page_, {1}}, .page_rows = rows_};
  }

 private:
  std::vector<std::byte> bytes_;
  std::byte* page_ = bytes_.data();
  CacheFormat format_;
  std::int64_t rows_, width_;
};

/// `count` different numbers in [0, below), ascending.
inline void choose(test::Random& random, std::int64_t below, std::span<std::int32_t> to) {
  std::int64_t left = std::ssize(to);
  std::size_t at = 0;
  for (std::int64_t i = 0; left > 0; ++i) {  // each is taken as likely as those that are left are among those to come
    if (random.below(below - i) < left) to[at++] = static_cast<std::int32_t>(i), --left;
  }
}

}  // namespace dsv41::bench

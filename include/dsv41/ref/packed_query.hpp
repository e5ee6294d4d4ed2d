// SPDX-License-Identifier: MIT
//
// Products of one index query with packed keys, by table: the bits of unpacking a key and numerics::dot, for a fraction of the time. What
// a product is worth to a score is in numerics/index_score.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/numerics/quantisers.hpp"

namespace dsv41::ref {

/// Keys that are scored together; products of a head stand this many floats behind those of the head before.
inline constexpr std::int64_t kIndexRun = 64;

/// E2M1 values are halves of integers up to 12. A query's product with a key over the 32 channels of one scale therefore is n * unit,
/// with an integer |n| <= 32 * 12 * 12 and unit = scale of the query * scale of the key / 4, a power of two. For each byte of a packed key
/// a table holds what its two channels add to n, for four heads in one word, so a block of a key costs sixteen additions for four heads.
///
/// That this is `dot` to the last bit: n and n * unit are exact in double, whose exponents reach far beyond those of two floats. Sums of
/// such terms, in any order and so in dot's too, are multiples of the least unit below width * 144 units of the largest: exact when the
/// units lie within 2^kSpread of each other, as width * 144 * 2^kSpread <= 2^53. Both then round the same number to float32, once; a sum
/// of zero is +0 in both. Queries and keys that do not meet this are refused by ready() and exact(): the caller unpacks.
class PackedQuery {
 public:
  /// Whether keys of this form have tables at all.
  static bool packs(CacheFormat format, std::int64_t width) {
    return stored_format(format, width) == CacheFormat::index && width <= kMaxWidth;
  }

  static std::int64_t workspace_floats(std::int64_t heads, std::int64_t width) {
    return words(heads, width) * kWordFloats + heads * (width / kScaleBlock);
  }

  /// q [heads, width], with unit inner stride; keys of a format and width that pack. `workspace`: workspace_floats(heads, width) floats,
  /// the tables first; it is this object's while it lives.
  PackedQuery(In<float, 2> q, float* workspace)
      : heads_(q.extent(0)),
        width_(q.extent(1)),
        tables_(reinterpret_cast<std::byte*>(workspace)),
        scales_(workspace + words(heads_, width_) * kWordFloats) {
    for (std::int64_t head = 0; head < heads_ && ready_; head += kLanes) {
      for (std::int64_t b = 0; b < blocks() && ready_; ++b) {
        std::int64_t halves[kLanes][kScaleBlock] = {};
        const std::int64_t lanes = std::min(kLanes, heads_ - head);
        for (std::int64_t l = 0; l < lanes; ++l) {
          ready_ = ready_ &&
                   take_block(q.row(head + l).data() + b * kScaleBlock, scales_[(head + l) * blocks() + b], halves[l]);
        }
        fill(halves, lanes, table(head, b));
      }
    }
    for (std::int64_t head = 0; head < heads_ && ready_; ++head)
      spread_ = std::max(spread_, spread(q.row(head).data()));
  }

  /// Whether the query's values are those of format index, finite and within a spread that leaves room for the keys'.
  bool ready() const { return ready_ && spread_ <= kSpread; }

  /// Whether the products with these keys, `count` rows one after the other, are exact.
  bool exact(const std::byte* rows, std::int64_t count) const {
    const std::int64_t blocks = this->blocks(), stride = row_bytes(CacheFormat::index, width_);
    const std::uint8_t* scales = scales_of(rows, 0);
    int largest = 0, widest = 0;
    for (std::int64_t i = 0; i < count; ++i, scales += stride) {
      int least = scales[0], most = scales[0];
      for (std::int64_t b = 1; b < blocks; ++b) {
        least = std::min<int>(least, scales[b]);
        most = std::max<int>(most, scales[b]);
      }
      largest = std::max(largest, most);
      widest = std::max(widest, most - least);
    }
    return largest <= kLargestScale && widest + spread_ <= kSpread;
  }

  /// products[h * kIndexRun + i] = q_h . key i of these `count` rows, at most kIndexRun.
  void products(const std::byte* rows, std::int64_t count, float* products) const {
    for (std::int64_t head = 0; head < heads_; head += kLanes) {
      double sums[kLanes][kIndexRun] = {};
      const std::int64_t lanes = std::min(kLanes, heads_ - head);
      for (std::int64_t b = 0; b < blocks(); ++b) {
        std::uint64_t counts[kIndexRun];
        double units[kIndexRun];
        look_up(table(head, b), b, rows, count, counts, units);
        for (std::int64_t l = 0; l < lanes; ++l) {
          const double unit = static_cast<double>(scales_[(head + l) * blocks() + b]) * 0.25;
          for (std::int64_t i = 0; i < count; ++i) {
            const auto biased = static_cast<std::int32_t>(counts[i] >> (l * kLaneBits) & kLaneMask);
            sums[l][i] += static_cast<double>(biased - kBlockBias) * (unit * units[i]);
          }
        }
      }
      for (std::int64_t l = 0; l < lanes; ++l) {
        for (std::int64_t i = 0; i < count; ++i) products[(head + l) * kIndexRun + i] = static_cast<float>(sums[l][i]);
      }
    }
  }

 private:
  static constexpr std::int64_t kMaxWidth = 8192, kSpread = 32;  // 8192 * 144 < 2^21
  static constexpr int kLargestScale = 252;                      // 6 * 2^126 would unpack to infinity
  // Lanes of a word are kept from borrowing from each other by a bias for each channel: at most 32 * 2 * 144 < 2^16.
  static constexpr std::int64_t kLanes = 4, kLaneBits = 16;
  static constexpr std::int32_t kBias = 144, kBlockBias = kScaleBlock * kBias;
  static constexpr std::uint64_t kLaneMask = 0xFFFF;
  static constexpr std::int64_t kBytes = kScaleBlock / 2, kCodes = 256;  // of a block; of a byte
  static constexpr std::int64_t kWordFloats = sizeof(std::uint64_t) / sizeof(float);

  static std::int64_t words(std::int64_t heads, std::int64_t width) {
    return (heads + kLanes - 1) / kLanes * (width / 2) * kCodes;
  }

  std::int64_t blocks() const { return width_ / kScaleBlock; }
  std::byte* table(std::int64_t head, std::int64_t b) const {
    return tables_ +
           ((head / kLanes * blocks() + b) * kBytes * kCodes) * static_cast<std::int64_t>(sizeof(std::uint64_t));
  }
  const std::uint8_t* scales_of(const std::byte* rows, std::int64_t i) const {
    return reinterpret_cast<const std::uint8_t*>(rows) + i * row_bytes(CacheFormat::index, width_) + width_ / 2;
  }

  static std::int64_t halves_of(std::uint8_t code) {
    return static_cast<std::int64_t>(2 * numerics::value_decode(numerics::Quantiser::index_fp4, code));
  }

  /// Quantises a block again. Of values that are quantised it changes none, though it may halve the scale and double the codes' worth.
  static bool take_block(const float* x, float& scale, std::int64_t* halves) {
    constexpr auto kind = numerics::Quantiser::index_fp4;
    scale = numerics::scale_decode(kind, block_scale(x));
    for (std::int64_t c = 0; c < kScaleBlock; ++c) {
      const std::uint8_t code = numerics::value_encode(kind, x[c], scale);
      if (!(numerics::value_decode(kind, code) * scale == x[c])) return false;  // NaN included
      halves[c] = halves_of(code);
    }
    return true;
  }
  static std::uint8_t block_scale(const float* x) {
    return numerics::scale_encode(numerics::Quantiser::index_fp4, numerics::largest_magnitude(x, kScaleBlock));
  }

  /// Binary orders of magnitude between the scales of a head's blocks; one of zeros adds nothing to any sum.
  std::int64_t spread(const float* q) const {
    std::int64_t least = kCodes, most = 0;
    for (std::int64_t first = 0; first < width_; first += kScaleBlock) {
      if (numerics::largest_magnitude(q + first, kScaleBlock) == 0.0f) continue;
      least = std::min<std::int64_t>(least, block_scale(q + first));
      most = std::max<std::int64_t>(most, block_scale(q + first));
    }
    return std::max<std::int64_t>(most - least, 0);
  }

  static void fill(const std::int64_t (&halves)[kLanes][kScaleBlock], std::int64_t lanes, std::byte* table) {
    std::int64_t worth[16];
    for (std::uint8_t code = 0; code < 16; ++code) worth[code] = halves_of(code);
    for (std::int64_t byte = 0; byte < kBytes; ++byte) {
      std::uint64_t low[16] = {}, high[16] = {};  // by the code of the even channel, of the odd one
      for (std::int64_t l = 0; l < lanes; ++l) {
        for (std::uint8_t code = 0; code < 16; ++code) {
          const std::int64_t even = halves[l][2 * byte] * worth[code], odd = halves[l][2 * byte + 1] * worth[code];
          low[code] += static_cast<std::uint64_t>(even + kBias) << (l * kLaneBits);
          high[code] += static_cast<std::uint64_t>(odd + kBias) << (l * kLaneBits);
        }
      }
      for (std::int64_t codes = 0; codes < kCodes; ++codes) {
        const std::uint64_t word = low[codes % 16] + high[codes / 16];
        std::memcpy(table, &word, sizeof word);
        table += sizeof word;
      }
    }
  }

  /// Block b of `count` keys: the word of the four heads, and the keys' scales.
  void look_up(const std::byte* table, std::int64_t b, const std::byte* rows, std::int64_t count, std::uint64_t* counts,
               double* units) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t* scale = scales_of(rows, i) + b;
      const std::uint8_t* codes = scales_of(rows, i) - width_ / 2 + b * kBytes;
      std::uint64_t word = 0;
      for (std::int64_t byte = 0; byte < kBytes; ++byte) {
        const std::int64_t at = byte * kCodes + codes[byte];
        word += numerics::load_unaligned<std::uint64_t>(table + at * static_cast<std::int64_t>(sizeof word));
      }
      counts[i] = word;
      units[i] = static_cast<double>(numerics::e8m0_decode(*scale));
    }
  }

  std::int64_t heads_, width_;
  std::byte* tables_;  // [heads / 4, blocks, 16, 256] words
  float* scales_;      // [heads, blocks]
  bool ready_ = true;
  std::int64_t spread_ = 0;
};

}  // namespace dsv41::ref

// SPDX-License-Identifier: MIT
//
// Random numbers as a function: (seed, position, purpose) in, bits out. There is no generator object and nothing to
// advance, so a token's draw depends neither on the batch it shares, nor on threads, nor on other requests (case B68).
#pragma once

#include <cstdint>

#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

/// Four words of 32 bits: a Philox counter, and the block it becomes.
struct RandomBlock {
  std::uint32_t word[4];
};

/// Philox4x32 with ten rounds: a bijection of the counter for each key, integers only, the same everywhere.
///
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.3, with that
///         paper's multipliers and key increments.
/// Match:  exact; the test holds the known answers of the paper's Random123 release.
DSV41_HD constexpr RandomBlock philox4x32(RandomBlock counter, std::uint64_t key) noexcept {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    const auto a_high = static_cast<std::uint32_t>(a >> 32), b_high = static_cast<std::uint32_t>(b >> 32);
    counter = {{b_high ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(b), a_high ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// What a draw is for. Draws of different purposes are independent: a proposal and the residual that may replace it
/// must not share noise (dspark.md 5.6). The values are part of what a seed means; new purposes go to the end.
enum class Purpose : std::uint32_t {
  sample = 0,      ///< a token from the target's distribution
  draft = 1,       ///< a drafted token from the drafter's distribution
  acceptance = 2,  ///< the test of a drafted token
  residual = 3,    ///< the token that replaces a rejected one
};

/// The block of a draw.
///
/// Rules: key = seed; counter = (position low, position high, purpose, index). `position` is that of the token which
///        the draw decides (the first token of a sequence has 0); `index` numbers further blocks of one draw, or the draws
///        of a position that is decided more than once.
DSV41_HD constexpr RandomBlock random_block(std::uint64_t seed, std::int64_t position, Purpose purpose,
                                            std::uint32_t index = 0) noexcept {
  const auto at = static_cast<std::uint64_t>(position);
  return philox4x32({{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                      static_cast<std::uint32_t>(purpose), index}},
                    seed);
}

/// The 53 bits behind both uniforms: word 0 is the low half, and the low 11 of the 64 bits are dropped.
DSV41_HD constexpr std::uint64_t random_bits53(const RandomBlock& block) noexcept {
  return (std::uint64_t{block.word[0]} | std::uint64_t{block.word[1]} << 32) >> 11;
}

/// Uniform in [0, 1): a multiple of 2^-53, exact. For inverse distribution functions: u < 1 always holds at the end.
DSV41_HD constexpr double uniform_below_one(const RandomBlock& block) noexcept {
  return static_cast<double>(random_bits53(block)) * 0x1p-53;
}

/// Uniform in (0, 1]: a multiple of 2^-53, exact. For logarithms. One block feeds one of the two, never both.
DSV41_HD constexpr double uniform_above_zero(const RandomBlock& block) noexcept {
  return static_cast<double>(random_bits53(block) + 1) * 0x1p-53;
}

}  // namespace dsv41::numerics

// SPDX-License-Identifier: MIT
//
// Engram hashing: which table rows a token reads, from its compressed id and the few before it. First the layout that a
// checkpoint was trained with (primes, bucket ranges, multipliers; cold, throws Error), then the hash of one position
// (hot, no allocation, shared with device code).
// Paper: the multiplicative-xor n-gram hash of Engram; values and algorithm: the released inference code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

__extension__ typedef unsigned __int128 uint128;

// ------------------------------------------------------------------------------------------------------------- primes

namespace detail {

constexpr std::uint64_t mul_mod(std::uint64_t a, std::uint64_t b, std::uint64_t n) noexcept {
  return static_cast<std::uint64_t>(static_cast<uint128>(a) * b % n);
}

constexpr std::uint64_t pow_mod(std::uint64_t base, std::uint64_t exponent, std::uint64_t n) noexcept {
  std::uint64_t result = 1;
  for (base %= n; exponent != 0; exponent >>= 1, base = mul_mod(base, base, n)) {
    if (exponent & 1) result = mul_mod(result, base, n);
  }
  return result;
}

/// The first twelve primes as bases decide Miller-Rabin below 3.3e24 (Sorenson and Webster, 2015), so below 2^64.
inline constexpr std::uint64_t kWitnesses[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};

}  // namespace detail

/// Whether n is prime; exact for every 64-bit value.
constexpr bool is_prime(std::uint64_t n) noexcept {
  if (n < 2) return false;
  for (const std::uint64_t p : detail::kWitnesses) {
    if (n % p == 0) return n == p;
  }
  std::uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (const std::uint64_t base : detail::kWitnesses) {
    std::uint64_t x = detail::pow_mod(base, odd, n);
    bool composite = x != 1 && x != n - 1;
    for (int i = 1; composite && i < twos; ++i) {
      x = detail::mul_mod(x, x, n);
      composite = x != n - 1;
    }
    if (composite) return false;
  }
  return true;
}

/// Smallest prime above n. Errors: unsupported when it would not fit int64.
inline std::int64_t next_prime(std::int64_t n) {
  for (std::int64_t p = n < 1 ? 2 : n + 1; p > 0 && p < std::numeric_limits<std::int64_t>::max(); ++p) {
    if (is_prime(static_cast<std::uint64_t>(p))) return p;
  }
  throw Error{Errc::unsupported, "engram_hash: no 63-bit prime above " + std::to_string(n)};
}

// -------------------------------------------------------------------------------------------------- numpy's generator

/// numpy.random.default_rng(seed) for seeds below 2^64: SeedSequence with a pool of four words, PCG64 (XSL-RR 128/64).
///
/// Match:  exact, raw 64-bit and buffered 32-bit draws.
/// Source: numpy's bit generator documentation; O'Neill, PCG (2014).
class NumpyRng {
 public:
  explicit NumpyRng(std::uint64_t seed) noexcept {
    std::uint32_t pool[4] = {};
    mix_entropy(seed, pool);
    std::uint64_t words[4] = {};
    generate_state(pool, words);
    const uint128 start = (static_cast<uint128>(words[0]) << 64) | words[1];
    increment_ = (((static_cast<uint128>(words[2]) << 64) | words[3]) << 1) | 1;
    step();
    state_ += start;
    step();
  }

  std::uint64_t next_u64() noexcept {
    step();
    const std::uint64_t folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    const unsigned turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << ((64 - turn) & 63));
  }

  /// The low half of a draw first, its high half on the next call.
  std::uint32_t next_u32() noexcept {
    if (has_half_) {
      has_half_ = false;
      return half_;
    }
    const std::uint64_t draw = next_u64();
    has_half_ = true;
    half_ = static_cast<std::uint32_t>(draw >> 32);
    return static_cast<std::uint32_t>(draw);
  }

  /// One value of integers(0, bound, dtype=int64), bound >= 1: Lemire's method without bias, by 32-bit draws when the
  /// range fits 32 bits. bound 1 draws nothing.
  std::int64_t below(std::int64_t bound) noexcept {
    const std::uint64_t last = static_cast<std::uint64_t>(bound) - 1;
    if (last == 0) return 0;
    if (last < 0xFFFFFFFFu) return below_u32(static_cast<std::uint32_t>(last) + 1);
    if (last == 0xFFFFFFFFu) return next_u32();
    const std::uint64_t range = last + 1;
    uint128 product = static_cast<uint128>(next_u64()) * range;
    if (static_cast<std::uint64_t>(product) < range) {
      const std::uint64_t threshold = (std::numeric_limits<std::uint64_t>::max() - last) % range;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<uint128>(next_u64()) * range;
    }
    return static_cast<std::int64_t>(product >> 64);
  }

 private:
  static std::uint32_t hash_mix(std::uint32_t value, std::uint32_t& hash) noexcept {
    value ^= hash;
    hash *= 0x931E8875u;
    value *= hash;
    return value ^ (value >> 16);
  }

  static void mix_entropy(std::uint64_t seed, std::uint32_t (&pool)[4]) noexcept {
    std::uint32_t hash = 0x43B0D7E5u;
    const std::uint32_t entropy[4] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
    for (int i = 0; i < 4; ++i) pool[i] = hash_mix(entropy[i], hash);
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) {
        if (from == to) continue;
        const std::uint32_t mixed = 0xCA01F9DDu * pool[to] - 0x4973F715u * hash_mix(pool[from], hash);
        pool[to] = mixed ^ (mixed >> 16);
      }
    }
  }

  static void generate_state(const std::uint32_t (&pool)[4], std::uint64_t (&words)[4]) noexcept {
    std::uint32_t hash = 0x8B51F9DDu;
    for (int i = 0; i < 8; ++i) {
      std::uint32_t value = pool[i % 4] ^ hash;
      hash *= 0x58F38DEDu;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (32 * (i % 2));
    }
  }

  void step() noexcept {
    constexpr uint128 kMultiplier = (static_cast<uint128>(0x2360ED051FC65DA4u) << 64) | 0x4385DF649FCCF645u;
    state_ = state_ * kMultiplier + increment_;
  }

  std::int64_t below_u32(std::uint32_t range) noexcept {
    std::uint64_t product = static_cast<std::uint64_t>(next_u32()) * range;
    if (static_cast<std::uint32_t>(product) < range) {
      const std::uint32_t threshold = (0u - range) % range;
      while (static_cast<std::uint32_t>(product) < threshold) product = static_cast<std::uint64_t>(next_u32()) * range;
    }
    return static_cast<std::int64_t>(product >> 32);
  }

  uint128 state_ = 0;
  uint128 increment_ = 0;
  std::uint32_t half_ = 0;
  bool has_half_ = false;
};

// -------------------------------------------------------------------------------------------------------------- layout

/// The config values that fix the hash.
struct EngramParameters {
  std::vector<int> layer_ids;
  int max_ngram = 4;
  std::int64_t vocab_size = 0;  ///< engram_vocab_size: every bucket count is a prime at or above it
  int heads = 0;                ///< engram_n_heads
  std::int64_t compressed_vocab = 0;
};

/// One layer's hash. Columns: n-gram size 2 first, heads inside; column (n - 2) * heads + head.
struct EngramLayerLayout {
  int layer = 0;
  std::vector<std::int64_t> multipliers;  ///< [max_ngram], odd; entry i belongs to the token i back
  std::vector<std::int64_t> primes;       ///< [(max_ngram - 1) * heads]
  std::vector<std::int64_t> offsets;      ///< [(max_ngram - 1) * heads], first row of each column's range
  std::int64_t rows = 0;                  ///< must equal the layer's entry of engram_num_embeddings
};

struct EngramLayout {
  std::vector<EngramLayerLayout> layers;
};

/// Seed of a layer's multipliers is this times its id. Source: the released inference/engram.py.
inline constexpr std::int64_t kEngramSeedFactor = 10007;

namespace detail {

inline void check_engram_parameters(const EngramParameters& p) {
  const auto refuse = [](const char* name, const char* expected, std::int64_t got) {
    throw Error{Errc::invalid_argument, std::string("engram_layout: ") + name + " must be " + expected + ", got " +
                                            std::to_string(got) + " (config.json)"};
  };
  if (p.max_ngram < 2 || p.max_ngram > kMaxNgram) refuse("engram_max_ngram_size", "2 to 8", p.max_ngram);
  if (p.vocab_size < 1) refuse("engram_vocab_size", "at least 1", p.vocab_size);
  if (p.heads < 1 || p.heads > 1024) refuse("engram_n_heads", "1 to 1024", p.heads);
  if (p.compressed_vocab < 1) refuse("engram_compressed_vocab_size", "at least 1", p.compressed_vocab);
  for (const int layer : p.layer_ids) {
    if (layer < 0) refuse("engram_layer_ids", "non-negative", layer);
  }
}

}  // namespace detail

/// Builds the hash of every engram layer.
///
/// Rules:  within one n-gram size the primes ascend from vocab_size; the next size starts over; a prime serves only
///         once in the whole model. Multipliers are 2 * U[0, bound) + 1 with bound = max(1, (2^63 - 1) /
///         compressed_vocab / 2), so that a product with a compressed id stays below 2^63.
/// Errors: invalid_argument names the config key; unsupported when primes or row counts leave int64.
/// Cost:   a few thousand primality tests; cold.
/// Source: released inference/engram.py; deviations: none.
inline EngramLayout engram_layout(const EngramParameters& parameters) {
  detail::check_engram_parameters(parameters);
  EngramLayout layout;
  std::unordered_set<std::int64_t> used;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t quotient = most / parameters.compressed_vocab / 2;
  const std::int64_t bound = quotient < 1 ? 1 : quotient;
  for (const int layer : parameters.layer_ids) {
    EngramLayerLayout out;
    out.layer = layer;
    for (int ngram = 2; ngram <= parameters.max_ngram; ++ngram) {
      std::int64_t prime = parameters.vocab_size - 1;
      for (int head = 0; head < parameters.heads; ++head) {
        do prime = next_prime(prime);
        while (!used.insert(prime).second);
        if (out.rows > most - prime) {
          throw Error{Errc::unsupported, "engram_layout: layer " + std::to_string(layer) + " has more than 2^63 rows"};
        }
        out.primes.push_back(prime);
        out.offsets.push_back(out.rows);
        out.rows += prime;
      }
    }
    NumpyRng rng(static_cast<std::uint64_t>(kEngramSeedFactor * layer));
    for (int i = 0; i < parameters.max_ngram; ++i) out.multipliers.push_back(rng.below(bound) * 2 + 1);
    layout.layers.push_back(std::move(out));
  }
  return layout;
}

/// The layout of a config's Engram layers, which must have the table rows that the config states.
///
/// Errors: format when a layer's engram_num_embeddings is not the sum of its primes (architecture.md 7: refuse to load); what
///         engram_layout throws.
inline EngramLayout checked_engram_layout(const EngramConfig& e) {
  EngramLayout layout = engram_layout({.layer_ids = {e.layers.begin(), e.layers.end()},
                                       .max_ngram = e.max_ngram,
                                       .vocab_size = e.vocab,
                                       .heads = e.heads,
                                       .compressed_vocab = e.compressed_vocab});
  for (std::size_t i = 0; i < layout.layers.size(); ++i) {
    if (layout.layers[i].rows == e.rows[i]) continue;
    throw Error(Errc::format, "engram_num_embeddings of layer " + std::to_string(e.layers[i]) + " is " +
                                  std::to_string(e.rows[i]) + ", expected " + std::to_string(layout.layers[i].rows) +
                                  ": the sum of its primes (config.json)");
  }
  return layout;
}

// ---------------------------------------------------------------------------------------------------------------- hash

/// One layer's hash as plain pointers, for kernels. The arrays must outlive it.
struct EngramHashView {
  const std::int64_t* multipliers;  ///< [max_ngram]
  const std::int64_t* primes;       ///< [(max_ngram - 1) * heads]
  const std::int64_t* offsets;      ///< [(max_ngram - 1) * heads]
  int max_ngram;
  int heads;
};

inline EngramHashView view_of(const EngramLayerLayout& layer) noexcept {
  const int max_ngram = static_cast<int>(layer.multipliers.size());
  return {layer.multipliers.data(), layer.primes.data(), layer.offsets.data(), max_ngram,
          static_cast<int>(layer.primes.size()) / (max_ngram - 1)};
}

/// Marks an entry of a history as outside the text: image spans, padding, and what would lie before the start.
inline constexpr std::int32_t kEngramDead = -1;

/// The history that a sequence's next token looks back on.
///
/// Shapes: tokens [count] the ids so far, negative where dead; history [size], oldest first.
DSV41_HD inline void engram_history(const std::int32_t* tokens, std::int64_t count, std::int64_t size,
                                    std::int32_t* history) noexcept {
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t at = count - size + i;
    history[i] = at < 0 ? kEngramDead : tokens[at];
  }
}

/// Fills the look-back window of the last entry of a history.
///
/// Shapes: history [count] compressed ids, oldest first, kEngramDead where dead; look [max_ngram], current token first.
/// Rules:  the first dead slot or the start of the sequence turns itself and everything older into pad_id, also when
///         the current token is the dead one. A history cut to its last max_ngram entries gives the same window, so a
///         step needs the max_ngram - 1 entries before it and no others.
DSV41_HD inline void engram_look_back(const std::int32_t* history, std::int64_t count, std::int64_t pad_id,
                                      int max_ngram, std::int64_t* look) noexcept {
  bool open = true;
  for (int back = 0; back < max_ngram; ++back) {
    open = open && back < count && history[count - 1 - back] >= 0;
    look[back] = open ? history[count - 1 - back] : pad_id;
  }
}

/// Table rows of one token.
///
/// Shapes: look [max_ngram] compressed ids, current token first, blocked slots already the compressed pad id;
///         rows [(max_ngram - 1) * heads] row indices into the layer's table.
/// Rules:  r = look[0] * m[0]; for i = 1..: r ^= look[i] * m[i], and size i + 1 reads r mod prime + offset. 64-bit
///         throughout; ids below compressed_vocab keep r below 2^63 (unsigned arithmetic keeps other ids defined).
/// Match:  exact. Cost: max_ngram multiplications and one 64-bit remainder per row; no allocation.
/// Source: released inference/engram.py; deviations: none.
DSV41_HD inline void engram_rows(const EngramHashView& hash, const std::int64_t* look, std::int64_t* rows) noexcept {
  std::uint64_t rolling = static_cast<std::uint64_t>(look[0]) * static_cast<std::uint64_t>(hash.multipliers[0]);
  std::int64_t column = 0;
  for (int back = 1; back < hash.max_ngram; ++back) {
    rolling ^= static_cast<std::uint64_t>(look[back]) * static_cast<std::uint64_t>(hash.multipliers[back]);
    for (int head = 0; head < hash.heads; ++head, ++column) {
      const auto bucket = rolling % static_cast<std::uint64_t>(hash.primes[column]);
      rows[column] = static_cast<std::int64_t>(bucket) + hash.offsets[column];
    }
  }
}

}  // namespace dsv41::numerics

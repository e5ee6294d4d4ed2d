// SPDX-License-Identifier: MIT
//
// Straight from FIPS 180-4. The round constants are the first 32 fractional bits of the cube roots of the first 64
// primes, the initial state those of the square roots of the first 8; integer roots give them exactly.
#include "files/sha256.hpp"

#include <algorithm>
#include <bit>

namespace dsv41::files {
namespace {

__extension__ typedef unsigned __int128 uint128;

/// floor(2^32 * n^(1/degree)) mod 2^32.
constexpr std::uint32_t root_fraction(std::uint32_t n, int degree) noexcept {
  const uint128 target = static_cast<uint128>(n) << (32 * degree);
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 37; bit != 0; bit >>= 1) {
    const uint128 candidate = root | bit;
    const uint128 power = degree == 2 ? candidate * candidate : candidate * candidate * candidate;
    if (power <= target) root |= bit;
  }
  return static_cast<std::uint32_t>(root);
}

template <std::size_t n>
constexpr std::array<std::uint32_t, n> prime_root_fractions(int degree) noexcept {
  std::array<std::uint32_t, n> out{};
  std::size_t found = 0;
  for (std::uint32_t p = 2; found < n; ++p) {
    bool prime = true;
    for (std::uint32_t d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
    if (prime) out[found++] = root_fraction(p, degree);
  }
  return out;
}

constexpr auto kRounds = prime_root_fractions<64>(3);
constexpr auto kStart = prime_root_fractions<8>(2);
static_assert(kRounds[0] == 0x428A2F98 && kRounds[63] == 0xC67178F2 && kStart[0] == 0x6A09E667 &&
              kStart[7] == 0x5BE0CD19);

void compress(std::array<std::uint32_t, 8>& state, const std::byte* block) noexcept {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) {
    for (std::size_t i = 0; i < 4; ++i) w[t] = w[t] << 8 | std::to_integer<std::uint32_t>(block[4 * t + i]);
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t a = w[t - 15], b = w[t - 2];
    w[t] = w[t - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[t - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto s = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]),
                        majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const std::uint32_t t1 =
        s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) + choice + kRounds[t] + w[t];
    const std::uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

Sha256::Sha256() noexcept : state_(kStart) {}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
  const std::size_t waiting = size_ % block_.size();
  size_ += bytes.size();
  if (waiting > 0) {
    const std::size_t taken = std::min(bytes.size(), block_.size() - waiting);
    std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(waiting));
    bytes = bytes.subspan(taken);
    if (waiting + taken < block_.size()) return;
    compress(state_, block_.data());
  }
  for (; bytes.size() >= block_.size(); bytes = bytes.subspan(block_.size())) compress(state_, bytes.data());
  std::copy(bytes.begin(), bytes.end(), block_.begin());
}

Digest Sha256::digest() const noexcept {
  Sha256 padded = *this;
  std::array<std::byte, 72> tail{
      std::byte{0x80}};  // one bit, zeros up to 8 bytes before a block's end, the length in bits
  const std::size_t zeros = (119 - size_ % 64) % 64;
  for (std::size_t i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<std::byte>(size_ * 8 >> (56 - 8 * i));
  padded.update(std::span(tail).first(1 + zeros + 8));
  Digest out;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::byte>(padded.state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    for (const int shift : {4, 0}) out += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> shift & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return hex(hash.digest());
}

}  // namespace dsv41::files

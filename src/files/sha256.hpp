// SPDX-License-Identifier: MIT
//
// SHA-256 (FIPS 180-4), for recognising bytes: published prompt texts, checkpoint headers, models, saved sessions. Not for secrets.
// Private to src/.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv41::files {

using Digest = std::array<std::byte, 32>;

/// A digest of bytes that come in pieces; how they are cut does not matter.
class Sha256 {
 public:
  Sha256() noexcept;
  void update(std::span<const std::byte> bytes) noexcept;

  /// Of all bytes so far; more may follow.
  Digest digest() const noexcept;

 private:
  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, 64> block_{};  // the first size_ % 64 bytes wait for the rest of their block
  std::uint64_t size_ = 0;
};

/// Lower-case hexadecimal.
std::string hex(std::span<const std::byte> bytes);

/// Lower-case hexadecimal digest.
std::string sha256_hex(std::string_view bytes);

}  // namespace dsv41::files

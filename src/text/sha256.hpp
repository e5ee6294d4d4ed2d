// SPDX-License-Identifier: MIT
//
// SHA-256 (FIPS 180-4), for recognising the fixed prompt texts. Not for secrets.
#pragma once

#include <string>
#include <string_view>

namespace dsv41::text {

/// Lower-case hexadecimal digest.
std::string sha256_hex(std::string_view bytes);

}  // namespace dsv41::text

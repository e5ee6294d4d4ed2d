// SPDX-License-Identifier: MIT
//
// SHA-256 (FIPS 180-4), for recognising published bytes: prompt texts, checkpoint headers. Not for secrets. Private to src/.
#pragma once

#include <string>
#include <string_view>

namespace dsv41::files {

/// Lower-case hexadecimal digest.
std::string sha256_hex(std::string_view bytes);

}  // namespace dsv41::files

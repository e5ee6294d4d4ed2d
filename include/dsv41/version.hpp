// SPDX-License-Identifier: MIT
//
// The version, written here and nowhere else: the build reads the text below.
#pragma once

#include <string_view>

namespace dsv41 {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace dsv41

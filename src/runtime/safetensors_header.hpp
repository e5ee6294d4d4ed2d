// SPDX-License-Identifier: MIT
//
// Header text -> tensors with checked offsets. Private to src/runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::runtime {

/// Product of a shape and an element size; false on overflow of 63 bits or a negative extent.
bool shape_bytes(std::span<const std::int64_t> shape, std::int64_t element_bytes, std::uint64_t& bytes) noexcept;

/// DType of a header's spelling.
DType parse_dtype(std::string_view text) noexcept;

/// Tensors sorted by offset, their data inside `payload`, which they cover without overlap or hole.
std::vector<TensorInfo> parse_header(std::string_view text, std::span<const std::byte> payload,
                                     std::string_view origin);

}  // namespace dsv41::runtime

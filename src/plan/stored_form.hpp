// SPDX-License-Identifier: MIT
//
// The tensors that one weight is stored as. Private to src/plan.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/runtime/inventory.hpp"
#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::plan {

struct StoredTensor {
  runtime::DType dtype = runtime::DType::unknown;
  std::vector<std::int64_t> shape;

  /// Fits 63 bits for a valid config.
  std::int64_t bytes() const;
};

/// A weight, and its scale where the stored form has one (`scale.shape` empty: it has none).
struct StoredForm {
  StoredTensor weight, scale;
};

/// Source: checkpoint.md 2.2.
StoredForm stored_form(const runtime::TensorSpec& spec);

}  // namespace dsv41::plan

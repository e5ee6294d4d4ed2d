// SPDX-License-Identifier: MIT
//
// Shapes and types of checkpoint.md 2.2.
#include "stored_form.hpp"

#include "dsv41/core/matrix.hpp"

namespace dsv41::plan {

using runtime::DType;
using runtime::Stored;

namespace {

DType dtype_of(Stored stored) {
  switch (stored) {
    case Stored::f32: return DType::f32;
    case Stored::bf16: return DType::bf16;
    case Stored::fp8:
    case Stored::table: return DType::f8_e4m3;
    case Stored::fp4: return DType::i8;
  }
  return DType::unknown;
}

/// Float formats have no scales, so which of them is of no consequence here.
Format format_of(Stored stored) {
  switch (stored) {
    case Stored::fp8: return Format::fp8_tile;
    case Stored::table: return Format::fp8_row;
    case Stored::fp4: return Format::fp4_row;
    default: return Format::f32;
  }
}

}  // namespace

std::int64_t StoredTensor::bytes() const {
  std::int64_t bytes = runtime::dtype_bytes(dtype);
  for (const std::int64_t extent : shape) bytes *= extent;
  return bytes;
}

StoredForm stored_form(const runtime::TensorSpec& spec) {
  StoredForm out;
  out.weight.dtype = dtype_of(spec.stored);
  const Matrix m{format_of(spec.stored), spec.rows, spec.cols};
  out.weight.shape = {spec.rows};
  if (!spec.is_vector) out.weight.shape.push_back(spec.stored == Stored::fp4 ? m.row_bytes() : spec.cols);
  if (is_quantised(m.format)) out.scale = {DType::f8_e8m0, {m.scale_rows(), m.scale_cols()}};
  return out;
}

}  // namespace dsv41::plan

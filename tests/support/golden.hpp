// SPDX-License-Identifier: MIT
//
// Golden folders: a random checkpoint in the released layout beside the values that the oracle computed for it. Tolerances of whole models
// are stated here, once, with their reasons; those of parts in tolerance.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/numerics/formats.hpp"
#include "dsv41/runtime/safetensors.hpp"
#include "tolerance.hpp"

namespace dsv41::test {

/// Class `exact`: float32 sums in another order differ by about 1e-6 and wrong math by 1e-2 and more; 1e-4 separates the two.
inline constexpr double kExactTolerance = 1e-4;
/// Class `deployed`, whole model: one bfloat16 rounding that falls the other way moves logits by up to 2 % on these models.
inline constexpr double kDeployedTolerance = 0.02;
/// Class `deployed`, one sublayer: kDeployedEqual of the elements bit-equal and, as summation order alone leaves them within 3.3 bfloat16
/// ulps of the row's largest element, none further than these.
inline constexpr double kDeployedUlps = 4;

/// Folders under tests/golden; of them, those that store class `deployed` sublayer by sublayer, and its logits.
inline constexpr std::size_t kFolders = 20, kDeployedSublayerFolders = 17, kDeployedLogitFolders = 12;
/// Cases of the conformance kit, the folders above among them.
inline constexpr std::size_t kKitCases = 31;

/// The folders that hold a checkpoint and its values: demo/ has values only (of examples/tiny), release/ configs only.
inline std::vector<std::filesystem::path> golden_folders() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(DSV41_GOLDEN_DIR)) {
    const auto holds = [&](const char* file) { return std::filesystem::exists(entry.path() / file); };
    if (holds("config.json") && holds("expected.safetensors")) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Values of a stored tensor (F64, F32, I64 or BOOL) as doubles.
inline std::vector<double> doubles(const runtime::TensorInfo& t) {
  std::vector<double> out;
  const auto width = static_cast<std::uint64_t>(runtime::dtype_bytes(t.dtype));
  for (std::uint64_t i = 0; i < t.bytes; i += width) {
    const std::byte* at = t.data + i;
    switch (t.dtype) {
      case runtime::DType::f64: out.push_back(numerics::load_unaligned<double>(at)); break;
      case runtime::DType::f32: out.push_back(static_cast<double>(numerics::load_unaligned<float>(at))); break;
      case runtime::DType::i64: out.push_back(static_cast<double>(numerics::load_unaligned<std::int64_t>(at))); break;
      default: out.push_back(static_cast<double>(static_cast<std::uint8_t>(*at))); break;
    }
  }
  return out;
}

template <class T>
std::vector<T> values(const runtime::SafetensorsFile& file, std::string_view name) {
  std::vector<T> out;
  if (const runtime::TensorInfo* t = file.find(name)) {
    for (double v : doubles(*t)) out.push_back(static_cast<T>(v));
  }
  return out;
}

inline std::size_t argmax(const float* row, std::int64_t count) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < static_cast<std::size_t>(count); ++i) {
    if (row[i] > row[best]) best = i;
  }
  return best;
}

}  // namespace dsv41::test

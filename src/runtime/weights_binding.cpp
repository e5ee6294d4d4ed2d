// SPDX-License-Identifier: MIT
//
// Walks the inventory: locate everything, check everything, then make views. A weight's form is decided by its dtype
// and the pair of shapes, weight and scale (cases B37 and B39). Source: checkpoint.md 2.2 and 2.4.
#include "weights_binding.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/numerics/formats.hpp"
#include "dsv41/ops/shape.hpp"
#include "dsv41/runtime/inventory.hpp"
#include "files/direct_file.hpp"
#include "files/file_bytes.hpp"

namespace dsv41::runtime {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr std::uint64_t kMuch =
    256 << 10;  // bytes of scales that are worth a way past the page cache; an expert's of the release has 369 KB
constexpr std::size_t kPiece = 1 << 20;
constexpr int kNanScale = 255;  // the one E8M0 code without a value

std::string text(const Shape& shape) {
  return ops::extents_text(shape);
}

[[noreturn]] void refuse(const Located& at, const std::string& expected, const std::string& found = {}) {
  throw Error(Errc::format, at.file->origin() + ": tensor " + at.tensor->name + " is " +
                                (found.empty() ? describe(*at.tensor) : found) + ", expected " + expected);
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

Format float_format(DType type) {
  return type == DType::f32 ? Format::f32 : type == DType::f16 ? Format::f16 : Format::bf16;
}

Format quantised_format(DType type, const TensorSpec& spec) {
  if (type != DType::f8_e4m3) return Format::fp4_row;
  return spec.stored == Stored::table ? Format::fp8_row : Format::fp8_tile;
}

class Binder {
 public:
  Binder(const ShardSet& shards, std::vector<TensorSpec> specs) : shards_(shards), specs_(std::move(specs)) {
    std::erase_if(specs_, [](const TensorSpec& spec) { return spec.matrix == nullptr && spec.vector == nullptr; });
  }

  void bind(std::vector<float>& arena) {
    locate();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (!found_[i]) continue;
      if (specs_[i].is_vector) {
        check_vector(specs_[i], found_[i]);
      } else {
        *specs_[i].matrix = matrix(specs_[i], found_[i]);
      }
    }
    convert_vectors(arena);
  }

 private:
  void locate() {
    std::vector<std::string> missing;
    for (const TensorSpec& spec : specs_) {
      Located at = shards_.find(spec.name);
      if (!at && !spec.alias.empty()) at = shards_.find(spec.alias);
      found_.push_back(at);
      if (!at && spec.required) missing.push_back(spec.name);
    }
    if (missing.empty()) return;
    throw Error(Errc::format, shards_.folder().string() + ": missing tensors: " + listed(missing) +
                                  "; the files hold " + std::to_string(shards_.size()) +
                                  " tensors: " + shards_.examples());
  }

  void check_vector(const TensorSpec& spec, const Located& at) const {
    if (!is_float(at.tensor->dtype) || at.tensor->shape != Shape{spec.rows}) {
      refuse(at, "F32, F16 or BF16 " + text({spec.rows}));
    }
    no_scale(at);
  }

  void no_scale(const Located& at) const {
    const Located scale = shards_.find(scale_name(at.tensor->name));
    if (scale)
      refuse(at, "no scale for a float tensor", describe(*at.tensor) + " beside a scale " + describe(*scale.tensor));
  }

  Matrix matrix(const TensorSpec& spec, const Located& at) {
    const Shape logical{spec.rows, spec.cols};
    const DType type = at.tensor->dtype;
    if (is_float(type)) {
      if (at.tensor->shape != logical) refuse(at, text(logical));
      no_scale(at);
      return {float_format(type), spec.rows, spec.cols, at.tensor->data, nullptr, at.tensor->name};
    }
    const bool fp8 = type == DType::f8_e4m3, fp4 = type == DType::i8 || type == DType::u8;
    if (!fp8 && !fp4) refuse(at, "F32, F16, BF16, F8_E4M3 or I8 (FP4) for " + text(logical));
    Matrix m{quantised_format(type, spec), spec.rows, spec.cols, at.tensor->data, nullptr, at.tensor->name};
    if (fp4 && m.cols % kScaleBlock != 0) {
      refuse(at, "no FP4 for " + text(logical) + ": the columns of a row are no multiple of " +
                     std::to_string(kScaleBlock) + ", the group of a scale");
    }
    const Shape weight_shape{m.rows, m.row_bytes()}, scale_shape{m.scale_rows(), m.scale_cols()};
    const Located scale = shards_.find(scale_name(at.tensor->name));
    const std::string pair = text(weight_shape) + " with a scale " + text(scale_shape) + " for " + text(logical);
    if (!scale) refuse(at, pair, describe(*at.tensor) + " without " + scale_name(at.tensor->name));
    if (at.tensor->shape != weight_shape || scale.tensor->shape != scale_shape) {
      refuse(at, pair, describe(*at.tensor) + " with a scale " + describe(*scale.tensor));
    }
    check_scale(scale);
    m.scales = reinterpret_cast<const std::uint8_t*>(scale.tensor->data);
    return m;
  }

  /// Scales are read whole: a NaN there would spoil a block in silence.
  void check_scale(const Located& at) {
    const TensorInfo& t = *at.tensor;
    if (t.dtype != DType::f8_e8m0 && t.dtype != DType::u8) refuse(at, "F8_E8M0 (or U8) for a scale");
    const std::int64_t index =
        t.bytes < kMuch || !at.file->file()->is_mapped() ? nan_in({t.data, t.bytes}) : nan_of(at);
    if (index < 0) return;
    refuse(at, "powers of two", "NaN (byte 255) at " + text({index / t.shape[1], index % t.shape[1]}));
  }

  /// Index of the first NaN; -1: none.
  static std::int64_t nan_in(std::span<const std::byte> scales) {
    const void* nan = scales.empty() ? nullptr : std::memchr(scales.data(), kNanScale, scales.size());
    return nan == nullptr ? -1 : static_cast<const std::byte*>(nan) - scales.data();
  }

  /// The same of a tensor that is mapped, but read past the page cache: the release's 23 GB of scales would push out what is of use there.
  std::int64_t nan_of(const Located& at) {
    using files::DirectFile;
    const files::FileBytes& mapped = *at.file->file();
    std::unique_ptr<DirectFile>& file = files_[at.file];
    if (!file) file = std::make_unique<DirectFile>(at.file->origin(), mapped.id());
    buffer_.resize(kPiece + 3 * DirectFile::kBlock);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
    std::byte* const block = buffer_.data() + (DirectFile::kBlock - address % DirectFile::kBlock) % DirectFile::kBlock;
    for (std::uint64_t done = 0; done < at.tensor->bytes; done += kPiece) {
      const std::uint64_t offset = static_cast<std::uint64_t>(at.tensor->data - mapped.bytes().data()) + done;
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, at.tensor->bytes - done));
      if (const files::ReadFailure failure = file->read(offset, count, block)) {
        throw Error(Errc::io, at.file->origin() + ": tensor " + at.tensor->name + ": cannot read at byte " +
                                  std::to_string(failure.at) + ": " + files::reason(failure));
      }
      const std::int64_t index = nan_in({block + offset % DirectFile::kBlock, count});
      if (index >= 0) return static_cast<std::int64_t>(done) + index;
    }
    return -1;
  }

  void convert_vectors(std::vector<float>& arena) {
    std::size_t total = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (found_[i] && specs_[i].is_vector) total += static_cast<std::size_t>(specs_[i].rows);
    }
    arena.resize(total);
    float* out = arena.data();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      if (!found_[i] || !specs_[i].is_vector) continue;
      convert(found_[i], specs_[i].rows, out);
      *specs_[i].vector = In<float, 1>(out, {specs_[i].rows});
      out += specs_[i].rows;
    }
  }

  static void convert(const Located& at, std::int64_t length, float* out) {
    const std::byte* from = at.tensor->data;
    const DType type = at.tensor->dtype;
    const std::int64_t step = dtype_bytes(type);
    for (std::int64_t i = 0; i < length; ++i, from += step) {
      if (type == DType::f32) {
        out[i] = numerics::load_unaligned<float>(from);
      } else {
        const auto half = numerics::load_unaligned<std::uint16_t>(from);
        out[i] = type == DType::f16 ? numerics::f16_decode(half) : numerics::bf16_decode(half);
      }
      if (!std::isfinite(out[i])) refuse(at, "finite values", "not finite at [" + std::to_string(i) + "]");
    }
  }

  const ShardSet& shards_;
  std::vector<TensorSpec> specs_;
  std::vector<Located> found_;
  std::map<const SafetensorsFile*, std::unique_ptr<files::DirectFile>> files_;
  std::vector<std::byte> buffer_;
};

}  // namespace

void bind_weights(const ShardSet& shards, const ModelConfig& config, ModelWeights& weights, std::vector<float>& arena) {
  Binder(shards, inventory(config, &weights)).bind(arena);
  // Text-only checkpoints carry one bias; image tokens then use it too (architecture.md 5).
  for (auto* stack : {&weights.layers, &weights.draft.stages}) {
    for (LayerWeights& layer : *stack) {
      if (layer.moe.bias_vl.empty()) layer.moe.bias_vl = layer.moe.bias;
    }
  }
}

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// The recorder on the library's safetensors writer.
#include "recorder.hpp"

#include <algorithm>

#include "dsv41/runtime/safetensors.hpp"
#include "files.hpp"

namespace generate {

void Recorder::add(std::span<const std::int32_t> ids, dsv41::In<float, 2> logits) {
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  for (std::int64_t row = 0; row < logits.extent(0); ++row) {
    const float* first = logits.row(row).data();
    logits_.insert(logits_.end(), first, first + vocab_);
  }
}

void Recorder::drop(std::int64_t count) {
  const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(0, std::ssize(tokens_) - count));
  tokens_.resize(kept);
  logits_.resize(kept * static_cast<std::size_t>(vocab_));
}

void Recorder::save(const std::string& path) const {
  using namespace dsv41::runtime;
  const auto positions = static_cast<std::int64_t>(tokens_.size());
  const TensorSource tensors[] = {
      {.name = "logits", .dtype = DType::f32, .shape = {positions, vocab_}, .data = std::as_bytes(std::span(logits_))},
      {.name = "tokens", .dtype = DType::i64, .shape = {positions}, .data = std::as_bytes(std::span(tokens_))}};
  naming("--logits-out", [&] { write_safetensors(path, tensors); });
}

}  // namespace generate

// SPDX-License-Identifier: MIT
//
// A model folder, opened: config, files, views. Everything that can be wrong with them is found here.
#include "dsv41/runtime/checkpoint.hpp"

#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "files/file_bytes.hpp"
#include "fingerprint.hpp"
#include "shard_set.hpp"
#include "weights_binding.hpp"

namespace dsv41::runtime {
namespace {

constexpr std::uint64_t kMaxConfig = 16 << 20;  // the release's has 3,311 bytes

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path folder;
  ModelConfig config;
  ShardSet shards;
  std::vector<float> arena;  // every vector of the model, as float32
  ModelWeights weights;
  std::once_flag fingerprinted;
  Fingerprint fingerprint{};

  void open(Access access) {
    const std::filesystem::path config_path = folder / "config.json";
    config = parse_config(files::read_text(config_path, kMaxConfig), config_path.string());
    shards = ShardSet::open(folder, access);
    bind_weights(shards, config, weights, arena);
  }
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& folder, Access access) {
  try {
    auto impl = std::make_unique<Impl>();
    impl->folder = folder;
    impl->open(access);
    return Checkpoint(std::move(impl));
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, folder.string() + ": no memory for the checkpoint's headers and vectors");
  } catch (const std::filesystem::filesystem_error& e) {
    throw Error(Errc::io, folder.string() + ": " + e.code().message());
  }
}

const std::filesystem::path& Checkpoint::folder() const noexcept {
  return impl_->folder;
}
const ModelConfig& Checkpoint::config() const noexcept {
  return impl_->config;
}
const ModelWeights& Checkpoint::weights() const noexcept {
  return impl_->weights;
}
const ShardSet& Checkpoint::shards() const noexcept {
  return impl_->shards;
}

Fingerprint Checkpoint::fingerprint() const {
  try {
    std::call_once(impl_->fingerprinted,
                   [this] { impl_->fingerprint = model_fingerprint(impl_->shards, impl_->config); });
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, impl_->folder.string() + ": no memory for the list of tensors");
  }
  return impl_->fingerprint;
}

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// Dense weights stay where they are mapped: every token reads them, so the system keeps them. Rows of tables are read where they are mapped
// too, a page each.
#include "weight_budget.hpp"

#include <algorithm>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/inventory.hpp"
#include "expert_cache.hpp"
#include "files/file_bytes.hpp"
#include "shard_set.hpp"

namespace dsv41::runtime {

namespace {

/// Bytes that stay in memory: weights that a token reads whole, in their stored form, and vectors as float32. Of the others, what opening
/// the model touched is given back.
class Dense {
 public:
  Dense(const ShardSet& shards, bool draft) : shards_(shards), draft_(draft) {}

  void add(const TensorSpec& spec) {
    Located at = shards_.find(spec.name);
    if (!at && !spec.alias.empty()) at = shards_.find(spec.alias);
    if (!at) return;  // it need not be there
    add(at, spec);
    if (const Located scale = shards_.find(scale_name(at.tensor->name))) add(scale, spec);
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  void add(const Located& at, const TensorSpec& spec) {
    using Use = files::FileBytes::Use;
    const bool rows = !spec.is_vector && (spec.part == Part::embed || spec.part == Part::engram_table);
    const bool unused = spec.part == Part::experts || spec.part == Part::draft_experts || spec.part == Part::vision ||
                        (spec.part == Part::draft && !draft_);
    if (rows || unused) {
      at.file->file()->expect({at.tensor->data, at.tensor->bytes}, rows ? Use::by_rows : Use::nothing);
    } else {
      bytes_ += spec.is_vector ? spec.rows * static_cast<std::int64_t>(sizeof(float))
                               : static_cast<std::int64_t>(at.tensor->bytes);
    }
  }

  const ShardSet& shards_;
  bool draft_;
  std::int64_t bytes_ = 0;
};

void expect_mapped(const Located& at) {
  if (at.file->file() != nullptr && at.file->file()->is_mapped()) return;
  throw Error(Errc::unsupported,
              at.file->origin() +
                  ": is in memory as a whole, so weight_bytes has nothing to save; expected Access::map " +
                  "and a file system that maps");
}

}  // namespace

WeightBudget::WeightBudget(const Checkpoint& checkpoint, const EngineOptions& options) {
  const ShardSet& shards = checkpoint.shards();
  const bool draft = options.draft > 0;
  ExpertLists lists;
  for (const LayerWeights& layer : checkpoint.weights().layers) lists.emplace_back(layer.moe.experts);
  for (const LayerWeights& stage : checkpoint.weights().draft.stages) {
    if (draft) lists.emplace_back(stage.moe.experts);
  }
  std::erase_if(lists, [](const std::span<const ExpertWeights> list) { return list.empty(); });
  if (lists.empty()) throw Error(Errc::unsupported, "engine: weight_bytes, and the model has no experts to leave out");
  Dense dense(shards, draft);
  for (const TensorSpec& spec : inventory(checkpoint.config())) dense.add(spec);
  for (const std::span<const ExpertWeights> list : lists) expect_mapped(shards.find(list[0].w1.name));

  ExpertFiles files(shards, lists);
  const auto slot = static_cast<std::int64_t>(files.slot_bytes());
  facts_.limit_bytes = options.weight_bytes;
  facts_.dense_bytes = dense.bytes();
  const std::int64_t slots = (options.weight_bytes - dense.bytes()) / slot;
  if (options.weight_bytes < dense.bytes() || slots < 1) {
    throw Error(Errc::out_of_memory, "engine: weight_bytes is " + std::to_string(options.weight_bytes) +
                                         ", expected at least " + std::to_string(dense.bytes() + slot) + ": " +
                                         std::to_string(dense.bytes()) + " of weights that every token reads, and " +
                                         std::to_string(slot) + " for one expert at a time");
  }
  const std::int64_t most = files.size();
  cache_ = std::make_unique<ExpertCache>(std::move(files), lists, std::min(slots, most), options.check_weights);
}
WeightBudget::~WeightBudget() = default;

ExpertTier& WeightBudget::tier() noexcept {
  return *cache_;
}

WeightTier WeightBudget::report() const noexcept {
  WeightTier out = facts_;
  cache_->report(out);
  return out;
}

}  // namespace dsv41::runtime

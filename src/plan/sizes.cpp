// SPDX-License-Identifier: MIT
//
// One walk over the inventory for what is stored; the schedule for what a token touches of it.
#include "dsv41/plan/sizes.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "checked.hpp"
#include "config_check.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/core/schedule.hpp"
#include "dsv41/plan/experts_touched.hpp"
#include "reading.hpp"
#include "stored_form.hpp"

namespace dsv41::plan {
namespace {

using runtime::Part;
using runtime::TensorSpec;

/// Whether prefill that skips runs this tensor for every prompt token (serving.md 1.2).
bool in_every_prefill(const TensorSpec& spec, const Schedule& schedule) {
  if (spec.layer < 0) return false;  // the head: for the last row only
  if (schedule.boundary < 0 || spec.layer < schedule.boundary) return true;
  return spec.layer == schedule.boundary && (spec.part == Part::compressor || spec.part == Part::engram);
}

std::int64_t param_count(const TensorSpec& spec) {
  return spec.rows * spec.cols;  // at most 2^60 (config_rules.hpp)
}

/// Parts of the inventory, and the whole-read shares of the active parameters.
class Walk {
 public:
  Walk(const ModelConfig& config, const Schedule& schedule, ModelSizes& out) {
    for (const TensorSpec& spec : runtime::inventory(config)) {
      count(spec);
      if (reading(spec.part) != Reading::whole) continue;
      out.active_decode_params = sum(out.active_decode_params, param_count(spec));
      if (in_every_prefill(spec, schedule)) {
        out.active_prefill_params = sum(out.active_prefill_params, param_count(spec));
      }
    }
    for (auto& [part, size] : parts_) out.parts.push_back(std::move(size));
  }

 private:
  void count(const TensorSpec& spec) {
    PartSize& size = parts_[spec.part];
    const StoredForm form = stored_form(spec);
    const bool scaled = !form.scale.shape.empty();
    const std::int64_t bytes = sum(form.weight.bytes(), scaled ? form.scale.bytes() : 0);
    size.part = spec.part;
    size.tensors += scaled ? 2 : 1;
    size.params = sum(size.params, param_count(spec));
    size.bytes = sum(size.bytes, bytes);
    const auto [at, is_new] = rows_.try_emplace({spec.part, spec.layer}, size.layer_bytes.size());
    if (is_new) size.layer_bytes.push_back(0);
    size.layer_bytes[at->second] += bytes;
  }

  std::map<Part, PartSize> parts_;
  std::map<std::pair<Part, std::int32_t>, std::size_t> rows_;  // index into layer_bytes
};

const PartSize* find(const ModelSizes& sizes, Part part) {
  const auto at =
      std::find_if(sizes.parts.begin(), sizes.parts.end(), [&](const PartSize& p) { return p.part == part; });
  return at == sizes.parts.end() ? nullptr : &*at;
}

std::int64_t params_of(const ModelSizes& sizes, Part part) {
  const PartSize* size = find(sizes, part);
  return size == nullptr ? 0 : size->params;
}

std::int64_t bytes_of(const ModelSizes& sizes, Part part) {
  const PartSize* size = find(sizes, part);
  return size == nullptr ? 0 : size->bytes;
}

void count_params(const ModelConfig& c, ModelSizes& out) {
  for (const PartSize& part : out.parts) {
    out.total_params = sum(out.total_params, part.params);
    out.total_bytes = sum(out.total_bytes, part.bytes);
  }
  out.routed_params = params_of(out, Part::experts);
  out.expert_params = out.routed_params / (c.layers * c.experts);
  out.expert_bytes = bytes_of(out, Part::experts) / (c.layers * c.experts);
  out.shared_params = params_of(out, Part::shared);
  out.engram_params = params_of(out, Part::engram_table);
  out.engram_bytes = bytes_of(out, Part::engram_table);
  if (!c.engram.layers.empty()) {
    out.engram_projection_params = (c.hc + 1) * c.dim * (c.engram.columns() * c.engram.dim);
  }
  out.other_params =
      out.total_params - out.routed_params - out.shared_params - out.engram_params - params_of(out, Part::engram);
}

/// The shares of the active parameters that a token chooses: its experts and its rows.
void count_active(const ModelConfig& c, const Schedule& schedule, ModelSizes& out) {
  const std::int64_t visited = product(c.topk, out.expert_params);
  const std::int64_t table_params = c.engram.columns() * c.engram.dim;
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const std::int64_t rows = schedule.layers[static_cast<std::size_t>(l)].engram >= 0 ? table_params : 0;
    out.active_decode_params = sum(out.active_decode_params, sum(visited, rows));
    const bool whole = schedule.boundary < 0 || l < schedule.boundary;
    if (whole) out.active_prefill_params = sum(out.active_prefill_params, visited);
    if (whole || l == schedule.boundary) out.active_prefill_params = sum(out.active_prefill_params, rows);
  }
  out.active_decode_params = sum(out.active_decode_params, c.dim);                                // its embedding
  out.active_prefill_params = sum(out.active_prefill_params, c.dim);                              // its embedding
  if (schedule.boundary >= 0) out.active_prefill_params = sum(out.active_prefill_params, c.dim);  // attn_norm there
}

void count_caches(const ModelConfig& c, ModelSizes& out) {
  out.window_row_bytes = row_bytes(CacheFormat::window, c.head_dim);
  out.window_bytes = product(c.layers * c.window, out.window_row_bytes);
  out.draft_window_bytes = product(c.draft.stages * c.window, out.window_row_bytes);
  if (c.kv_sources.empty()) return;
  out.entry_bytes = row_bytes(CacheFormat::entry, c.head_dim);
  out.index_key_bytes = row_bytes(CacheFormat::index, c.index_dim);
  for (const std::int32_t source : c.kv_sources) {
    const std::int64_t ratio = c.ratios[static_cast<std::size_t>(source)];
    out.kv_bytes_per_token += static_cast<double>(out.entry_bytes + out.index_key_bytes) / static_cast<double>(ratio);
    const std::int64_t row = 2 * c.head_dim * static_cast<std::int64_t>(sizeof(float));
    out.carry_bytes = sum(out.carry_bytes, product(ratio - 1, row));
  }
}

/// One row of an Engram table, values and scales.
std::int64_t table_row_bytes(const ModelConfig& c) {
  return c.engram.dim + scale_blocks(c.engram.dim);
}

void count_traffic(const ModelConfig& c, ModelSizes& out) {
  out.seams = 2 * c.layers;
  out.seam_elements = (2 * c.hc + 2) * c.dim;
  out.engram_bytes_per_token =
      static_cast<std::int64_t>(c.engram.layers.size()) * c.engram.columns() * table_row_bytes(c);
}

/// Bytes of the distinct rows or experts that a step chooses of a part.
double chosen_bytes(const ModelConfig& c, const ModelSizes& sizes, Part part, std::int64_t batch) {
  if (part == Part::experts) {
    return static_cast<double>(c.layers) * static_cast<double>(sizes.expert_bytes) *
           expected_experts_touched(c.experts, c.topk, batch);
  }
  if (part == Part::embed) {
    constexpr double kEmbeddingBytes = 2;  // bf16
    return kEmbeddingBytes * static_cast<double>(c.dim) * expected_rows_touched(c.vocab, 1, batch);
  }
  double rows = 0;
  for (const std::int64_t table : c.engram.rows) rows += expected_rows_touched(table, c.engram.columns(), batch);
  return rows * static_cast<double>(table_row_bytes(c));
}

}  // namespace

ModelSizes model_sizes(const ModelConfig& config) {
  check_config(config);
  ModelSizes out;
  const Schedule schedule = make_schedule(config);
  Walk(config, schedule, out);
  count_params(config, out);
  count_active(config, schedule, out);
  count_caches(config, out);
  count_traffic(config, out);
  return out;
}

std::int64_t kv_bytes(const ModelConfig& config, const ModelSizes& sizes, std::int64_t context) {
  validate(config);  // divides by its ratios
  expect_count("kv_bytes", "context", context);
  std::int64_t bytes = 0;
  for (const std::int32_t source : config.kv_sources) {
    const std::int64_t entries = context / config.ratios[static_cast<std::size_t>(source)];
    bytes = sum(bytes, product(entries, sizes.entry_bytes + sizes.index_key_bytes));
  }
  return bytes;
}

double part_step_bytes(const ModelConfig& config, const ModelSizes& sizes, const PartSize& part, std::int64_t batch) {
  expect_count("part_step_bytes", "batch", batch);
  const double all = static_cast<double>(part.bytes);
  switch (reading(part.part)) {
    case Reading::whole: return all;
    case Reading::no_step: return 0;
    case Reading::chosen: break;
  }
  return std::min(all, chosen_bytes(config, sizes, part.part, batch));  // a full part may round up
}

StepCost step_cost(const ModelConfig& config, const ModelSizes& sizes, std::int64_t batch) {
  StepCost out;
  out.batch = batch;
  out.experts = expected_experts_touched(config.experts, config.topk, batch);
  for (const PartSize& part : sizes.parts) {
    const double bytes = part_step_bytes(config, sizes, part, batch);
    if (part.part == Part::experts) out.expert_bytes = bytes;
    out.bytes += bytes;
  }
  return out;
}

}  // namespace dsv41::plan

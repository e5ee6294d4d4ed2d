// SPDX-License-Identifier: MIT
//
// Figures as JSON and as a chart.
#include "figures.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "plot/svg.hpp"

namespace inspect {

namespace {

using dsv41::plan::StepCost;
using nlohmann::ordered_json;

constexpr std::int64_t kMostPlotted = 1024;

std::vector<StepCost> steps(const Figures& f) {
  std::vector<std::int64_t> batches{f.batch};
  for (std::int64_t b = 1; b <= kMostPlotted; b *= 2) batches.push_back(b);
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  std::vector<StepCost> out;
  for (const std::int64_t b : batches) out.push_back(step_cost(f.config, f.sizes, b));
  return out;
}

std::string text(const ordered_json& value) {
  return value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json memory_json(const dsv41::plan::MemoryPlan& plan) {
  ordered_json out;
  out["caches"] = !plan.caches_fit ? "do not fit" : plan.caches_on_device ? "device" : "host";
  out["cache_bytes"] = plan.cache_bytes;
  out["device_bytes"] = plan.device_bytes;
  out["host_bytes"] = plan.host_bytes;
  out["file_bytes"] = plan.file_bytes;
  out["parts"] = ordered_json::array();
  for (const auto& part : plan.parts) {
    out["parts"].push_back({{"part", part_name(part.part)},
                            {"step_bytes", part.step_bytes},
                            {"device_bytes", part.device_bytes},
                            {"host_bytes", part.host_bytes},
                            {"file_bytes", part.file_bytes}});
  }
  return out;
}

}  // namespace

Figures make_figures(std::string name, const dsv41::ModelConfig& config, const dsv41::runtime::ConfigNotes& notes,
                     std::int64_t context, std::int64_t batch, const std::optional<dsv41::plan::Budgets>& budgets) {
  Figures out;
  out.name = std::move(name);
  out.config = config;
  out.missing_vision_key = notes.missing_vision_key;
  out.context = context;
  out.batch = batch;
  out.sizes = dsv41::plan::model_sizes(config);
  out.kv_bytes = kv_bytes(config, out.sizes, context);
  out.steps = steps(out);
  if (budgets) out.memory = plan_memory(config, out.sizes, *budgets, context, batch);
  return out;
}

std::string json(const Figures& f) {
  const dsv41::plan::ModelSizes& s = f.sizes;
  ordered_json out;
  out["config"] = f.name;
  out["vision"] = !f.missing_vision_key.empty() ? "not described" : f.config.vision.layers > 0 ? "counted" : "none";
  out["context"] = f.context;
  out["batch"] = f.batch;
  out["expert_params"] = s.expert_params;
  out["expert_bytes"] = s.expert_bytes;
  out["routed_params"] = s.routed_params;
  out["shared_params"] = s.shared_params;
  out["engram_params"] = s.engram_params;
  out["engram_projection_params"] = s.engram_projection_params;
  out["other_params"] = s.other_params;
  out["total_params"] = s.total_params;
  out["total_bytes"] = s.total_bytes;
  out["active_decode_params"] = s.active_decode_params;
  out["active_prefill_params"] = s.active_prefill_params;
  out["engram_bytes"] = s.engram_bytes;
  out["engram_bytes_per_token"] = s.engram_bytes_per_token;
  out["kv_bytes_per_token"] = s.kv_bytes_per_token;
  out["kv_bytes"] = f.kv_bytes;
  out["window_bytes"] = s.window_bytes;
  out["draft_window_bytes"] = s.draft_window_bytes;
  out["carry_bytes"] = s.carry_bytes;
  out["seam_elements"] = s.seam_elements;
  out["seams"] = s.seams;
  out["parts"] = ordered_json::array();
  for (const auto& part : s.parts) {
    out["parts"].push_back({{"part", part_name(part.part)},
                            {"tensors", part.tensors},
                            {"params", part.params},
                            {"bytes", part.bytes},
                            {"step_bytes", part_step_bytes(f.config, s, part, f.batch)}});
  }
  out["experts_touched"] = ordered_json::array();
  for (const StepCost& step : f.steps) {
    out["experts_touched"].push_back(
        {{"batch", step.batch}, {"experts", step.experts}, {"bytes", step.expert_bytes}, {"step_bytes", step.bytes}});
  }
  if (f.memory) out["memory"] = memory_json(*f.memory);
  return text(out);
}

std::string plot(const Figures& f) {
  dsv41::plot::Chart chart{.title = "What a step reads: " + f.name,
                           .x_label = "batch (tokens in a step)",
                           .y_label = "experts; bytes",
                           .log_x = true,
                           .log_y = true};
  const double largest = f.steps.back().bytes;
  const std::pair<const char*, double> units[] = {{"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  const auto* unit = std::find_if(std::begin(units), std::end(units) - 1, [&](auto& u) { return largest >= u.second; });
  chart.y_label = std::string("experts; ") + unit->first;
  dsv41::plot::Series experts{.label = "distinct experts of a layer, of " + std::to_string(f.config.experts)};
  dsv41::plot::Series bytes{.label = std::string(unit->first) + " of weights read in a step"};
  for (const StepCost& step : f.steps) {
    experts.x.push_back(static_cast<double>(step.batch));
    experts.y.push_back(step.experts);
    bytes.x.push_back(static_cast<double>(step.batch));
    bytes.y.push_back(step.bytes / unit->second);
  }
  chart.series = {experts, bytes};
  return dsv41::plot::svg(chart);
}

std::string shards_json(const std::vector<dsv41::plan::Shard>& shards) {
  ordered_json out = ordered_json::array();
  for (const auto& shard : shards) {
    out.push_back({{"file", shard.file},
                   {"header_bytes", shard.header.size()},
                   {"header_sha256", shard.header_sha256},
                   {"payload_bytes", shard.payload_bytes},
                   {"tensors", shard.tensors.size()}});
  }
  return text(out);
}

}  // namespace inspect

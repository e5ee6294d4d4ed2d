// SPDX-License-Identifier: MIT
//
// Options to policies, step costs from a file or a measurement, and the clock.
#include "speculation.hpp"

#include <algorithm>
#include <filesystem>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/cost_table_file.hpp"
#include "dsv41/runtime/profiler.hpp"
#include "files.hpp"
#include "numbers.hpp"

namespace generate {

using dsv41::CostTable;
using dsv41::DraftPolicy;
using dsv41::runtime::Emission;
using dsv41::runtime::Engine;
using dsv41::runtime::EngineOptions;
using dsv41::runtime::GeneratorOptions;
using dsv41::runtime::ModelFolder;

namespace {

/// Tokens of a request that has use for a draft: the first is its prompt's, and a round emits one more than it accepts (useful_drafts).
constexpr std::int64_t kDraftable = 3;

EngineOptions engine_options(const ModelFolder& folder, const Options& options) {
  const dsv41::ModelConfig& config = folder.checkpoint.config();
  EngineOptions out{.backend = options.backend,
                    .cpu = {.threads = options.threads},
                    .numeric = options.numeric,
                    .max_context = config.max_positions,
                    .max_rows = options.chunk,
                    .prefill = options.prefill,
                    .weight_bytes = options.weight_bytes};
  if (!options.speculative) return out;
  if (config.draft.stages == 0) {
    throw dsv41::Error(dsv41::Errc::unsupported, "--speculative " + std::string(speculative_name(options.speculative)) +
                                                     ": the model has no drafter (num_nextn_predict_layers is 0), "
                                                     "expected --speculative off");
  }
  out.draft = options.draft > 0 ? options.draft : config.draft.block;
  out.room = std::max(out.room, out.draft);
  return out;
}

}  // namespace

Engine open_engine(const ModelFolder& folder, const Options& options) {
  const EngineOptions asked = engine_options(folder, options);
  if (asked.draft == 0 || asked.prefill == dsv41::Prefill::full) return Engine(folder, asked);
  std::optional<Engine> engine;  // a mode that skips rows bounds the drafts
  naming(
      "--draft " + std::to_string(asked.draft) + " with --prefill " + std::string(dsv41::prefill_name(asked.prefill)),
      [&] { engine.emplace(folder, asked); });
  return std::move(*engine);
}

dsv41::runtime::RequestOptions request_options(const Options& options, const dsv41::ModelConfig& config) {
  return {.sampler = options.sampler,
          .verification = options.speculative.value_or(dsv41::Verification::block),
          .max_tokens = options.max_tokens,
          .stop_ids = {config.eos}};
}

std::span<const Emission> Decoding::step() {
  const std::int64_t emitted = sums().emitted;
  const double start = now();
  const auto emissions = generator_.step({.cancel = &cancel_});
  const double took = now() - start;
  const dsv41::runtime::StepReport& report = generator_.last();
  if (trace_ != nullptr && report.rows > 0) trace_->add(report);
  // Emissions of rounds come first: with more than those, somebody's prompt has ended.
  if (!report.rounds.empty() && report.prompt_rows == 0 && emissions.size() == report.rounds.size()) {
    clock_.tokens += sums().emitted - emitted;
    clock_.seconds += took;
  }
  return emissions;
}

Speculation::Speculation(Engine& engine, const Options& options, std::int64_t choices, std::int64_t requests,
                         Progress& progress, const dsv41::CancelToken& cancel)
    : engine_(engine), options_(options), choices_(choices), requests_(requests), progress_(progress), cancel_(cancel) {
  if (options.policy.needs_confidences() && !engine.has_confidence()) {
    throw dsv41::Error(
        dsv41::Errc::unsupported,
        "--schedule " + options.schedule + ": the model's drafter has no confidence head, expected --schedule fixed:N");
  }
  if (options.trace) trace_.emplace(engine.options().draft, options.policy);
  if (options.costs) {
    naming("--costs", [&] {
      std::error_code error;
      if (std::filesystem::exists(*options.costs, error)) costs_ = dsv41::runtime::load_cost_table(*options.costs);
    });
  }
  decode_with({.choices = choices});
  if (options.compare) plain_.emplace(engine, GeneratorOptions{.choices = choices}, nullptr, cancel);
}

void Speculation::decode_with(const GeneratorOptions& generator) {
  decoding_.emplace(engine_, generator, trace_ ? &*trace_ : nullptr, cancel_);
}

void Speculation::prepare(std::int64_t most) {
  if (prepared_ || !options_.speculative || most < kDraftable) return;
  const DraftPolicy& policy = options_.policy;
  if (policy.needs_costs() && !costs_) {
    costs_ = measured_costs();
    if (options_.costs) naming("--costs", [&] { dsv41::runtime::save_cost_table(*options_.costs, *costs_); });
  }
  decode_with({.policy = policy,
               .costs = costs_,
               .calibrate_online = policy.kind == DraftPolicy::Kind::delayed,
               .choices = choices_});
  prepared_ = true;
}

/// Behind a few windows: a step costs hardly more in a long context, which would take as long to feed as the prompt itself.
CostTable Speculation::measured_costs() {
  const std::int64_t positions = engine_.options().max_context, draft = engine_.options().draft;
  const std::int64_t most = positions - 1 - draft;  // ProfileOptions::context
  if (most < 1) {
    refuse("--schedule " + options_.schedule + ": the model has " + std::to_string(positions) +
           " positions, too few to measure steps of " + std::to_string(draft) +
           " drafts in; expected --schedule fixed:N or a smaller --draft");
  }
  const std::int64_t context = std::clamp<std::int64_t>(4 * engine_.config().window, 1, most);
  progress_.show("measuring step costs");
  const CostTable table =
      dsv41::runtime::profile_costs(engine_, {.context = context, .max_requests = requests_}, {.cancel = &cancel_});
  progress_.clear();
  return table;
}

std::optional<Drafting> Speculation::drafting() const {
  if (!options_.speculative) return std::nullopt;
  Drafting out{.sums = decoding_->sums(), .draft = engine_.options().draft, .compares = plain_.has_value()};
  if (plain_ && compared_) out.compare = Comparison{.speculative = decoding_->clock(), .plain = plain_->clock()};
  return out;
}

void Speculation::save_trace() const {
  if (trace_) write_file("--trace", *options_.trace, trace_->json());
}

void check_same_text(std::string_view whose, const dsv41::runtime::SamplerOptions& sampler,
                     std::span<const std::int32_t> speculative, std::span<const std::int32_t> plain) {
  if (sampler.temperature > 0) return;
  const auto [a, b] = std::mismatch(speculative.begin(), speculative.end(), plain.begin(), plain.end());
  if (a == speculative.end() && b == plain.end()) return;
  throw dsv41::Error(dsv41::Errc::internal, std::string(whose) +
                                                ": the speculative text differs from the plain one at token " +
                                                std::to_string(a - speculative.begin()));
}

}  // namespace generate

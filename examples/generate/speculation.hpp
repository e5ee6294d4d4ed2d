// SPDX-License-Identifier: MIT
//
// How generate decodes: options become an engine and a generator, which drafts or does not, and its steps run on a clock. There is no
// other loop over tokens: plain decoding is a policy that makes no drafts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "dsv41/core/cancel.hpp"
#include "dsv41/modules/dspark/cost_table.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/generator.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "options.hpp"
#include "plot/draft_trace.hpp"
#include "terminal.hpp"

namespace generate {

/// An engine for the model's whole context, with its drafter where one is asked for.
/// Errors: dsv41::Error naming the options: unsupported (drafts of a model without a drafter), and those of Engine.
dsv41::runtime::Engine open_engine(const dsv41::runtime::ModelFolder& folder, const Options& options);

/// Sampling, limit and end of one request.
dsv41::runtime::RequestOptions request_options(const Options& options, const dsv41::ModelConfig& config);

/// Time that tokens took once prompts were through.
struct DecodeClock {
  std::int64_t tokens = 0;
  double seconds = 0;

  double rate() const { return static_cast<double>(tokens) / seconds; }  ///< NaN where nothing was decoded
};

/// The same requests with drafts and without.
struct Comparison {
  DecodeClock speculative, plain;

  double speedup() const { return speculative.rate() / plain.rate(); }
};

/// What drafting did in a run.
struct Drafting {
  dsv41::runtime::GeneratorStats sums;
  std::int64_t draft = 0;             ///< tokens drafted at once
  bool compares = false;              ///< asked for
  std::optional<Comparison> compare;  ///< nothing where one of the two was interrupted
};

/// A generator whose steps are timed.
class Decoding {
 public:
  /// `trace`: is told of each step of the model; may be null. Engine, trace and token must outlive it.
  Decoding(dsv41::runtime::Engine& engine, const dsv41::runtime::GeneratorOptions& options,
           dsv41::plot::DraftTrace* trace, const dsv41::CancelToken& cancel)
      : generator_(engine, options), trace_(trace), cancel_(cancel) {}

  /// Generator::add.
  std::int64_t add(dsv41::runtime::Session&& session, const dsv41::runtime::RequestOptions& request,
                   std::span<const std::int32_t> prompt = {}) {
    return generator_.add(std::move(session), request, prompt);
  }
  /// Generator::step. A step counts on the clock when it decoded and ran no prompt: no prompt rows, nobody's first token.
  std::span<const dsv41::runtime::Emission> step();
  dsv41::runtime::Session remove(std::int64_t request) { return generator_.remove(request); }

  const dsv41::runtime::Session& session(std::int64_t request) const { return generator_.session(request); }
  /// Whether the last step ran tokens through the model, so that sessions have new rows of logits.
  bool ran_rows() const { return generator_.last().rows > 0; }
  const dsv41::runtime::GeneratorStats& sums() const { return generator_.stats(); }
  const DecodeClock& clock() const { return clock_; }

 private:
  dsv41::runtime::Generator generator_;
  dsv41::plot::DraftTrace* trace_;
  const dsv41::CancelToken& cancel_;
  DecodeClock clock_;
};

/// What the options say of drafting, as one: the generator, the second one that --compare decodes with, the trace, step costs.
class Speculation {
 public:
  /// `choices`: ids to choose from; `requests`: how many decode at a time. Reads --costs if the file is there. All given must outlive it.
  /// Errors: dsv41::Error unsupported naming the option: confidences of a model that has none; those of load_cost_table.
  Speculation(dsv41::runtime::Engine& engine, const Options& options, std::int64_t choices, std::int64_t requests,
              Progress& progress, const dsv41::CancelToken& cancel);
  Speculation(const Speculation&) = delete;
  Speculation& operator=(const Speculation&) = delete;

  /// To be called before requests are added, of which one may emit `most` tokens. Where so many leave room for a draft, it measures step
  /// costs that the schedule needs and --costs has not, and writes them there; without it nothing is drafted.
  /// Errors: dsv41::Error invalid_argument (a context too short to measure in), cancelled, those of profile_costs and save_cost_table.
  void prepare(std::int64_t most);

  Decoding& decoding() { return *decoding_; }
  /// Without drafts; null unless the run compares.
  Decoding* plain() { return plain_ ? &*plain_ : nullptr; }

  /// The run was interrupted while requests decoded, of which --compare has no whole pair of times.
  void cut_comparison() { compared_ = false; }

  /// Nothing where no drafts were asked for.
  std::optional<Drafting> drafting() const;

  /// Writes --trace. Errors: dsv41::Error io naming the option and the file.
  void save_trace() const;

 private:
  dsv41::CostTable measured_costs();
  void decode_with(const dsv41::runtime::GeneratorOptions& generator);

  dsv41::runtime::Engine& engine_;
  const Options& options_;
  std::int64_t choices_, requests_;
  Progress& progress_;
  const dsv41::CancelToken& cancel_;
  std::optional<dsv41::plot::DraftTrace> trace_;
  std::optional<dsv41::CostTable> costs_;
  std::optional<Decoding> decoding_, plain_;
  bool prepared_ = false, compared_ = true;
};

/// At temperature 0 both must be the same. `whose` begins the message. Errors: dsv41::Error internal with the first token that differs.
void check_same_text(std::string_view whose, const dsv41::runtime::SamplerOptions& sampler,
                     std::span<const std::int32_t> speculative, std::span<const std::int32_t> plain);

/// Runs `work`, which the cancel token may end. Returns whether it came to its own end.
template <class F>
bool until_interrupted(F&& work) {
  try {
    work();
    return true;
  } catch (const dsv41::Error& e) {
    if (e.code() != dsv41::Errc::cancelled) throw;
    return false;
  }
}

}  // namespace generate

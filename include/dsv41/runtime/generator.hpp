// SPDX-License-Identifier: MIT
//
// Generator: many requests decoded together on one engine, with drafts or without, each as if it were alone. Requests join and leave
// between steps; a step is one drafting, one forward of the target over ragged rows, one verdict a request. It stands on the public calls
// of Engine and Session only (draft, step, commit) and on the pure functions of modules/dspark, so an engine with a batch loop of its
// own can do the same. Source: dspark.md 10.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dsv41/modules/dspark/cost_table.hpp"
#include "dsv41/modules/dspark/scheduler.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/sampler.hpp"

namespace dsv41::runtime {

struct GeneratorOptions {
  /// How many drafts are verified. off: none is made. delayed: drafting also pauses where it does not pay (DraftPause).
  DraftPolicy policy = {.kind = DraftPolicy::Kind::off};
  std::optional<CostTable> costs;    ///< early_stop and delayed need it (profile_costs)
  std::vector<double> temperatures;  ///< that confidences are divided by, one a draft; empty: 1
  bool calibrate_online = false;     ///< learns the temperatures from what is accepted instead (OnlineTemperatures)
  std::int64_t choices =
      0;  ///< ids to choose from, the first ones of the vocabulary (a tokenizer may have fewer); 0: all
};

struct RequestOptions {
  SamplerOptions sampler;
  Verification verification = Verification::block;  ///< at temperature 0 drafts are compared, whatever this is
  std::int64_t max_tokens = 256;                    ///< at least 1
  std::vector<std::int32_t> stop_ids;               ///< each ends the request and is its last token
};

enum class Finish : std::uint8_t {
  none,     ///< it goes on
  stop,     ///< its last token is a stop token
  length,   ///< max_tokens
  context,  ///< no position is left
  failed    ///< its logits were of no use; the text up to there is right
};

/// What a step gave one request.
struct Emission {
  std::int64_t request = 0;
  std::span<const std::int32_t> tokens;  ///< none of a request that failed
  Finish finish = Finish::none;
  std::string_view error;  ///< failed: why
};

/// One request's part of a step.
struct RoundReport {
  std::int64_t request = 0;
  std::int64_t anchor = 0;    ///< position
  std::int32_t drafted = 0;   ///< at hand
  std::int32_t verified = 0;  ///< of these, run through the target
  std::int32_t accepted = 0;  ///< by the verdict; emission may end before them
  std::int32_t emitted = 0;
};

/// What the last step did, as data; valid until the next step() or add().
struct StepReport {
  std::vector<RoundReport> rounds;   ///< of requests that decoded
  std::vector<float> confidences;    ///< [rounds, draft] calibrated; kNoConfidence where there is none
  StepPlan plan;                     ///< rows are those of `rounds`
  std::int64_t rows = 0;             ///< of the target's forward
  std::int64_t prompt_rows = 0;      ///< of these, of prompts
  bool drafting = false;             ///< whether somebody had drafts at hand
  double draft_ms = 0, step_ms = 0;  ///< measured: drafting; the target's forward
};

/// Sums over all steps. A round is one request's part of a step in which it decoded.
struct GeneratorStats {
  std::int64_t target_forwards = 0;  ///< steps with at least one round
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t verified = 0;
  std::int64_t accepted = 0;
  std::int64_t emitted = 0;               ///< in rounds: all tokens but each request's first, which its prompt gave
  std::vector<std::int64_t> verified_at;  ///< [draft] rounds that verified a k-th draft
  std::vector<std::int64_t> accepted_at;  ///< [draft] and accepted it, with all before it
  double expected_tokens = 0;             ///< by the confidences; this and the next three: of steps that weighed costs
  double expected_ms = 0;                 ///< by the cost table
  double plain_tokens = 0, plain_ms = 0;  ///< the same steps without drafter and drafts, by the cost table

  /// Tokens per millisecond that confidences and cost table promised, over those of plain decoding; nothing where no step weighed them.
  std::optional<double> predicted_gain() const noexcept {
    if (!(expected_ms > 0 && plain_tokens > 0)) return std::nullopt;
    return expected_tokens / expected_ms / (plain_tokens / plain_ms);
  }
};

/// Decodes requests. One thread at a time, together with its engine. Within step() a listener may look at it; add(), remove() and step()
/// are refused as busy.
///
/// What a request gives depends on its session's tokens, its options and, at a temperature above 0, on the lengths that the policy gave
/// it: with off, fixed and threshold not on its mates (while a step of the engine has room for all rows, otherwise drafts are cut short at
/// some steps; and where thresholds are held against confidences that calibrate_online learns from all), with early_stop and delayed its
/// law does not. At temperature 0 nothing but the tokens matters: it is plain greedy decoding, to the bit of every row of logits.
class Generator {
 public:
  /// The engine must outlive it.
  /// Errors: invalid_argument: temperatures, choices, a policy without its cost table; unsupported: a policy that drafts on an engine with
  ///         EngineOptions::draft 0, or that reads confidences of a model without a confidence head.
  Generator(Engine& engine, GeneratorOptions options);
  ~Generator();
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;

  /// Takes a session, and a request's number, from 0 on and never used twice, is the answer. `prompt` is fed first, in steps beside the
  /// other requests; empty: the session has the logits of its last token. In a prefill mode that skips rows a prompt runs in one piece
  /// before the step of the others.
  ///
  /// Errors:  invalid_argument: options, a prompt that Session::append would refuse, a session of another engine or, without a prompt,
  ///          without logits; out_of_memory: no position is left. The session is the caller's again then: it is moved only at the end.
  std::int64_t add(Session&& session, const RequestOptions& options, std::span<const std::int32_t> prompt = {});

  /// One step of all requests that are not finished. Returns what each that got tokens or finished got: valid until the next step() or
  /// add(), of one request until its remove().
  ///
  /// Rules:   a request's first token comes of its prompt's logits, in a step of its own or that of the prompt's end; each later step is
  ///          a round. Where the engine's max_rows has no row for somebody, requests take turns (admit_rows). Session::logits() of
  ///          session(request) then holds the rows that the emitted tokens were chosen from, in order.
  /// Errors:  those of Engine::draft and Engine::step: no request has lost or won a token then, and step() may be called again, after
  ///          out_of_memory best without one of the requests.
  std::span<const Emission> step(const StepControl& control = {});

  /// Gives a request's session back, whether it is finished or not. It holds the prompt's tokens as far as they were fed and all emitted
  /// ones but the last, which has not run.
  /// Errors:  invalid_argument: no such request.
  Session remove(std::int64_t request);

  /// Requests that are not finished.
  std::int64_t active() const noexcept;

  /// Errors: invalid_argument: no such request.
  const Session& session(std::int64_t request) const;

  const GeneratorOptions& options() const noexcept;
  const GeneratorStats& stats() const noexcept;
  const StepReport& last() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime

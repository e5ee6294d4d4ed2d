// SPDX-License-Identifier: MIT
//
// The command line of generate: every option, parsed strictly. What the model decides (vocabulary, context, drafter) is checked
// later, where it is known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv41/core/numeric.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/modules/dspark/scheduler.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/sampler.hpp"

namespace generate {

struct Options {
  std::string model;  ///< empty: the demo checkpoint

  // At most one source of the prompt; none of them with chat: turns are read from standard input.
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::optional<std::vector<std::int32_t>> tokens;
  bool chat = false;

  bool bos = false;
  std::optional<std::string> system;
  bool thinking = false;
  std::int32_t effort = 75;                                         ///< the released encoder's default
  std::optional<std::pair<std::int64_t, std::int64_t>> image_span;  ///< first position, count

  std::int64_t max_tokens = 256;
  dsv41::runtime::SamplerOptions sampler;
  std::string backend = "cpu";
  dsv41::Numeric numeric = dsv41::Numeric::exact;
  std::int64_t threads = 0;       ///< 0: one for each processor
  std::int64_t weight_bytes = 0;  ///< 0: no limit
  dsv41::Prefill prefill = dsv41::Prefill::full;
  std::int64_t chunk = 256;  ///< tokens of a step at most

  std::optional<dsv41::Verification> speculative;  ///< how drafts are judged; nothing: none are made
  std::string schedule = "auto";                   ///< as given, for reports
  dsv41::DraftPolicy policy = {.kind = dsv41::DraftPolicy::Kind::off};  ///< of it; off without `speculative`
  std::int64_t draft = 0;  ///< tokens drafted at once; 0: the model's block
  std::optional<std::string> costs;
  bool compare = false;
  std::optional<std::string> trace;

  std::optional<std::string> batch;
  std::int64_t parallel = 8;  ///< requests of the batch at a time

  std::optional<std::string> restore;
  std::optional<std::string> save;
  std::int64_t rewind = 0;

  std::optional<std::string> perplexity;
  std::optional<std::string> logits_out;
  std::optional<std::string> stats;
  bool quiet = false;
  bool help = false;

  /// Turns come from standard input.
  bool converses() const { return chat && !prompt && !prompt_file; }
  bool has_prompt() const { return prompt || prompt_file || tokens || bos; }
};

/// The value of --speculative for it.
std::string_view speculative_name(const std::optional<dsv41::Verification>& how) noexcept;

/// Reads the arguments after the program's name. `--name value` and `--name=value` are the same.
///
/// Errors: dsv41::Error invalid_argument naming the option, what it expects and what it got: an unknown option, one
///         given twice, a missing value, a bad number, options that exclude each other.
Options parse_options(const std::vector<std::string>& arguments);

/// Sets what `key` of a request in a batch file (max_tokens, temperature, top_k, top_p, min_p, seed) and the option of that name have in
/// common, by the option's rules; false: it is none of these. Errors: dsv41::Error invalid_argument that begins with `name`.
bool set_by_key(Options& options, std::string_view key, std::string_view name, std::string_view value);

/// Refuses a way to judge drafts that does not fit the temperature. Errors: dsv41::Error invalid_argument that begins with `name`.
void check_temperature(const Options& options, std::string_view name);

/// The text of --help.
std::string_view help_text() noexcept;

}  // namespace generate

// SPDX-License-Identifier: MIT
//
// The command line of generate: every option, parsed strictly. What the model decides (vocabulary, context) is checked
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
  std::string backend = "ref";
  dsv41::Numeric numeric = dsv41::Numeric::exact;
  std::int64_t threads = 1;
  dsv41::Prefill prefill = dsv41::Prefill::full;
  std::int64_t chunk = 256;  ///< tokens of a step at most

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

/// Reads the arguments after the program's name. `--name value` and `--name=value` are the same.
///
/// Errors: dsv41::Error invalid_argument naming the option, what it expects and what it got: an unknown option, one
///         given twice, a missing value, a bad number, options that exclude each other.
Options parse_options(const std::vector<std::string>& arguments);

/// The text of --help.
std::string_view help_text() noexcept;

}  // namespace generate

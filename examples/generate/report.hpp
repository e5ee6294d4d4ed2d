// SPDX-License-Identifier: MIT
//
// What a run says about itself: the summary line, the perplexity line, the JSON of --stats.
#pragma once

#include <string>

#include "batch.hpp"
#include "options.hpp"
#include "perplexity.hpp"
#include "sequence.hpp"

namespace generate {

/// Tokens, tokens per second, time to first token, and what drafting gave, for a terminal.
std::string summary_line(const Figures& figures);

/// The same of a batch.
std::string summary_line(const BatchFigures& figures);

/// "bits_per_byte X  tokens N  bytes M\n".
std::string perplexity_line(const Perplexity& result);

/// One JSON object: model, backend, numeric_class, threads, seed, prompt_tokens, generated_tokens, position, stop, the
/// times of Figures in seconds, and rates; decode_tokens_per_s counts the tokens after a reply's first. prefill is the mode in force,
/// prefill_note (only then) why it is not the one asked for; rows_per_layer counts rows of prompts.
/// restored_tokens, reused_tokens and recomputed_tokens are those of Figures; cache_bytes are of the pages held at the end, the other
/// bytes as in SessionMemory. With --weight-bytes `weights` has the members of WeightTier.
///
/// speculative is the option's value; with drafts schedule and draft are too, rounds, drafted, verified, accepted and target_forwards are
/// GeneratorStats; emitted_per_round; verified_by_position and accepted_by_position, its verified_at and accepted_at; predicted_gain, null
/// where no step weighed costs; and of --compare `compare`, null where one of
/// its runs was interrupted: plain_s and speculative_s, of steps that ran no prompt, and speedup, the tokens
/// per second in the latter over those in the former.
std::string stats_json(const std::string& model, const Options& options, const Figures& figures);

/// The same with bits_per_byte, bits, predicted_tokens and bytes; prompt_tokens are the text's, prefill_s is the time
/// of its evaluation; no stop and no time to first token.
std::string stats_json(const std::string& model, const Options& options, double load_s, const Perplexity& result);

/// Of a batch: requests, failed, parallel, and sums over its requests; tokens_per_s counts all generated tokens in batch_s,
/// decode_tokens_per_s those of steps that ran no prompt, in their time.
std::string stats_json(const std::string& model, const Options& options, const BatchFigures& figures);

}  // namespace generate

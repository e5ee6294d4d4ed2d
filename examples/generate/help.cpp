// SPDX-License-Identifier: MIT
//
// The text of --help.
#include "options.hpp"

namespace generate {

std::string_view help_text() noexcept {
  return R"(generate - text from a DeepSeek-V4.1-Flash model folder

usage: generate [options]        without a prompt: the demo continues "In the beginning"

model
  --model DIR            folder with config.json, *.safetensors and tokenizer.json (default: the demo)
  --backend NAME         cpu (default): SIMD kernels on threads; ref: the plain reference, one thread
  --numeric CLASS        exact (default): float32; deployed: the released model's own roundings
  --threads N            at least 1, of cpu (default: one for each processor); changes no result
  --weight-bytes N       of cpu: memory for weights. What every token reads must fit, the rest holds experts;
                         others are read from their files when they are chosen. Changes no result
                         (default: all weights where the system maps them)
  --prefill MODE         full (default): every prompt token through every layer; exact: only what later
                         tokens depend on, the same result; replay: the last window of a prompt through
                         the layers behind the last kv source, an approximation
  --chunk N              tokens of a step at most (default 256); changes no result

prompt, one of
  --prompt TEXT          encoded as it stands; added tokens that it spells out become those tokens
  --prompt-file FILE     the same from a file or pipe, at most 64 MiB
  --tokens 1,2,3         ids; the output is ids too, the end-of-sequence id included
  --chat                 the text is a user's message, in which no text becomes a control token;
                         without a text, standard input is a conversation, one message a line
  --bos                  put the begin-of-sequence token first (alone, it is the whole prompt)
  --image-span F:N       N prompt positions from F on are an image span

chat
  --system TEXT          a system message first
  --thinking             let the model reason first; its reasoning ends with </think>
  --effort N             how much of it, 1 to 100 (default 75)

tokens
  --max-tokens N         at most N (default 256); the end-of-sequence token ends the text and counts
  --temperature T        0 (default): the likeliest token; else sample
  --top-k K              of the K likeliest (default 0: all), then
  --top-p P              of the likeliest that together have share P (default 1: all), then
  --min-p P              of those with at least P times the likeliest one's probability (default 0: all)
  --seed S               a token depends on seed, position and logits alone (default 0)

drafts
  --speculative HOW      off (default); else the model's drafter proposes tokens and one step judges them:
                         greedy (temperature 0), rejection or block. At temperature 0 the text is that of
                         off; above it, it has the same probabilities, but other texts than off's come of a seed
  --schedule S           how many drafts are judged: auto (default; what pays, by confidences that the run
                         calibrates; drafting pauses where none do), alg1 (the paper's rule), fixed:N
                         (0 to 64), threshold:C (up to the first confidence below C, from 0 to 1)
  --draft N              tokens proposed at once, 1 to 64 (default: the model's own block)
  --costs FILE           step costs for auto and alg1: read if FILE is there, else measured and written
                         there; without FILE each run that may draft measures them, and above
                         temperature 0 a seed's text may change with them
  --compare              decode again without drafts and tell the speed-up: tokens per second of decode
                         steps that ran no prompt (so none of the first token), with drafts over without;
                         at temperature 0 another text is an error
  --trace FILE           JSON: each step's drafts, confidences, lengths and times

batch
  --batch FILE           a request a line: {"prompt": "TEXT"} or {"tokens": [IDS]}, and as wished "id",
                         "chat": true, "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"; what
                         is left out is as given here. Lines come out as they are made: {"id", "text"} (or
                         "tokens"), at last {"id", "finish", "count", "text"}; finish is stop, length,
                         context, interrupted, or failed with "error": such a batch ends with its results
                         written and status 2
  --parallel N           requests decoded at a time (default 8); the next joins when one ends

session
  --save FILE            keep all tokens and caches in FILE, to go on from later
  --restore FILE         begin with them, under the same model, --numeric and --prefill. A prompt is still
                         the whole prompt: what it shares with FILE's tokens is not run again; without
                         one the text goes on where it stopped; --image-span needs a prompt
  --rewind N             drop the last N tokens of prompt or FILE before generating (not with --chat)

results
  --perplexity FILE      no text: bits per byte of FILE, in windows of max_position_embeddings tokens
  --logits-out FILE      safetensors: logits of every token that this run fed or produced, and the tokens
  --stats FILE           JSON: counts, seconds, numeric class, backend, memory, and rows_per_layer: rows of
                         prompts, not of what is generated, that each layer ran
  --quiet                no progress and no summary (they appear only on a terminal)
  --help                 this text

Status: 0, or 2 after one message on standard error. Result files are written at the end, one after
another (--costs once measured): whatever fails, each is whole or as it was. Ctrl-C ends the text, not the
results: --save, --stats, --trace and --logits-out hold what there was; status 130.
)";
}

}  // namespace generate

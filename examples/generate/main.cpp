// SPDX-License-Identifier: MIT
//
// generate: text from a model folder. One run is: options, checks that need no model, model, prompt, tokens, result
// files. Whatever fails ends in one message on standard error and status 2; Ctrl-C, once the model is there, in its own with results and
// status 130.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "batch.hpp"
#include "command_line.hpp"
#include "conversation.hpp"
#include "dsv41/core/error.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "options.hpp"
#include "perplexity.hpp"
#include "prompt.hpp"
#include "recorder.hpp"
#include "report.hpp"
#include "sequence.hpp"
#include "speculation.hpp"
#include "terminal.hpp"

namespace generate {

namespace {

namespace fs = std::filesystem;
using dsv41::runtime::ModelFolder;

constexpr std::string_view kDemoPrompt = "In the beginning";

/// The demo checkpoint: where the sources were when this was built, or beside the program.
fs::path demo_folder() {
  std::error_code error;
  const fs::path built = DSV41_DEMO_DIR;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / "examples" / "tiny";
  for (const fs::path& folder : {built, beside}) {
    if (fs::exists(folder / "config.json", error)) return folder;
  }
  throw dsv41::Error(dsv41::Errc::io,
                     "--model: not given, and the demo is neither at " + built.string() + " nor at " + beside.string());
}

/// A file that this run writes.
struct Output {
  std::string_view option;
  const std::optional<std::string>& path;
};

/// A cost table that is there is read, otherwise it is made.
bool has_costs(const Options& options) {
  std::error_code error;
  return options.costs && fs::exists(*options.costs, error);
}

/// A session may replace the one that was restored, which has been read by then.
void check_output(const Output& output, const Options& options, const fs::path& model) {
  require_writable(output.option, *output.path);
  std::vector<std::string> inputs;
  for (const auto& input : {options.prompt_file, options.perplexity, options.batch}) {
    if (input) inputs.push_back(*input);
  }
  if (has_costs(options)) inputs.push_back(*options.costs);
  if (options.restore && output.option != "--save") inputs.push_back(*options.restore);
  if (is_input(*output.path, inputs, model)) {
    refuse(std::string(output.option) + ": " + *output.path + " is read by this run, expected another file");
  }
}

void check_outputs(const Options& options, const fs::path& model) {
  const std::optional<std::string> none;
  const Output outputs[] = {{"--logits-out", options.logits_out},
                            {"--save", options.save},
                            {"--stats", options.stats},
                            {"--trace", options.trace},
                            {"--costs", has_costs(options) ? none : options.costs}};
  for (const Output& output : outputs) {
    if (output.path) check_output(output, options, model);
  }
  for (const Output* a = outputs; a != std::end(outputs); ++a) {
    for (const Output* b = outputs; b != a; ++b) {
      if (!a->path || !b->path || !same_place(*a->path, *b->path)) continue;
      refuse(std::string(b->option) + " and " + std::string(a->option) + ": both are " + *a->path);
    }
  }
}

/// Streams the continuation of the prompt, or without one of what was restored: as text, or as ids when ids were given.
void complete(const ModelFolder& folder, const Options& options, const std::optional<Prompt>& prompt,
              Sequence& sequence) {
  if (!prompt) {
    sequence.resume(options.rewind);
  } else {
    sequence.prefill(prompt->ids, prompt->image);
    if (options.rewind > 0) sequence.rewind(options.rewind);
  }
  if (!writes_text(folder, options)) {
    std::string separator;
    sequence.decode([&](std::int32_t id) {
      write_out(separator + std::to_string(id));
      separator = ",";
    });
    if (!separator.empty()) write_out("\n");
    return;
  }
  dsv41::text::StreamingDetokenizer stream(*folder.tokenizer, true);
  sequence.decode([&](std::int32_t id) { write_out(stream.push(id)); });
  write_out(stream.finish());
  if (out_is_terminal()) write_out("\n");
}

[[noreturn]] void end_interrupted(std::int64_t generated) {
  throw dsv41::Error(dsv41::Errc::cancelled, "interrupted; " + std::to_string(generated) + " tokens were generated");
}

/// One prompt or conversation. `load_s`: opening the folder.
void run_sequence(const ModelFolder& folder, const Options& options, const std::string& path, double load_s,
                  Progress& progress) {
  std::optional<Prompt> prompt;
  if (!options.converses() && (options.has_prompt() || !options.restore))
    prompt = make_prompt(folder, options, options.model.empty() ? kDemoPrompt : "");
  std::optional<Recorder> recorder;
  if (options.logits_out) recorder.emplace(folder.checkpoint.config().vocab);
  const dsv41::CancelToken& cancel = cancel_on_interrupt();
  const double opening = now();
  dsv41::runtime::Engine engine = open_engine(folder, options);
  load_s += now() - opening;
  Speculation speculation(engine, options, choices(folder, options), 1, progress, cancel);
  const double restoring = now();
  Sequence sequence(engine, options, speculation, recorder ? &*recorder : nullptr, progress, cancel);
  if (options.restore) sequence.restore(*options.restore);
  load_s += now() - restoring;
  if (options.converses()) {
    converse(folder, options, sequence, progress);
  } else {
    complete(folder, options, prompt, sequence);
  }
  Figures figures = sequence.figures();
  figures.load_s = load_s;
  if (options.save) sequence.save(*options.save);
  if (recorder) recorder->save(*options.logits_out);
  speculation.save_trace();
  if (options.stats) write_file("--stats", *options.stats, stats_json(path, options, figures));
  progress.print(summary_line(figures));
  if (sequence.interrupted()) end_interrupted(figures.generated_tokens);
}

void run_batch(const ModelFolder& folder, const Options& options, const std::string& path, double load_s,
               Progress& progress) {
  const std::vector<BatchRequest> requests = read_batch(folder, options);
  const dsv41::CancelToken& cancel = cancel_on_interrupt();
  const double opening = now();
  dsv41::runtime::Engine engine = open_engine(folder, options);
  load_s += now() - opening;
  const std::int64_t together = std::min(options.parallel, std::ssize(requests));
  Speculation speculation(engine, options, choices(folder, requests), together, progress, cancel);
  BatchFigures figures = run_batch(engine, options, speculation, folder, requests, progress, cancel);
  figures.load_s = load_s;
  speculation.save_trace();
  if (options.stats) write_file("--stats", *options.stats, stats_json(path, options, figures));
  progress.print(summary_line(figures));
  if (cancel.requested()) end_interrupted(figures.generated_tokens);
  if (figures.failed > 0) {
    refuse("--batch: " + std::to_string(figures.failed) + " of " + std::to_string(figures.requests) +
           " requests failed; their lines say why");
  }
}

void run(const Options& options) {
  const fs::path path = options.model.empty() ? demo_folder() : fs::path(options.model);
  check_outputs(options, path);
  Progress progress(options.quiet);
  progress.show("loading " + path.string());
  const double start = now();
  const ModelFolder folder = ModelFolder::open(path);
  const double load_s = now() - start;
  progress.clear();
  if (options.perplexity) {
    const Perplexity result = perplexity(folder, options, progress);
    write_out(perplexity_line(result));
    if (options.stats) write_file("--stats", *options.stats, stats_json(path.string(), options, load_s, result));
  } else if (options.batch) {
    run_batch(folder, options, path.string(), load_s, progress);
  } else {
    run_sequence(folder, options, path.string(), load_s, progress);
  }
}

void command(const std::vector<std::string>& arguments) {
  const Options options = parse_options(arguments);
  if (options.help) {
    write_out(help_text());
  } else {
    run(options);
  }
}

}  // namespace

}  // namespace generate

int main(int argc, char** argv) {
  return generate::main_of("generate", argc, argv, generate::command);
}

// SPDX-License-Identifier: MIT
//
// generate: text from a model folder. One run is: options, checks that need no model, model, prompt, tokens, result
// files. Whatever fails ends in one message on standard error and status 2; Ctrl-C, once tokens run, in its own with results and 130.
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

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

/// A session may replace the one that was restored, which has been read by then.
void check_output(const Output& output, const Options& options, const fs::path& model) {
  require_writable(output.option, *output.path);
  std::vector<std::string> inputs;
  for (const auto& input : {options.prompt_file, options.perplexity}) {
    if (input) inputs.push_back(*input);
  }
  if (options.restore && output.option != "--save") inputs.push_back(*options.restore);
  if (is_input(*output.path, inputs, model)) {
    refuse(std::string(output.option) + ": " + *output.path + " is read by this run, expected another file");
  }
}

void check_outputs(const Options& options, const fs::path& model) {
  const Output outputs[] = {{"--logits-out", options.logits_out}, {"--save", options.save}, {"--stats", options.stats}};
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
    sequence.decode(options.max_tokens, [&](std::int32_t id) {
      write_out(separator + std::to_string(id));
      separator = ",";
    });
    if (!separator.empty()) write_out("\n");
    return;
  }
  dsv41::text::StreamingDetokenizer stream(*folder.tokenizer, true);
  sequence.decode(options.max_tokens, [&](std::int32_t id) { write_out(stream.push(id)); });
  write_out(stream.finish());
  if (out_is_terminal()) write_out("\n");
}

void run(const Options& options) {
  const fs::path path = options.model.empty() ? demo_folder() : fs::path(options.model);
  check_outputs(options, path);
  Progress progress(options.quiet);
  progress.show("loading " + path.string());
  const double start = now();
  const ModelFolder folder = ModelFolder::open(path);
  double load_s = now() - start;
  progress.clear();

  if (options.perplexity) {
    const Perplexity result = perplexity(folder, options, progress);
    write_out(perplexity_line(result));
    if (options.stats) write_file("--stats", *options.stats, stats_json(path.string(), options, load_s, result));
    return;
  }
  std::optional<Prompt> prompt;
  if (!options.converses() && (options.has_prompt() || !options.restore))
    prompt = make_prompt(folder, options, options.model.empty() ? kDemoPrompt : "");
  std::optional<Recorder> recorder;
  if (options.logits_out) recorder.emplace(folder.checkpoint.config().vocab);
  const double opening = now();
  Sequence sequence(folder, options, recorder ? &*recorder : nullptr, progress, cancel_on_interrupt());
  if (options.restore) sequence.restore(*options.restore);
  load_s += now() - opening;
  if (options.converses()) {
    converse(folder, options, sequence, progress);
  } else {
    complete(folder, options, prompt, sequence);
  }
  Figures figures = sequence.figures();
  figures.load_s = load_s;
  if (options.save) sequence.save(*options.save);
  if (recorder) recorder->save(*options.logits_out);
  if (options.stats) write_file("--stats", *options.stats, stats_json(path.string(), options, figures));
  progress.print(summary_line(figures));
  if (!sequence.interrupted()) return;
  throw dsv41::Error(dsv41::Errc::cancelled,
                     "interrupted; " + std::to_string(figures.generated_tokens) + " tokens were generated");
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

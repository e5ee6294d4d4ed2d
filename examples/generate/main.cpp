// SPDX-License-Identifier: MIT
//
// generate: text from a model folder. One run is: options, checks that need no model, model, prompt, tokens, result
// files. Whatever fails ends in one message on standard error and status 2.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "conversation.hpp"
#include "dsv41/core/error.hpp"
#include "files.hpp"
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

constexpr int kFailure = 2;
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

void check_output(std::string_view option, const std::string& path, const Options& options, const fs::path& model) {
  require_writable(option, path);
  std::vector<std::string> inputs;
  for (const auto& input : {options.prompt_file, options.perplexity}) {
    if (input) inputs.push_back(*input);
  }
  if (is_input(path, inputs, model)) {
    refuse(std::string(option) + ": " + path + " is read by this run, expected another file");
  }
}

void check_outputs(const Options& options, const fs::path& model) {
  if (options.logits_out) check_output("--logits-out", *options.logits_out, options, model);
  if (options.stats) check_output("--stats", *options.stats, options, model);
  if (options.logits_out && options.stats && same_place(*options.logits_out, *options.stats)) {
    refuse("--logits-out and --stats: both are " + *options.stats);
  }
}

/// Streams the continuation of the prompt: as text, or as ids when ids were given.
void complete(const ModelFolder& folder, const Options& options, const Prompt& prompt, Sequence& sequence) {
  sequence.prefill(prompt.ids, prompt.image, options.max_tokens);
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
  const double load_s = now() - start;
  progress.clear();

  if (options.perplexity) {
    const Perplexity result = perplexity(folder, options, progress);
    write_out(perplexity_line(result));
    if (options.stats) write_file("--stats", *options.stats, stats_json(path.string(), options, load_s, result));
    return;
  }
  std::optional<Recorder> recorder;
  if (options.logits_out) recorder.emplace();
  Sequence sequence(folder, options, recorder ? &*recorder : nullptr, progress);
  if (options.chat && !options.prompt && !options.prompt_file) {
    converse(folder, options, sequence, progress);
  } else {
    const Prompt prompt = make_prompt(folder, options, options.model.empty() ? kDemoPrompt : "");
    complete(folder, options, prompt, sequence);
  }
  Figures figures = sequence.figures();
  figures.load_s += load_s;
  if (recorder) recorder->save(*options.logits_out);
  if (options.stats) write_file("--stats", *options.stats, stats_json(path.string(), options, figures));
  progress.print(summary_line(figures));
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

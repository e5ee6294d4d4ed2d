// SPDX-License-Identifier: MIT
//
// inspect: what a config costs, from the config alone. Whatever fails ends in one message on standard error and status 2.
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/core/v41_flash.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "figures.hpp"
#include "generate/command_line.hpp"
#include "generate/files.hpp"
#include "generate/terminal.hpp"
#include "options.hpp"

namespace inspect {

namespace {

namespace fs = std::filesystem;
using generate::refuse;

/// The file that CONFIG means.
std::string config_path(const Options& options) {
  if (!options.config) return "";
  std::error_code error;
  return fs::is_directory(*options.config, error) ? (fs::path(*options.config) / "config.json").string()
                                                  : *options.config;
}

constexpr std::string_view kHeaders = "--write-headers";

[[noreturn]] void fail_headers(const std::string& what) {
  throw dsv41::Error(dsv41::Errc::io, std::string(kHeaders) + ": " + what);
}

/// One file to be written.
struct Result {
  std::string_view option;
  std::string path, contents = {};
};

/// DIR of --write-headers, which need not exist: a folder, or a name that can become one.
void check_folder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  if (fs::exists(fs::symlink_status(path, error))) fail_headers(path + ": is there and no folder");
  generate::require_writable(kHeaders, path);
}

/// Refuses files that cannot be written, that are `config`, or that two options name.
void check_results(const std::vector<Result>& all, const std::string& config) {
  const std::string inputs[] = {config};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [option, path, contents] = all[i];
    generate::require_writable(option, path);
    if (!config.empty() && generate::is_input(path, inputs, {})) {
      refuse(std::string(option) + ": " + path + " is read by this run, expected another file");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (generate::same_place(path, all[j].path)) {
        refuse(std::string(all[j].option) + " and " + std::string(option) + ": both are " + path);
      }
    }
  }
}

/// Refuses a folder with headers that are not among `names`: beside those of this model they would pass for part of it.
void check_foreign(const std::string& folder, const std::set<std::string>& names) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (at->path().extension() == ".header" && names.count(name) == 0) {
      refuse(std::string(kHeaders) + ": " + folder + " holds " + name +
             ", which is none of this model's, expected a folder without other headers");
    }
  }
  if (error) fail_headers(folder + ": cannot be read: " + error.message());
}

/// --shards and --write-headers speak of all files, so of the vision tower's too.
void require_vision(const Options& options, const std::string& missing) {
  if (missing.empty() || (!options.shards && !options.headers)) return;
  refuse(std::string(options.shards ? "--shards" : kHeaders) + ": the config does not describe its vision tower: " +
         missing + " is absent, and with it the number and headers of the files");
}

/// Everything that is asked for, checked.
std::vector<Result> make_results(const Options& options, const std::string& config, const Figures& figures) {
  std::vector<Result> out;
  if (options.json) out.push_back({"--json", *options.json, json(figures)});
  if (options.plot) out.push_back({"--plot", *options.plot, plot(figures)});
  if (!options.shards && !options.headers) return out;
  require_vision(options, figures.missing_vision_key);
  const auto shards = dsv41::plan::released_shards(figures.config);
  if (options.shards) out.push_back({"--shards", *options.shards, shards_json(shards)});
  if (!options.headers) return out;
  std::set<std::string> names;
  for (const auto& shard : shards) {
    names.insert(shard.file + ".header");
    out.push_back({kHeaders, (fs::path(*options.headers) / (shard.file + ".header")).string(), shard.header});
  }
  std::error_code error;
  if (!fs::is_directory(*options.headers, error)) return out;  // nothing can be in it
  check_foreign(*options.headers, names);
  check_results(out, config);
  return out;
}

/// Results by their paths alone, so that what cannot be is said before the work.
void check_paths(const Options& options, const std::string& config) {
  std::vector<Result> all;
  if (options.json) all.push_back({"--json", *options.json});
  if (options.plot) all.push_back({"--plot", *options.plot});
  if (options.shards) all.push_back({"--shards", *options.shards});
  if (options.headers) check_folder(*options.headers);
  std::error_code error;
  if (options.headers && !fs::is_directory(*options.headers, error)) all.push_back({kHeaders, *options.headers});
  check_results(all, config);
}

void write(const Options& options, const std::vector<Result>& results) {
  std::error_code error;
  if (options.headers) fs::create_directory(*options.headers, error);
  if (error) fail_headers(*options.headers + ": cannot be made a folder: " + error.message());
  for (const Result& r : results) generate::write_file(r.option, r.path, r.contents);
}

void run(const Options& options) {
  const std::string path = config_path(options);
  check_paths(options, path);
  dsv41::runtime::ConfigNotes notes;
  const dsv41::ModelConfig config =
      path.empty() ? dsv41::v41_flash()
                   : dsv41::runtime::parse_config(generate::read_file("CONFIG", path), path, &notes);
  const std::int64_t context = options.context.value_or(config.max_positions);
  if (context > config.max_positions) {
    refuse("--context: expected at most max_position_embeddings = " + std::to_string(config.max_positions) + ", got '" +
           std::to_string(context) + "'");
  }
  std::optional<dsv41::plan::Budgets> budgets;
  if (options.device_bytes || options.host_bytes) {
    budgets = {.device_bytes = options.device_bytes.value_or(0), .host_bytes = options.host_bytes.value_or(0)};
  }
  const std::string name = path.empty() ? "DeepSeek-V4.1-Flash as released" : path;
  Figures figures;
  generate::naming(
      name, [&] { figures = make_figures(generate::one_line(name), config, notes, context, options.batch, budgets); });
  const std::vector<Result> results = make_results(options, path, figures);
  generate::write_out(report(figures));
  write(options, results);
}

void command(const std::vector<std::string>& arguments) {
  const Options options = parse_options(arguments);
  if (options.help) {
    generate::write_out(help_text());
  } else {
    run(options);
  }
}

}  // namespace

}  // namespace inspect

int main(int argc, char** argv) {
  return generate::main_of("inspect", argc, argv, inspect::command);
}

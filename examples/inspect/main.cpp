// SPDX-License-Identifier: MIT
//
// inspect: what a config costs, from the config alone. Whatever fails ends in one message on standard error and status 2.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/core/v41_flash.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "figures.hpp"
#include "generate/files.hpp"
#include "generate/numbers.hpp"
#include "generate/terminal.hpp"
#include "options.hpp"

namespace inspect {

namespace {

namespace fs = std::filesystem;
using generate::refuse;

constexpr int kFailure = 2;

/// The file that CONFIG means.
std::string config_path(const Options& options) {
  if (!options.config) return "";
  std::error_code error;
  return fs::is_directory(*options.config, error) ? (fs::path(*options.config) / "config.json").string()
                                                  : *options.config;
}

using Result = std::pair<std::string_view, std::string>;  // option, path

std::vector<Result> results(const Options& options) {
  std::vector<Result> out;
  if (options.json) out.emplace_back("--json", *options.json);
  if (options.plot) out.emplace_back("--plot", *options.plot);
  if (options.shards) out.emplace_back("--shards", *options.shards);
  return out;
}

void check_results(const Options& options, const std::string& config) {
  const std::vector<Result> all = results(options);
  const std::string inputs[] = {config};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [option, path] = all[i];
    generate::require_writable(option, path);
    if (!config.empty() && generate::is_input(path, inputs, {})) {
      refuse(std::string(option) + ": " + path + " is read by this run, expected another file");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (generate::same_place(path, all[j].second)) {
        refuse(std::string(all[j].first) + " and " + std::string(option) + ": both are " + path);
      }
    }
  }
}

/// The folder of --write-headers, made if its parent is there.
void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) {
    throw dsv41::Error(dsv41::Errc::io, "--write-headers: " + path + ": cannot be made a folder: " + error.message());
  }
}

void write_shards(const Options& options, const dsv41::ModelConfig& config) {
  if (!options.shards && !options.headers) return;
  const auto shards = dsv41::plan::released_shards(config);
  if (options.headers) {
    make_folder(*options.headers);
    for (const auto& shard : shards) {
      const fs::path file = fs::path(*options.headers) / (shard.file + ".header");
      generate::write_file("--write-headers", file.string(), shard.header);
    }
  }
  if (options.shards) generate::write_file("--shards", *options.shards, shards_json(shards));
}

void run(const Options& options) {
  const std::string path = config_path(options);
  check_results(options, path);
  const dsv41::ModelConfig config =
      path.empty() ? dsv41::v41_flash() : dsv41::runtime::parse_config(generate::read_file("CONFIG", path), path);
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
  const Figures figures = make_figures(name, config, context, options.batch, budgets);
  write_shards(options, config);
  if (options.json) generate::write_file("--json", *options.json, json(figures));
  if (options.plot) generate::write_file("--plot", *options.plot, plot(figures));
  generate::write_out(report(figures));
}

int main_of(const std::vector<std::string>& arguments) {
  std::string message;
  try {
    generate::prepare_streams();
    const Options options = parse_options(arguments);
    if (options.help) {
      generate::write_out(help_text());
    } else {
      run(options);
    }
    return 0;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& e) {
    message = e.what();
  }
  std::fprintf(stderr, "inspect: %s\n", generate::one_line(message).c_str());
  return kFailure;
}

}  // namespace

}  // namespace inspect

int main(int argc, char** argv) {
  return inspect::main_of({argv + (argc > 0 ? 1 : 0), argv + argc});
}

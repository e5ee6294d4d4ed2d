// SPDX-License-Identifier: MIT
//
// generate --weight-bytes: the same text and logits, and what --stats says of it.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_generate.hpp"

using namespace dsv41::test;

namespace {

/// A third of the demo's file.
std::string third() {
  return std::to_string(std::filesystem::file_size(std::filesystem::path(DSV41_DEMO_DIR) / "model.safetensors") / 3);
}

struct Told {
  std::string out, logits;
  nlohmann::json stats;
};

Told tell(std::vector<std::string> arguments, const TempFolder& folder, bool logits) {
  const std::string stats = (folder / "stats.json").string(), file = (folder / "logits.safetensors").string();
  arguments.insert(arguments.end(), {"--stats", stats});
  if (logits) arguments.insert(arguments.end(), {"--logits-out", file});
  const Run run = generate(arguments);
  INFO(run.err);
  REQUIRE(run.status == 0);
  return {run.out, logits ? read_file(file) : std::string(), nlohmann::json::parse(read_file(stats))};
}

}  // namespace

TEST_CASE("--weight-bytes changes no result, and --stats tells what it took", "[generate]") {
  const TempFolder folder;
  const std::string batch = folder.write("batch", "{\"prompt\": \"And God\"}\n{\"prompt\": \"In the\"}\n").string();
  const std::string text = folder.write("text", "In the beginning God created the heaven and the earth.").string();
  struct Row {
    std::vector<std::string> arguments;
    bool logits;
  };
  const Row rows[] = {
      {{"--prompt", "In the beginning", "--max-tokens", "24"}, true},
      {{"--prompt", "In the", "--max-tokens", "16", "--speculative", "block", "--schedule", "fixed:3"}, false},
      {{"--batch", batch, "--max-tokens", "12"}, false},
      {{"--perplexity", text}, false}};
  for (const Row& row : rows) {
    INFO(row.arguments[0]);
    const Told without = tell(row.arguments, folder, row.logits);
    CHECK_FALSE(without.stats.contains("weights"));
    std::vector<std::string> arguments = row.arguments;
    const std::int64_t bytes =
        std::stoll(third()) + (row.arguments.size() > 6 ? 2000000 : 0);  // the drafter's weights too
    arguments.insert(arguments.end(), {"--weight-bytes", std::to_string(bytes)});
    const Told within = tell(arguments, folder, row.logits);
    CHECK(within.out == without.out);
    CHECK(within.logits == without.logits);
    const nlohmann::json& w = within.stats["weights"];
    CHECK(w["limit_bytes"] == bytes);
    CHECK(w["dense_bytes"].get<std::int64_t>() + w["slots"].get<std::int64_t>() * w["slot_bytes"].get<std::int64_t>() <=
          bytes);
    CHECK(w["slots"] < w["experts"]);
    CHECK(w["misses"] > w["slots"]);
    CHECK(w["bytes_read"] > 0);
    CHECK(w["stall_s"].is_number_float());
    for (const char* key : {"hits", "ahead_bytes", "ahead_used_bytes", "reads_ahead", "direct"})
      CHECK(w[key].is_number_integer());
  }
}

TEST_CASE("--weight-bytes that cannot be is refused", "[generate]") {
  struct Row {
    std::vector<std::string> arguments;
    std::string says;
  };
  const Row rows[] = {
      {{"--weight-bytes", "0"}, "--weight-bytes: expected an integer from 1"},
      {{"--weight-bytes", "16GiB"}, "'16GiB'"},
      {{"--weight-bytes", "5000000", "--backend", "ref"}, "--weight-bytes: works only with --backend cpu, got 'ref'"},
      {{"--weight-bytes", "1000"}, "weight_bytes is 1000, expected at least "}};
  for (const Row& row : rows) {
    const Run run = generate(row.arguments);
    INFO(run.err);
    CHECK(run.refused());
    CHECK(run.says(row.says));
  }
  CHECK(generate({"--help"}).out.find("--weight-bytes N ") != std::string::npos);
}

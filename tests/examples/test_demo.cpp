// SPDX-License-Identifier: MIT
//
// The demo checkpoint: the oracle's tokens and logits (tests/golden/demo.py), and the quality it was trained for. Both run generate.
#include <algorithm>
#include <string>
#include <vector>

#include "../support/golden.hpp"
#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

TEST_CASE("the demo writes the oracle's 64 greedy tokens on eight prompts, with its logits", "[demo]") {
  const auto expected = runtime::SafetensorsFile::open(golden("demo/expected.safetensors"));
  for (const char* prompt : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
    INFO("prompt " << prompt);
    const auto ids = values<std::int64_t>(expected, std::string("prompt.") + prompt);
    const auto tokens = values<std::int64_t>(expected, std::string("tokens.") + prompt);
    const auto logits = values<double>(expected, std::string("logits.") + prompt);  // of the last positions
    REQUIRE(tokens.size() == 64);
    const TempFolder folder;
    const std::string record = (folder / "logits.safetensors").string();
    const Run run =
        generate({"--model", DSV41_DEMO_DIR, "--tokens", joined(ids), "--max-tokens", "64", "--logits-out", record});
    REQUIRE(run.status == 0);
    CHECK(run.out == joined(tokens) + "\n");
    const Recorded got(record);
    REQUIRE(got.logits.size() > logits.size());
    const std::vector<double> last(got.logits.end() - static_cast<std::ptrdiff_t>(logits.size()), got.logits.end());
    CHECK(norm_error(last, logits) < kExactTolerance);
  }
}

TEST_CASE("the demo's held-out text costs at most 2.0 bits per byte", "[demo][long]") {
  const TempFolder folder;
  const std::string stats = (folder / "stats.json").string();
  const Run run = generate(
      {"--model", DSV41_DEMO_DIR, "--perplexity", std::string(DSV41_DEMO_DIR) + "/heldout.txt", "--stats", stats});
  REQUIRE(run.status == 0);
  CHECK(nlohmann::json::parse(read_file(stats))["bits_per_byte"].get<double>() <= 2.0);
}

// SPDX-License-Identifier: MIT
//
// The demo checkpoint: the oracle's tokens and logits (tests/golden/demo.py), and the quality it was trained for. Both run generate.
#include <algorithm>
#include <string>
#include <vector>

#include "../support/golden.hpp"
#include "../support/share.hpp"
#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

TEST_CASE("the demo writes the oracle's 64 greedy tokens on eight prompts, with its logits", "[demo]") {
  const auto expected = runtime::SafetensorsFile::open(golden("demo/expected.safetensors"));
  for (int i = 0; i<8; i += kShare> 1 ? 4 : 1) {
    const std::string prompt = std::to_string(i);
    INFO("prompt " << prompt);
    const auto ids = values<std::int64_t>(expected, "prompt." + prompt);
    const auto tokens = values<std::int64_t>(expected, "tokens." + prompt);
    const auto logits = values<double>(expected, "logits." + prompt);  // of the last positions
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

TEST_CASE("the first quarter of the demo's held-out text, over several windows, costs at most 2.0 bits per byte",
          "[demo]") {
  const TempFolder folder;
  const std::string all = read_file(std::string(DSV41_DEMO_DIR) + "/heldout.txt");
  const std::string text = folder.write("text", all.substr(0, all.size() / 4 / kShare)).string();
  const std::string stats = (folder / "stats.json").string();
  const Run run = generate({"--model", DSV41_DEMO_DIR, "--perplexity", text, "--stats", stats});
  REQUIRE(run.status == 0);
  CHECK(nlohmann::json::parse(read_file(stats))["bits_per_byte"].get<double>() <= 2.0);
}

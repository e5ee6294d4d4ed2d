// SPDX-License-Identifier: MIT
//
// generate from outside, with drafts and with many requests: texts are those of plain runs, figures add up, files are what they say.
#include <numeric>

#include "../support/golden.hpp"
#include "../support/share.hpp"
#include "generate_drafts.hpp"
#include "plot/draft_trace.hpp"

using namespace dsv41;
using namespace dsv41::test;
using nlohmann::json;

TEST_CASE("B64: at temperature 0 tokens and every row of logits are those of plain decoding", "[generate][drafts]") {
  const TempFolder folder;
  const std::string costs = costs_file(folder, 0.5);
  const auto recorded = [&](const Words& arguments) {
    const std::string file = (folder / "logits").string();
    out(arguments + Words{"--logits-out", file});
    return read_file(file);
  };
  const struct {
    Words prompt;
    Words drafting;
  } cases[] = {
      {{"--prompt", "In the beginning"}, {"--speculative", "greedy", "--schedule", "fixed:5"}},
      {{"--prompt", "And Jesus said"}, {"--speculative", "block", "--costs", costs}},
      {{"--prompt", "The LORD is my shepherd"}, {"--speculative", "rejection", "--schedule", "threshold:0.4"}},
      {{"--prompt", "And he", "--numeric", "deployed"},
       {"--speculative", "greedy", "--schedule", "alg1", "--costs", costs}},
      {{"--prompt", "In the beginning"}, {"--speculative", "block", "--schedule", "fixed:9", "--draft", "9"}},
      {{"--model", kRandom, "--tokens", "5,6,7"}, {"--speculative", "greedy", "--schedule", "fixed:5"}},
      {{"--model", kRandom, "--tokens", "5,6,7"}, {"--speculative", "block", "--schedule", "fixed:4", "--chunk", "3"}},
  };
  for (const auto& c : cases) {
    INFO(c.prompt[1] << ", " << c.drafting[1] << " " << c.drafting[3]);
    const Words plain = c.prompt + Words{"--max-tokens", kShare > 1 ? "6" : "14"};
    CHECK(recorded(plain + c.drafting) == recorded(plain));
  }
}

TEST_CASE("B67: exactly as many tokens as asked for, whatever is accepted", "[generate][drafts]") {
  const std::string text = out({"--tokens", "5,6,7", "--max-tokens", "14"});
  for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 7, 10, 14}) {
    if (kShare > 1 && n > 4) continue;  // a round gives up to six
    INFO(n);
    const Told run = told(
        {"--tokens", "5,6,7", "--max-tokens", std::to_string(n), "--speculative", "greedy", "--schedule", "fixed:5"});
    CHECK(run.stats["generated_tokens"] == n);
    CHECK(run.stats["position"] == 3 + std::max<std::int64_t>(n - 1, 0));
    CHECK(run.stats["stop"] == (n == 0 ? "prompt" : "length"));
    CHECK(text.rfind(run.out.substr(0, run.out.size() - (n > 0 ? 1 : 0)), 0) == 0);
    CHECK(std::count(run.out.begin(), run.out.end(), ',') == std::max<std::int64_t>(n - 1, 0));
  }
}

TEST_CASE("B68: seeds with drafts, alone and beside others", "[generate][drafts]") {
  const TempFolder folder;
  const Words drafting{"--speculative", "block", "--schedule", "fixed:3", "--temperature", "0.9", "--max-tokens", "16"};
  const auto alone = [&](const char* seed) { return out(drafting + Words{"--prompt", "And it", "--seed", seed}); };
  const std::string four = alone("4"), five = alone("5");
  CHECK(four == alone("4"));
  CHECK(four != five);
  const std::string file = folder
                               .write("batch", R"({"prompt": "And it", "seed": 4}
{"prompt": "The sons of", "seed": 4, "max_tokens": 5}
{"prompt": "And it", "seed": 5}
)")
                               .string();
  const auto said = answers(out(drafting + Words{"--batch", file}));
  CHECK(said.at("0").pieces == four);
  CHECK(said.at("2").pieces == five);
}

TEST_CASE("each request of a batch says what a run of its own says", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string file = folder
                               .write("batch", R"({"prompt": "In the beginning"}
{"tokens": [5, 6, 7], "id": "ids", "max_tokens": 5}
{"prompt": "Who made the earth?", "chat": true, "max_tokens": 9}
{"prompt": "And the LORD said", "temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
{"id": -7, "prompt": "And", "chat": false, "max_tokens": 1}
)")
                               .string();
  const Words twelve{"--max-tokens", "12"};
  const struct {
    const char* id;
    Words arguments;
  } lines[] = {
      {"0", {"--prompt", "In the beginning"}},
      {"\"ids\"", {"--tokens", "5,6,7", "--max-tokens", "5"}},
      {"2", {"--prompt", "Who made the earth?", "--chat", "--max-tokens", "9"}},
      {"3",
       {"--prompt", "And the LORD said", "--temperature", "0.8", "--seed", "3", "--top-k", "20", "--top-p", "0.9",
        "--min-p", "0.01"}},
      {"-7", {"--prompt", "And", "--max-tokens", "1"}},
  };
  for (const Words& drafting : {Words{}, Words{"--speculative", "block", "--schedule", "fixed:3"}}) {
    std::map<std::string, std::string> alone;
    for (const auto& line : lines) {
      const bool limited = std::count(line.arguments.begin(), line.arguments.end(), "--max-tokens") > 0;
      alone[line.id] = out(line.arguments + drafting + (limited ? Words{} : twelve));
    }
    for (const char* parallel : {"1", "3"}) {
      if (kShare > 1 && parallel == std::string("1")) continue;
      const auto said =
          answers(out(twelve + drafting + Words{"--batch", file, "--parallel", parallel}), std::stoul(parallel));
      REQUIRE(said.size() == std::size(lines));
      for (const auto& line : lines) {
        INFO(line.id << ", parallel " << parallel << (drafting.empty() ? "" : ", with drafts"));
        const Answer& answer = said.at(line.id);
        CHECK((answer.ids.empty() ? answer.pieces : joined(answer.ids) + "\n") == alone[line.id]);
        CHECK(answer.end["finish"] == "length");
      }
    }
  }
}

TEST_CASE("a batch tells why each request ended, and what it was in all", "[generate][batch]") {
  ModelCopy model("02-window-only");
  model.edit_json("config.json", [](auto& c) { c["text_config"]["max_position_embeddings"] = 9; });
  const TempFolder folder;
  const std::string file = folder
                               .write("batch", R"({"tokens": [5, 6, 7, 8, 9]}
{"tokens": [5, 6], "max_tokens": 3, "id": "b"})")
                               .string();
  const Told run = told({"--model", model.path(), "--batch", file, "--max-tokens", "8"});
  const auto said = answers(run.out);
  CHECK(said.at("0").end["finish"] == "context");
  CHECK(said.at("0").end["count"] == 4);
  CHECK(said.at("\"b\"").end["finish"] == "length");
  CHECK(said.at("\"b\"").end["count"] == 3);
  CHECK(run.stats["requests"] == 2);
  CHECK(run.stats["failed"] == 0);
  CHECK(run.stats["prompt_tokens"] == 7);
  CHECK(run.stats["generated_tokens"] == 7);
  CHECK(run.stats["speculative"] == "off");
  CHECK(run.stats["tokens_per_s"].get<double>() * run.stats["batch_s"].get<double>() == Approx(7).epsilon(1e-2));
  CHECK(run.stats["decode_tokens_per_s"] > 0);
}

TEST_CASE("a batch whose logits are of no use says so for each request, and fails", "[generate][batch]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_weights([](auto& t) {
    RawTensor& norm = named(t, "norm.weight");
    norm.bytes.assign(norm.bytes.size(), '\x7f');  // finite, and sums overflow
  });
  const TempFolder folder;
  const std::string file = folder.write("batch", "{\"tokens\": [5, 6, 7]}\n{\"prompt\": \"abc\"}\n").string();
  for (const Words& drafting : {Words{}, Words{"--speculative", "greedy", "--schedule", "fixed:3"}}) {
    const Run run = generate(Words{"--model", model.path(), "--batch", file} + drafting);
    CHECK(run.refused());
    CHECK(run.says("--batch: 2 of 2 requests failed"));
    for (const auto& [id, answer] : answers(run.out)) {
      CHECK(answer.end["finish"] == "failed");
      CHECK(answer.end["error"].get<std::string>().find("320 of 320 are NaN") != std::string::npos);
    }
  }
}

TEST_CASE("figures and trace of drafting add up", "[generate][drafts]") {
  const TempFolder folder;
  const std::string costs = costs_file(folder, 0.5), trace = (folder / "trace").string();
  for (const char* schedule : {"fixed:4", "auto", "alg1", "threshold:0.5"}) {
    INFO(schedule);
    const bool weighs = schedule == std::string("auto") || schedule == std::string("alg1");
    const Words start{"--prompt",      "In the beginning",
                      "--max-tokens",  "25",
                      "--speculative", "rejection",
                      "--temperature", "0.7",
                      "--seed",        "1",
                      "--trace",       trace,
                      "--schedule",    schedule};
    const json s = told(start + (weighs ? Words{"--costs", costs} : Words{})).stats;
    const auto number = [&](const char* key) { return s[key].get<std::int64_t>(); };
    const auto sum = [&](const char* key) {
      const auto values = s[key].get<std::vector<std::int64_t>>();
      CHECK(values.size() == 5);
      return std::accumulate(values.begin(), values.end(), std::int64_t{0});
    };
    CHECK(s["speculative"] == "rejection");
    CHECK(s["schedule"] == schedule);
    CHECK(s["draft"] == 5);
    CHECK(number("rounds") > 0);
    CHECK(number("rounds") == number("target_forwards"));
    CHECK(number("drafted") >= number("verified"));
    CHECK(number("accepted") > 0);
    CHECK(sum("verified_by_position") == number("verified"));
    CHECK(sum("accepted_by_position") == number("accepted"));
    CHECK(s["emitted_per_round"].get<double>() * static_cast<double>(number("rounds")) ==
          Approx(static_cast<double>(number("generated_tokens") - 1)).epsilon(1e-5));
    CHECK(s["predicted_gain"].is_number() == weighs);
    CHECK_FALSE(s.contains("compare"));

    const auto read = plot::DraftTrace::parse(read_file(trace), "trace");
    CHECK(read.draft() == 5);
    CHECK(std::ssize(read.steps()) == number("rounds"));
    std::int64_t drafted = 0, verified = 0, accepted = 0, emitted = 1;
    for (const auto& step : read.steps()) {
      for (const auto& round : step.rounds) {
        drafted += round.drafted;
        verified += round.verified;
        accepted += round.accepted;
        emitted += round.emitted;
      }
    }
    CHECK(drafted == number("drafted"));
    CHECK(verified == number("verified"));
    CHECK(accepted == number("accepted"));
    CHECK(emitted == number("generated_tokens"));
  }
  CHECK_FALSE(told({"--tokens", "5", "--max-tokens", "2"}).stats.contains("rounds"));
}

TEST_CASE("step costs are measured once, and what the file says decides", "[generate][drafts]") {
  const TempFolder folder;
  const std::string made = (folder / "made").string();
  const Words start{"--model",       kRandom,  "--tokens",   "5,6,7", "--max-tokens", "8",
                    "--speculative", "greedy", "--schedule", "alg1",  "--costs"};
  const std::string text = out(start + Words{made});
  const std::string bytes = read_file(made);
  const CostTable table = runtime::load_cost_table(made);
  CHECK(table.step_ms(1, 6) >= table.verify_ms(1));
  CHECK(out(start + Words{made}) == text);
  CHECK(read_file(made) == bytes);

  const Words demo{"--prompt", "In the beginning", "--max-tokens", "12",     "--speculative",
                   "greedy",   "--schedule",       "alg1",         "--costs"};
  const json free = told(demo + Words{costs_file(folder, 0)}).stats;
  CHECK(free["verified"] == free["drafted"]);
  CHECK(told(demo + Words{costs_file(folder, 1000)}).stats["verified"] == 0);
}

TEST_CASE("--compare decodes again without drafts", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string file = folder.write("batch", "{\"prompt\": \"In the\"}\n{\"prompt\": \"And\"}\n").string();
  const Words drafting{"--speculative", "block", "--schedule", "fixed:3", "--max-tokens", "10"};
  for (const Words& what : {Words{"--prompt", "In the beginning"}, Words{"--batch", file},
                            Words{"--prompt", "In the beginning", "--temperature", "1"}}) {
    const Told run = told(what + drafting + Words{"--compare"});
    CHECK(run.out == out(what + drafting));
    const double plain = run.stats["compare"]["plain_s"], speculative = run.stats["compare"]["speculative_s"];
    CHECK(plain > 0);
    CHECK(speculative > 0);
    CHECK(run.stats["compare"]["speedup"] > 0);
    if (what == Words{"--prompt", "In the beginning"})  // as many tokens in both
      CHECK(run.stats["compare"]["speedup"].get<double>() == Approx(plain / speculative).epsilon(1e-3));
  }
}

TEST_CASE("decode rates leave steps that ran prompts out", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string book = read_file(std::string(DSV41_DEMO_DIR) + "/heldout.txt").substr(0, 300);
  std::string lines;
  for (int i = 0; i < 3; ++i) lines += json{{"prompt", book}, {"max_tokens", 3 + i}}.dump() + "\n";
  const std::string file = folder.write("batch", lines).string();
  for (const char* prefill : {"full", "exact"}) {
    const json s = told({"--batch", file, "--parallel", "2", "--prefill", prefill, "--speculative", "greedy",
                         "--schedule", "fixed:1", "--compare"})
                       .stats;
    // Some 80 rows a prompt; 2 to 4 tokens a request, of which few come alone.
    CHECK(s["compare"]["speculative_s"].get<double>() < s["batch_s"].get<double>() / 2);
    CHECK(s["compare"]["plain_s"].get<double>() < s["batch_s"].get<double>() / 2);
  }
}

TEST_CASE("drafts in conversations, saved sessions and prompts that skip rows", "[generate][drafts][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string(), costs = costs_file(folder, 0.5);
  const Words drafting{"--speculative", "greedy", "--costs", costs};
  const std::string lines = "Who made the earth?\nAnd the sea?\n";
  const Words chat{"--chat", "--max-tokens", "6"};
  CHECK(out(chat + drafting + Words{"--compare"}, lines) == out(chat, lines));

  const Words prompt{"--prompt", "In the beginning"};
  const std::string whole = out(prompt + Words{"--max-tokens", "24"});
  const std::string first = out(prompt + drafting + Words{"--max-tokens", "9", "--save", file});
  CHECK(first + out(drafting + Words{"--restore", file, "--max-tokens", "15"}) == whole);
  CHECK(first + out({"--restore", file, "--max-tokens", "15"}) == whole);
  const Words back{"--restore", file, "--rewind", "4", "--max-tokens", "6"};
  CHECK(out(back + drafting) == out(back));

  std::string book = read_file(std::string(DSV41_DEMO_DIR) + "/heldout.txt").substr(0, 300);
  const Words skipping{"--prompt", book, "--prefill", "exact", "--max-tokens", "12"};
  CHECK(out(skipping + drafting) == out(skipping));
  const std::string batch = folder.write("batch", json{{"prompt", book}}.dump() + "\n{\"prompt\": \"And\"}\n").string();
  CHECK(answers(out(drafting + Words{"--batch", batch, "--prefill", "exact", "--max-tokens", "12"})).at("0").pieces ==
        out(skipping));
}

TEST_CASE("help names the options of drafts and batches", "[generate][drafts][batch]") {
  const std::string help = out({"--help"});
  for (const char* option :
       {"--speculative", "--schedule", "--draft", "--costs", "--compare", "--trace", "--batch", "--parallel"})
    CHECK(help.find("\n  " + std::string(option) + " ") != std::string::npos);
}

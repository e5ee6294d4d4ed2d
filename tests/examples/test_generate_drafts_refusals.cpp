// SPDX-License-Identifier: MIT
//
// generate with drafts and batches where it must not go on: Ctrl-C at any time, options and lines of a batch that are wrong.
#include <pty.h>

#include "generate_drafts.hpp"
#include "plot/draft_trace.hpp"

using namespace dsv41;
using namespace dsv41::test;
using nlohmann::json;

TEST_CASE("Ctrl-C ends a batch, and every request is told of", "[generate][batch]") {
  ModelCopy model("02-window-only");
  never_stop(model);
  const TempFolder folder;
  const std::string stats = (folder / "stats").string(), err = folder.write("err", "").string(),
                    file = folder.write("batch", "{\"tokens\": [5]}\n{\"tokens\": [6]}\n{\"tokens\": [7]}\n").string();
  // The pipe holds a page, far fewer lines than these: the run cannot be over when the signal comes.
  const PipedRun run(
      {"--model", model.path(), "--batch", file, "--parallel", "2", "--max-tokens", "4000", "--stats", stats}, false,
      err);
  std::string text = run.read_some();
  run.interrupt();
  text += whole(run.read());
  CHECK(run.wait() == 130);
  const auto said = answers(text, 2);
  REQUIRE(said.size() == 3);
  std::size_t made = 0;
  for (const auto& [id, answer] : said) {
    CHECK(answer.end["finish"] == "interrupted");
    made += answer.ids.size();
  }
  CHECK(said.at("2").ids.empty());
  CHECK(read_file(err) == "generate: interrupted; " + std::to_string(made) + " tokens were generated\n");
  CHECK(json::parse(read_file(stats))["generated_tokens"] == made);
}

TEST_CASE("Ctrl-C while step costs are measured ends a run as at any other time", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string stats = (folder / "stats").string(), trace = (folder / "trace").string(),
                    costs = (folder / "costs").string();
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"tokens\": [5, 6, 7]}\n";  // as many rows as a step has: seconds to measure
  const std::string file = folder.write("batch", lines).string();
  const Words drafting{"--model", kRandom, "--speculative", "greedy", "--costs", costs,
                       "--stats", stats,   "--trace",       trace,    "--chunk", "4096"};
  for (const Words& what : {Words{"--batch", file, "--parallel", "40"}, Words{"--tokens", "5,6,7", "--draft", "64"}}) {
    int master = -1, slave = -1;
    if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) {
      WARN("not run: this system has no pseudo-terminals (/dev/pts), as a bare chroot has none");
      return;
    }
    const PipedRun run(drafting + what, false, ::ttyname(slave));
    ::close(slave);
    std::string err;
    const auto more = [&] {
      char buffer[4096];
      const ssize_t n = ::read(master, buffer, sizeof buffer);
      if (n > 0) err.append(buffer, static_cast<std::size_t>(n));
      return n > 0;
    };
    while (err.find("measuring step costs") == err.npos && more()) continue;
    run.interrupt();
    const std::string text = whole(run.read());
    CHECK(run.wait() == 130);
    while (more()) continue;
    ::close(master);
    INFO(err);
    CHECK(err.find("generate: interrupted; 0 tokens were generated") != err.npos);
    CHECK_FALSE(std::filesystem::exists(costs));
    const json said = json::parse(read_file(stats));
    CHECK(said["generated_tokens"] == 0);
    CHECK(said["rounds"] == 0);
    CHECK(plot::DraftTrace::parse(read_file(trace), "trace").steps().empty());
    if (what[0] == "--batch") {
      const auto ends = answers(text);
      CHECK(ends.size() == 40);
      for (const auto& [id, answer] : ends) CHECK(answer.end["finish"] == "interrupted");
    } else {
      CHECK(said["stop"] == "interrupted");
    }
  }
}

TEST_CASE("Ctrl-C in the plain half of --compare leaves the text whole", "[generate][drafts][batch]") {
  ModelCopy model("01-all-mechanisms");
  never_stop(model);
  const TempFolder folder;
  const std::string stats = (folder / "stats").string(),
                    file = folder.write("batch", "{\"tokens\": [5]}\n{\"tokens\": [6]}\n").string();
  constexpr std::int64_t kTokens = 150;
  const Words start{"--model",       model.path(), "--max-tokens", std::to_string(kTokens),
                    "--speculative", "greedy",     "--stats",      stats,
                    "--schedule",    "fixed:1",    "--compare"};
  // What tells that the first half is over, after which some hundred steps come.
  const auto run = [&](const Words& what, const char* mark, std::int64_t marks) {
    const std::string err = folder.write("err", "").string();
    const PipedRun piped(start + what, false, err);
    std::string text;
    const auto seen = [&] {
      std::int64_t count = 0;
      for (std::size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) ++count;
      return count;
    };
    while (seen() < marks) {
      const std::string piece = piped.read_some();
      REQUIRE_FALSE(piece.empty());
      text += piece;
    }
    piped.interrupt();
    text += whole(piped.read());
    CHECK(piped.wait() == 130);
    CHECK(read_file(err).rfind("generate: interrupted; ", 0) == 0);
    return text;
  };
  const std::string ids = run({"--tokens", "5"}, ",", kTokens - 1);
  CHECK(std::count(ids.begin(), ids.end(), ',') == kTokens - 1);
  const json alone = json::parse(read_file(stats));
  CHECK(alone["stop"] == "length");
  CHECK(alone["generated_tokens"] == kTokens);
  REQUIRE(alone.contains("compare"));
  CHECK(alone["compare"].is_null());
  for (const auto& [id, answer] : answers(run({"--batch", file}, "finish", 2))) CHECK(answer.end["finish"] == "length");
  const json both = json::parse(read_file(stats));
  CHECK(both["generated_tokens"] == 2 * kTokens);
  REQUIRE(both.contains("compare"));
  CHECK(both["compare"].is_null());
}

TEST_CASE("step costs are measured only where a draft may come of it", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string costs = (folder / "costs").string();
  const auto measures = [&](const Words& arguments, int status) {
    std::filesystem::remove(costs);
    const Run run = generate(Words{"--speculative", "greedy", "--costs", costs} + arguments);
    INFO(run.err);
    CHECK(run.status == status);
    return std::filesystem::exists(costs);
  };
  const Words model{"--model", kRandom};
  const std::string file = folder.write("batch", "{\"tokens\": [5], \"max_tokens\": 2}\n{\"tokens\": [6]}\n").string();
  CHECK_FALSE(measures(model + Words{"--tokens", "5,6,7", "--max-tokens", "2"}, 0));
  CHECK_FALSE(measures(model + Words{"--batch", file, "--max-tokens", "2"}, 0));
  CHECK(measures(model + Words{"--batch", file, "--max-tokens", "3"}, 0));
  CHECK(measures(model + Words{"--tokens", "5,6,7", "--max-tokens", "3"}, 0));
  // What is wrong with a run comes to light before.
  CHECK_FALSE(measures(model + Words{"--tokens", "5,6,7", "--rewind", "3"}, 2));
  CHECK_FALSE(measures(model + Words{"--restore", folder.write("session", "no session").string()}, 2));
  CHECK_FALSE(measures(model + Words{"--prompt", ""}, 2));

  ModelCopy small("01-all-mechanisms");
  small.edit_json("config.json", [](auto& c) { c["text_config"]["max_position_embeddings"] = 6; });
  const Words six{"--model", small.path(), "--tokens"};
  CHECK_FALSE(measures(six + Words{"5,6,7,8"}, 0));  // leaves two tokens
  const Run run = generate(six + Words{"5,6", "--speculative", "greedy"});
  CHECK(run.refused());
  CHECK(run.out.empty());
  CHECK(
      run.says("--schedule auto: the model has 6 positions, too few to measure steps of 5 drafts in; expected "
               "--schedule fixed:N or a smaller --draft"));
  const std::string plain = out(six + Words{"5,6"});
  CHECK(out(six + Words{"5,6", "--speculative", "greedy", "--draft", "4"}) == plain);
  CHECK(out(six + Words{"5,6", "--speculative", "greedy", "--schedule", "fixed:5"}) == plain);
}

TEST_CASE("options of drafts and batches are refused with their names", "[generate][drafts][batch]") {
  const TempFolder folder;
  const std::string stats = (folder / "stats").string(), there = folder.write("there", "").string();
  const Words drafts{"--speculative", "block"}, batch{"--batch", there};
  const struct {
    Words arguments;
    std::string says;
  } cases[] = {
      {{"--speculative", "on"}, "--speculative: expected off, greedy, rejection or block, got 'on'"},
      {{"--speculative", "greedy", "--temperature", "0.5"}, "--temperature: is 0.5, and"},
      {{"--speculative", "greedy", "--temperature", "1e-9"}, "--temperature: is 1e-09, and"},
      {drafts + Words{"--schedule", "delayed"},
       "--schedule: expected auto, alg1, fixed:N (N from 0 to 64) or threshold:C"},
      {drafts + Words{"--schedule", "off"}, "got 'off'"},
      {drafts + Words{"--schedule", "fixed"}, "got 'fixed'"},
      {drafts + Words{"--schedule", "fixed:-1"}, "got 'fixed:-1'"},
      {drafts + Words{"--schedule", "fixed:2x"}, "got 'fixed:2x'"},
      {drafts + Words{"--schedule", "fixed:65"}, "fixed:N (N from 0 to 64)"},
      {drafts + Words{"--schedule", "threshold:1.5"}, "got 'threshold:1.5'"},
      {drafts + Words{"--draft", "0"}, "--draft: expected an integer from 1 to 64, got '0'"},
      {drafts + Words{"--draft", "40", "--prefill", "exact"},
       "--draft 40 with --prefill exact: engine: draft is 40, expected 0 to 31"},
      {drafts + Words{"--draft", "65"}, "--draft: expected an integer from 1 to 64, got '65'"},
      {drafts + Words{"--schedule", "fixed:2", "--costs", there},
       "--costs: works only with --schedule auto or alg1, got 'fixed:2'"},
      {drafts + Words{"--costs", ""}, "--costs: expected a file, got nothing"},
      {drafts + Words{"--trace="}, "--trace: expected a file, got nothing"},
      {drafts + Words{"--perplexity", there}, "--perplexity and --speculative exclude each other"},
      {{"--schedule", "auto"}, "--schedule: works only with --speculative greedy, rejection or block"},
      {{"--speculative", "off", "--schedule", "alg1"}, "--schedule: works only with --speculative"},
      {{"--draft", "2"}, "--draft: works only with --speculative"},
      {{"--costs", there}, "--costs: works only with --speculative"},
      {{"--compare"}, "--compare: works only with --speculative"},
      {{"--trace", there}, "--trace: works only with --speculative"},
      {{"--parallel", "2"}, "--parallel: works only with --batch"},
      {batch + Words{"--parallel", "0"}, "--parallel: expected an integer from 1 to 4096, got '0'"},
      {{"--batch", ""}, "--batch: expected a file, got nothing"},
      {batch + Words{"--max-tokens", "0"}, "--max-tokens: a batch needs at least 1, got '0'"},
      {batch + Words{"--perplexity", there}, "--perplexity and --batch exclude each other"},
      {batch + Words{"--prompt", "x"}, "--batch and --prompt exclude each other"},
      {batch + Words{"--prompt-file", "x"}, "--batch and --prompt-file exclude each other"},
      {batch + Words{"--tokens", "1"}, "--batch and --tokens exclude each other"},
      {batch + Words{"--chat"}, "--batch and --chat exclude each other"},
      {batch + Words{"--bos"}, "--batch and --bos exclude each other"},
      {batch + Words{"--image-span", "0:1"}, "--batch and --image-span exclude each other"},
      {batch + Words{"--restore", "x"}, "--batch and --restore exclude each other"},
      {batch + Words{"--save", "x"}, "--batch and --save exclude each other"},
      {batch + Words{"--rewind", "1"}, "--batch and --rewind exclude each other"},
      {batch + Words{"--logits-out", "x"}, "--batch and --logits-out exclude each other"},
      {batch + Words{"--system", "x"}, "--system: works only with --chat"},
      {batch, "--batch: " + there + ": has no lines"},
      {{"--batch", there + "-absent"}, "--batch: " + there + "-absent: cannot be read: No such file"},
      {{"--batch", there, "--stats", there}, "--stats: " + there + " is read by this run"},
      {drafts + Words{"--costs", there, "--stats", there}, "--stats: " + there + " is read by this run"},
      {drafts + Words{"--costs", there}, "--costs: " + there + ": "},  // is no cost table
      {drafts + Words{"--costs", "/nowhere/x"}, "--costs: /nowhere/x: the folder /nowhere does not exist"},
      {drafts + Words{"--trace", "/nowhere/x"}, "--trace: /nowhere/x: the folder /nowhere does not exist"},
      {drafts + Words{"--trace", stats, "--stats", stats}, "--stats and --trace: both are " + stats},
      {drafts + Words{"--costs", stats, "--trace", stats}, "--trace and --costs: both are " + stats},
      {{"--model", golden("02-window-only"), "--tokens", "1", "--speculative", "greedy"},
       "--speculative greedy: the model has no drafter"},
  };
  for (const auto& c : cases) {
    const Run run = generate(c.arguments);
    INFO("status " << run.status << ", message: " << run.err << "must say: " << c.says);
    CHECK(run.refused());
    CHECK(run.out.empty());
    CHECK(run.says(c.says));
  }
  CHECK_FALSE(std::filesystem::exists(stats));
  CHECK(read_file(there).empty());
}

TEST_CASE("lines of a batch are refused with file, line and key before anything runs", "[generate][batch]") {
  const TempFolder folder;
  const std::string good = "{\"prompt\": \"In the beginning\"}\n";
  const struct {
    std::string line, says;
  } cases[] = {
      {"", "is no JSON from byte"},
      {"{\"prompt\": \"a\"", "is no JSON from byte"},
      {"{\"prompt\": \"a\"} x", "is no JSON from byte"},
      {"{\"prompt\": \"\xff\"}", "is no JSON from byte"},
      {std::string("{\"prompt\": \"a\"}\0, garbage", 25), "has a NUL byte behind 15 bytes, expected an object"},
      {"\xef\xbb\xbf{\"prompt\": \"a\"}", "begins with a byte order mark, expected an object"},
      {R"({"tokens": [1], "temperature": 1e999})", "holds a number too large for a double"},
      {R"({"tokens": [1e999]})", "holds a number too large for a double"},
      {R"({"prompt": "a", "note": -1e999})", "holds a number too large for a double"},
      {"[1]", "expected an object, got a list"},
      {"[[1]]", "expected an object, got a list"},
      {"[{\"prompt\": \"a\"}]", "expected an object, got a list"},
      {"\"text\"", "expected an object, got string"},
      {"{}", "expected either \"prompt\" or \"tokens\""},
      {R"({"prompt": "a", "tokens": [1]})", "expected either \"prompt\" or \"tokens\""},
      {R"({"prompt": "a", "prompt": "b"})", "prompt: given twice"},
      {R"({"prompt": "a", "messages": []})", "unknown key \"messages\""},
      {R"({"prompt": "a", "n": 1})", "unknown key \"n\""},
      {R"({"prompt": ["a"]})", "prompt: expected a string, got [\"a\"]"},
      {R"({"prompt": ""})", "prompt: the text is empty"},
      {R"({"tokens": []})", "tokens: expected a list of ids, got []"},
      {R"({"tokens": 5})", "tokens: expected a list of ids, got 5"},
      {R"({"tokens": [5, 2048]})", "tokens: expected an integer from 0 to 2047, got '2048'"},
      {R"({"tokens": [5, 1.5]})", "tokens: expected an integer from 0 to 2047, got '1.5'"},
      {R"({"tokens": [5, "6"]})", "tokens: expected an integer from 0 to 2047, got '\"6\"'"},
      {R"({"tokens": [[5]]})", "holds an object, or a list in a list"},
      {R"({"prompt": {"a": 1}})", "holds an object, or a list in a list"},
      {R"({"tokens": [1], "chat": true})", "chat: works only with \"prompt\""},
      {R"({"prompt": "a", "chat": 1})", "chat: expected true or false, got 1"},
      {R"({"prompt": "a", "id": 1.5})", "id: expected a string or an integer, got 1.5"},
      {R"({"prompt": "a", "id": 0})", "id: 0 is that of an earlier line"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens: a batch needs at least 1, got '0'"},
      {R"({"prompt": "a", "max_tokens": "5"})", "max_tokens: expected an integer from 0 to 2147483647, got '\"5\"'"},
      {R"({"prompt": "a", "temperature": -1})", "temperature: expected a finite number of at least 0, got '-1'"},
      {R"({"prompt": "a", "temperature": null})", "temperature: expected a finite number of at least 0, got 'null'"},
      {R"({"prompt": "a", "top_k": 2.5})", "top_k: expected an integer from 0"},
      {R"({"prompt": "a", "top_p": 0})", "top_p: expected a number above 0 and at most 1, got '0'"},
      {R"({"prompt": "a", "min_p": 1.5})", "min_p: expected a number from 0 to 1, got '1.5'"},
      {R"({"prompt": "a", "seed": -1})", "seed: expected an integer from 0"},
      {R"({"prompt": "a", "temperature": 0.5})", "temperature: is 0.5"},  // with --speculative greedy
      {"{\"tokens\": [" + joined(std::vector<int>(2048, 5)) + "]}",
       "has 2048 tokens, expected fewer than max_position_embeddings = 2048"},
  };
  for (const auto& c : cases) {
    const std::string file = folder.write("batch", good + c.line + "\n").string();
    const Run run = generate({"--batch", file, "--speculative", "greedy", "--schedule", "fixed:1"});
    INFO("status " << run.status << ", message: " << run.err << "must say: " << c.says);
    CHECK(run.refused());
    CHECK(run.out.empty());
    CHECK(run.says("--batch: " + file + ": line 2: " + c.says));
  }
  std::string deep = "{\"prompt\": ";
  deep.append(1 << 20, '[');
  const Run run = generate({"--batch", folder.write("batch", deep).string()});
  CHECK(run.refused());
  CHECK(run.says("line 1: holds an object, or a list in a list"));

  ModelCopy model("01-all-mechanisms");  // its tokenizer has no chat markers
  const std::string chat = folder.write("batch", R"({"prompt": "a", "chat": true})").string();
  const Run no_chat = generate({"--model", model.path(), "--batch", chat});
  CHECK(no_chat.refused());
  CHECK(no_chat.says("--batch: " + chat + ": line 1: chat: "));
}

TEST_CASE("a drafter without a confidence head works with fixed lengths only", "[generate][drafts]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_weights([](auto& tensors) {
    std::erase_if(tensors, [](const RawTensor& t) { return t.name.find("confidence") != std::string::npos; });
  });
  const Words start{"--model", model.path(), "--tokens", "5,6,7", "--max-tokens", "6"};
  CHECK(out(start + Words{"--speculative", "greedy", "--schedule", "fixed:3"}) == out(start));
  for (const char* schedule : {"auto", "alg1", "threshold:0.5"}) {
    const Run run = generate(start + Words{"--speculative", "greedy", "--schedule", schedule});
    CHECK(run.refused());
    CHECK(run.says("--schedule " + std::string(schedule) + ": the model's drafter has no confidence head"));
  }
}

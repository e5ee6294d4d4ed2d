// SPDX-License-Identifier: MIT
//
// generate from outside, the good paths: what it prints and writes, against the golden values and against itself.
#include <pty.h>
#include <sys/stat.h>

#include <cmath>

#include "../support/golden.hpp"
#include "dsv41/numerics/rng.hpp"
#include "dsv41/text/tokenizer.hpp"
#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

const std::string kModel = golden("01-all-mechanisms");

/// Relative error of the first b.size() elements.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return norm_error({a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()))},
                    {b.begin(), b.end()});
}

nlohmann::json stats_of(const std::vector<std::string>& arguments) {
  const TempFolder folder;
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--stats", (folder / "stats.json").string()});
  const Run run = generate(all);
  INFO(run.err);
  REQUIRE(run.status == 0);
  return nlohmann::json::parse(read_file(folder / "stats.json"));
}

text::Tokenizer tokenizer(const std::string& model) {
  return text::Tokenizer::from_file(model + "/tokenizer.json");
}

/// A seed with which a uniform draw from `vocab` ids gives `id` at this position, and not before.
std::uint64_t seed_for(std::int64_t id, std::int64_t vocab, std::int64_t first, std::int64_t position) {
  auto drawn = [&](std::uint64_t seed, std::int64_t at) {
    const auto block = numerics::random_block(seed, at, numerics::Purpose::sample);
    return static_cast<std::int64_t>(numerics::uniform_below_one(block) * static_cast<double>(vocab));
  };
  for (std::uint64_t seed = 0;; ++seed) {
    bool early = false;
    for (std::int64_t at = first; at < position; ++at) early = early || drawn(seed, at) == id;
    if (!early && drawn(seed, position) == id) return seed;
  }
}

}  // namespace

TEST_CASE("logits of a golden's tokens are the expected ones", "[generate]") {
  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  for (const char* name : {"01-all-mechanisms", "02-window-only", "11-image-span"}) {
    const Recorded expected(golden(name) + "/expected.safetensors");
    std::vector<std::string> arguments{"--model",      golden(name), "--tokens",     joined(expected.tokens),
                                       "--max-tokens", "0",          "--logits-out", file};
    auto tensors = read_raw(golden(name) + "/expected.safetensors");
    for (const RawTensor& t : tensors) {
      if (t.name != "image") continue;
      const auto first = t.bytes.find('\1'), count = t.bytes.rfind('\1') - first + 1;
      arguments.push_back("--image-span=" + std::to_string(first) + ":" + std::to_string(count));
    }
    const Run run = generate(arguments);
    INFO(name << ": " << run.err);
    REQUIRE(run.status == 0);
    CHECK(run.out.empty());
    const Recorded got(file);
    CHECK(got.tokens == expected.tokens);
    REQUIRE(got.logits.size() == expected.logits.size());
    CHECK(distance(got.logits, expected.logits) < kExactTolerance);
  }
}

TEST_CASE("an image span changes what is computed", "[generate]") {
  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  const Recorded expected(golden("11-image-span") + "/expected.safetensors");
  REQUIRE(generate({"--model", golden("11-image-span"), "--tokens", joined(expected.tokens), "--max-tokens", "0",
                    "--logits-out", file})
              .status == 0);
  CHECK(distance(Recorded(file).logits, expected.logits) > 1e-2);
}

TEST_CASE("ids in, greedy ids out, and every position recorded", "[generate]") {
  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  const Recorded expected(kModel + "/expected.safetensors");
  const Run run =
      generate({"--model", kModel, "--tokens", joined(expected.tokens), "--max-tokens", "6", "--logits-out", file});
  REQUIRE(run.status == 0);
  CHECK(run.err.empty());
  const Recorded got(file);
  const std::size_t prompt = expected.tokens.size();
  REQUIRE(got.tokens.size() == prompt + 6);
  CHECK(distance(got.logits, expected.logits) < kExactTolerance);
  for (std::size_t at = prompt; at < got.tokens.size(); ++at) CHECK(got.tokens[at] == got.argmax(at - 1));
  CHECK(run.out == joined(got.tokens, prompt) + "\n");
  CHECK(generate({"--model=" + kModel, "--tokens=" + joined(expected.tokens), "--max-tokens=6"}).out == run.out);
}

TEST_CASE("B67: exactly as many tokens as asked for", "[generate]") {
  for (std::int64_t n = 0; n <= 12; ++n) {
    const auto stats = stats_of({"--model", kModel, "--tokens", "5,6,7", "--max-tokens", std::to_string(n)});
    CHECK(stats["prompt_tokens"] == 3);
    CHECK(stats["generated_tokens"] == n);
    CHECK(stats["position"] == 3 + std::max<std::int64_t>(n - 1, 0));
    CHECK(stats["stop"] == (n == 0 ? "prompt" : "length"));
  }
}

TEST_CASE("text out is the decoded ids, never a part of a character", "[generate]") {
  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  const std::string prompt = "hello w\xc3\xb6rld \xf0\x9f\x98\x8a";
  for (const char* seed : {"1", "2"}) {
    const Run run = generate({"--model", kModel, "--prompt", prompt, "--bos", "--max-tokens", "40", "--temperature",
                              "2", "--seed", seed, "--logits-out", file});
    INFO(run.err);
    REQUIRE(run.status == 0);
    const Recorded got(file);
    std::vector<std::int32_t> ids(got.tokens.begin(), got.tokens.end());
    const text::Tokenizer t = tokenizer(kModel);
    std::vector<std::int32_t> fed = t.encode(prompt);
    fed.insert(fed.begin(), 0);
    REQUIRE(ids.size() > fed.size());
    CHECK(std::equal(fed.begin(), fed.end(), ids.begin()));
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(fed.size()));
    CHECK(run.out == t.decode(ids, true));
  }
}

TEST_CASE("a prompt file is the same as a prompt", "[generate]") {
  const TempFolder folder;
  const std::string file = folder.write("prompt.txt", "in the beginning\n").string();
  const Run from_file = generate({"--model", kModel, "--prompt-file", file, "--max-tokens", "8"});
  CHECK(from_file.status == 0);
  CHECK(from_file.out == generate({"--model", kModel, "--prompt", "in the beginning\n", "--max-tokens", "8"}).out);
}

TEST_CASE("B68: seeds", "[generate]") {
  auto text = [&](const char* t, const char* seed) {
    return generate({"--model", kModel, "--tokens", "9,8", "--max-tokens", "20", "--temperature", t, "--seed", seed})
        .out;
  };
  CHECK(text("1", "42") == text("1", "42"));
  CHECK(text("1", "42") != text("1", "43"));
  CHECK(text("0", "42") == text("0", "43"));
}

TEST_CASE("the end-of-sequence token ends, counts, and has no text", "[generate]") {
  // At a huge temperature the draw is uniform, so the seed alone decides.
  const std::string seed = std::to_string(seed_for(1, 320, 3, 7));
  const std::vector<std::string> sampling{"--max-tokens", "50", "--temperature", "1e30", "--seed", seed};
  std::vector<std::string> arguments{"--model", kModel, "--tokens", "5,6,7"};
  arguments.insert(arguments.end(), sampling.begin(), sampling.end());
  const Run run = generate(arguments);
  CHECK(std::count(run.out.begin(), run.out.end(), ',') == 4);
  CHECK(run.out.substr(run.out.rfind(',')) == ",1\n");
  const auto stats = stats_of(arguments);
  CHECK(stats["generated_tokens"] == 5);
  CHECK(stats["stop"] == "eos");

  arguments[2] = "--prompt";
  arguments[3] = "xyz";
  REQUIRE(tokenizer(kModel).encode("xyz").size() == 3);
  const Run text = generate(arguments);
  CHECK(text.status == 0);
  CHECK(text.out.find("sentence") == std::string::npos);
}

TEST_CASE("ids that the tokenizer does not have are never chosen for text", "[generate]") {
  // A window-only model of 64 ids with the tokens 0 to 49 of the toy tokenizer.
  constexpr int kTokens = 50, kVocab = 64;
  ModelCopy model("02-window-only");
  model.folder().write("tokenizer.json", read_file(kModel + "/tokenizer.json"));
  model.edit_json("tokenizer.json", [](nlohmann::ordered_json& t) {
    const auto all = t["model"]["vocab"];
    t["model"]["vocab"] = nlohmann::ordered_json::object();
    for (const auto& [token, id] : all.items()) {
      if (id < kTokens) t["model"]["vocab"][token] = id;
    }
    t["model"]["merges"] = nlohmann::ordered_json::array();
  });
  const TempFolder folder;
  const std::string record = (folder / "l").string();
  const auto largest = [&](std::vector<std::string> arguments, const std::string& seed) {
    arguments.insert(arguments.end(), {"--model", model.path(), "--max-tokens", "100", "--temperature", "1e30",
                                       "--seed", seed, "--logits-out", record});
    const Run run = generate(arguments);
    INFO(run.err);
    REQUIRE(run.status == 0);
    const Recorded recorded(record);
    CHECK(recorded.vocab == kVocab);
    REQUIRE(recorded.tokens.size() > 1);
    return *std::max_element(recorded.tokens.begin(), recorded.tokens.end());
  };
  // Uniform draws, so the model does not matter; none of these seeds meets the end-of-sequence token early.
  for (const char* seed : {"1", "2", "3"}) {
    CHECK(largest({"--prompt", "!"}, seed) < kTokens);
    CHECK(largest({"--tokens", "3"}, seed) >= kTokens);
  }
}

TEST_CASE("a prompt file may be a pipe", "[generate]") {
  const TempFolder folder;
  const std::string pipe = (folder / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const PipedRun run({"--model", kModel, "--prompt-file", pipe, "--max-tokens", "4"});
  std::ofstream(pipe) << "in the beginning";
  const std::string text = whole(run.read());
  CHECK(run.wait() == 0);
  CHECK(text == generate({"--model", kModel, "--prompt", "in the beginning", "--max-tokens", "4"}).out);
}

TEST_CASE("the model's positions end a text", "[generate]") {
  ModelCopy model("02-window-only");
  model.edit_json("config.json", [](auto& c) { c["text_config"]["max_position_embeddings"] = 6; });
  const auto stats = stats_of({"--model", model.path(), "--tokens", "1,2,3,4", "--max-tokens", "10"});
  CHECK(stats["generated_tokens"] == 2);
  CHECK(stats["stop"] == "context");
  CHECK(stats_of({"--model", model.path(), "--tokens", "1,2,3,4,5,6"})["generated_tokens"] == 0);
}

TEST_CASE("prefill modes: the same tokens from exact, rows by the formulas, the class named, in any chunks",
          "[generate]") {
  const std::string model = golden("03-source-at-layer-0");  // window 8, 4 layers, the first is the last kv source
  std::vector<std::int64_t> ids(70);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * i % 61);
  const std::string tokens = joined(ids);
  const std::vector<std::string> base{"--model", model, "--tokens", tokens, "--max-tokens", "30"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string want = generate(base).out;
  for (const char* chunk : {"1", "7", "300"}) {
    for (const char* mode : {"full", "exact"}) CHECK(generate(with({"--prefill", mode, "--chunk", chunk})).out == want);
    using Rows = std::vector<std::int64_t>;
    const auto full = stats_of(with({"--chunk", chunk}));
    CHECK(full["prefill"] == "full");
    CHECK(full["rows_per_layer"] == Rows(4, 70));
    CHECK_FALSE(full.contains("prefill_note"));
    const auto exact = stats_of(with({"--prefill", "exact", "--chunk", chunk}));
    CHECK(exact["numeric_class"] == "exact");
    CHECK(exact["prefill"] == "exact");
    CHECK(exact["rows_per_layer"] == Rows{8 + 3 * 7, 8 + 2 * 7, 8 + 7, 8});
    const auto replay = stats_of(with({"--prefill", "replay", "--chunk", chunk, "--numeric", "deployed"}));
    CHECK(replay["numeric_class"] == "deployed, bounded replay");
    CHECK(replay["rows_per_layer"] == Rows(4, 8));
  }
  const auto off = stats_of({"--model", golden("02-window-only"), "--tokens", tokens, "--prefill", "replay"});
  CHECK(off["prefill"] == "full");
  CHECK(off["numeric_class"] == "exact");
  CHECK(off["prefill_note"] == "the config has no kv source, so there is no decoder half whose rows could be skipped");
  CHECK(off["rows_per_layer"] == std::vector<std::int64_t>(4, 70));
}

TEST_CASE("stats have their keys", "[generate]") {
  const auto s = stats_of({"--model", kModel, "--tokens", "1,2", "--max-tokens", "3", "--numeric", "deployed", "--seed",
                           "18446744073709551615", "--threads", "2"});
  CHECK(s["model"] == kModel);
  CHECK(s["backend"] == "cpu");
  CHECK(s["numeric_class"] == "deployed");
  CHECK(s["threads"] == 2);
  CHECK(s["seed"] == ~std::uint64_t{0});
  for (const char* key : {"load_s", "prefill_s", "decode_s", "time_to_first_token_s"}) CHECK(s[key].is_number_float());
  CHECK(s["time_to_first_token_s"] >= s["prefill_s"]);
  CHECK_FALSE(s.contains("bits_per_byte"));
}

TEST_CASE("stats are JSON whatever the model's path is", "[generate]") {
  const TempFolder folder;
  const std::string model = (folder / "a\xff\n\"b").string(), stats = (folder / "stats").string();
  std::filesystem::create_directory_symlink(kModel, model);
  REQUIRE(generate({"--model", model, "--tokens", "1", "--max-tokens", "1", "--stats", stats}).status == 0);
  CHECK(nlohmann::json::parse(read_file(stats))["model"] == folder.path().string() + "/a\xef\xbf\xbd\n\"b");
}

TEST_CASE("perplexity sums bits over windows", "[generate]") {
  const TempFolder folder;
  const std::string text = "In the beginning God created the heaven and the earth.",
                    file = folder.write("t", text).string();
  const std::string record = (folder / "logits.safetensors").string();
  REQUIRE(generate({"--model", kModel, "--prompt", text, "--max-tokens", "0", "--logits-out", record}).status == 0);
  const Recorded r(record);
  double bits = 0;
  for (std::size_t at = 1; at < r.tokens.size(); ++at) {
    double sum = 0;
    for (std::size_t v = 0; v < r.vocab; ++v) sum += std::exp(double{r.logits[(at - 1) * r.vocab + v]});
    bits += std::log2(sum) - double{r.logits[(at - 1) * r.vocab + std::size_t(r.tokens[at])]} / std::log(2.0);
  }
  const auto whole = stats_of({"--model", kModel, "--perplexity", file});
  const double size = static_cast<double>(text.size());
  CHECK(whole["bits_per_byte"].get<double>() == Approx(bits / size).epsilon(1e-6));
  CHECK(whole["predicted_tokens"] == r.tokens.size() - 1);
  CHECK(whole["bytes"] == text.size());
  const Run run = generate({"--model", kModel, "--perplexity", file});
  CHECK(run.out.rfind("bits_per_byte ", 0) == 0);
  CHECK(run.out.find("  tokens " + std::to_string(r.tokens.size()) + "  bytes " + std::to_string(size_t(size)) +
                     "\n") != std::string::npos);

  // Windows of ten positions: the first token of each is free; with a begin-of-sequence token none is.
  ModelCopy model("01-all-mechanisms");
  model.edit_json("config.json", [](auto& c) { c["text_config"]["max_position_embeddings"] = 10; });
  const std::size_t windows = (r.tokens.size() + 9) / 10;
  CHECK(stats_of({"--model", model.path(), "--perplexity", file})["predicted_tokens"] == r.tokens.size() - windows);
  CHECK(stats_of({"--model", model.path(), "--perplexity", file, "--bos"})["predicted_tokens"] == r.tokens.size());
}

TEST_CASE("output is streamed", "[generate]") {
  const std::vector<std::string> arguments{"--model", kModel, "--tokens", "5,6,7", "--max-tokens", "100"};
  const PipedRun run(arguments);
  const std::vector<std::string> parts = run.read();
  CHECK(run.wait() == 0);
  CHECK(parts.size() > 3);
  CHECK(whole(parts) == generate(arguments).out);
}

TEST_CASE("a terminal gets progress and a summary, unless quiet", "[generate]") {
  int probe = -1, other = -1;
  if (::openpty(&probe, &other, nullptr, nullptr, nullptr) != 0) {
    WARN("not run: this system has no pseudo-terminals (/dev/pts), as a bare chroot has none");
    return;
  }
  ::close(probe);
  ::close(other);
  auto terminal_text = [](std::vector<std::string> arguments) {
    int master = -1, slave = -1;
    REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    Streams streams;
    streams.open(1, "/dev/null");
    streams.take(2, slave);
    CHECK(wait_for(streams.start(arguments)) == 0);
    ::close(slave);
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(master, buffer, sizeof buffer)) > 0;) text.append(buffer, std::size_t(n));
    ::close(master);
    return text;
  };
  const std::string text = terminal_text({"--model", kModel, "--tokens", "5,6,7", "--max-tokens", "4"});
  CHECK(text.find("loading") != std::string::npos);
  CHECK(text.find("3 prompt tokens in ") != std::string::npos);
  CHECK(text.find("first token after ") != std::string::npos);
  CHECK(text.find("4 tokens in ") != std::string::npos);
  CHECK(terminal_text({"--model", kModel, "--tokens", "5,6,7", "--max-tokens", "4", "--quiet"}).empty());
}

TEST_CASE("closed standard streams", "[generate]") {
  const std::vector<std::string> arguments{"--model", kModel, "--tokens", "5,6,7", "--max-tokens", "4"};
  const std::string out = generate(arguments).out;
  CHECK(generate(arguments, "", {0}).out == out);
  CHECK(generate(arguments, "", {2}).out == out);
  CHECK(generate(arguments, "", {0, 2}).out == out);
  const Run closed = generate(arguments, "", {1});
  CHECK(closed.refused());
  CHECK(closed.says("standard output: closed"));
}

TEST_CASE("help names every option", "[generate]") {
  const Run run = generate({"--help"});
  CHECK(run.status == 0);
  for (const char* option :
       {"--model",      "--prompt",     "--prompt-file", "--chat",  "--tokens",  "--max-tokens", "--temperature",
        "--top-k",      "--top-p",      "--min-p",       "--seed",  "--backend", "--numeric",    "--threads",
        "--perplexity", "--logits-out", "--stats",       "--quiet", "--bos",     "--image-span", "--system",
        "--thinking",   "--effort",     "--help",        "--save",  "--restore", "--rewind"}) {
    CHECK(run.out.find(std::string(option) + " ") != std::string::npos);
  }
}

// SPDX-License-Identifier: MIT
//
// generate from outside: sessions that are saved, restored, rewound and interrupted are those that were not, to the bit.
#include <sys/resource.h>

#include "../support/share.hpp"
#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Words = std::vector<std::string>;
using Ids = std::vector<std::int64_t>;

const std::string kModel = golden("01-all-mechanisms");

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A run that must succeed, with what it says about itself.
struct Told {
  std::string out;
  nlohmann::json stats;
  Recorded recorded;
};

Told told(const Words& arguments) {
  const TempFolder folder;
  const std::string stats = (folder / "stats").string(), logits = (folder / "logits").string();
  const Run run = generate(arguments + Words{"--stats", stats, "--logits-out", logits});
  INFO(run.err);
  REQUIRE(run.status == 0);
  return {run.out, nlohmann::json::parse(read_file(stats)), Recorded(logits)};
}

void done(const Words& arguments) {
  const Run run = generate(arguments);
  INFO(run.err);
  REQUIRE(run.status == 0);
}

/// `got` recorded the last rows of `want`, and only them.
void check_last_rows(const Recorded& got, const Recorded& want) {
  REQUIRE(got.tokens.size() <= want.tokens.size());
  const auto skipped = static_cast<std::ptrdiff_t>(want.tokens.size() - got.tokens.size());
  CHECK(got.tokens == Ids(want.tokens.begin() + skipped, want.tokens.end()));
  CHECK(got.logits ==
        std::vector<float>(want.logits.begin() + skipped * static_cast<std::ptrdiff_t>(want.vocab), want.logits.end()));
}

/// Ids and the options of a golden's prompt.
struct GoldenPrompt {
  explicit GoldenPrompt(const std::string& name) : model(golden(name)) {
    auto tensors = read_raw(model + "/expected.safetensors");
    ids = elements<std::int64_t>(named(tensors, "tokens"));
    for (const RawTensor& t : tensors) {
      if (t.name != "image") continue;
      first = t.bytes.find('\1');
      count = t.bytes.rfind('\1') - first + 1;
    }
  }

  /// Its first `n` ids.
  Words options(std::size_t n) const {
    Words out{"--model", model, "--tokens",
              joined(Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(n, ids.size()))))};
    if (n > first && count > 0)
      out.push_back("--image-span=" + std::to_string(first) + ":" + std::to_string(std::min(count, n - first)));
    return out;
  }

  std::string model;
  Ids ids;
  std::size_t first = 0, count = 0;
};

/// The most rows that going on at any position may run again before the row itself.
std::int64_t most_replayed(const std::string& model) {
  const auto text = nlohmann::json::parse(read_file(model + "/config.json"))["text_config"];
  return text["num_hidden_layers"].get<std::int64_t>() * (text["sliding_window"].get<std::int64_t>() - 1) + 1;
}

std::ptrdiff_t entries(const TempFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

}  // namespace

TEST_CASE("a text in two runs is the text in one", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const Words sampling{"--temperature", "0.7", "--seed", "3"};
  const Words prompt = Words{"--prompt", "In the beginning God"} + sampling;
  const std::string whole = generate(prompt + Words{"--max-tokens", "9"}).out;
  const Run first = generate(prompt + Words{"--max-tokens", "4", "--save", file});
  const Run second = generate(sampling + Words{"--restore", file, "--max-tokens", "5"});
  INFO(second.err);
  CHECK(second.status == 0);
  CHECK_FALSE(first.out.empty());
  CHECK(first.out + second.out == whole);
}

TEST_CASE("tokens and logits behind a restored session are those of one run", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  for (const char* name : {"01-all-mechanisms", "02-window-only", "04-ratio-4", "09-odd-sizes", "11-image-span",
                           "15-three-streams-ratio-3"}) {
    INFO(name);
    const GoldenPrompt prompt(name);
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const Words sampling{"--temperature", "1", "--seed", "2"};
    const Words start = prompt.options(prompt.ids.size()) + sampling;
    const Told one = told(start + Words{"--max-tokens", "9"});
    REQUIRE(one.stats["generated_tokens"] == 9);
    done(start + Words{"--max-tokens", "4", "--save", file});
    const Told two = told(sampling + Words{"--model", prompt.model, "--restore", file, "--max-tokens", "5"});
    CHECK(two.recorded.tokens.size() == 6);  // the last restored one, for its logits
    check_last_rows(two.recorded, one.recorded);
    CHECK(two.stats["restored_tokens"] == length + 4);
    CHECK(two.stats["reused_tokens"] == length + 4);
    CHECK(two.stats["prompt_tokens"] == 0);
    CHECK(two.stats["generated_tokens"] == 5);
    CHECK(two.stats["position"] == length + 9);
    CHECK(two.stats["recomputed_tokens"] == 1);
  }
}

TEST_CASE("a session that ends inside an image span goes on as one run does", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const GoldenPrompt prompt("11-image-span");
  const std::size_t inside = prompt.first + prompt.count / 2;
  REQUIRE(prompt.count > 2);
  done(prompt.options(inside) + Words{"--max-tokens", "0", "--save", file});
  const Told rest = told({"--model", prompt.model, "--restore", file, "--max-tokens", "4"});
  check_last_rows(rest.recorded, told(prompt.options(inside) + Words{"--max-tokens", "4"}).recorded);
}

TEST_CASE("a prompt runs only what the restored session does not share with it", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const GoldenPrompt prompt("01-all-mechanisms");
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  REQUIRE(length > 30);
  const Words five{"--max-tokens", "5"}, restored{"--restore", file};
  done(prompt.options(25) + Words{"--max-tokens", "0", "--save", file});

  const Words whole = prompt.options(prompt.ids.size()) + five;
  const Told fresh = told(whole), longer = told(whole + restored);
  CHECK(longer.out == fresh.out);
  check_last_rows(longer.recorded, fresh.recorded);
  CHECK(longer.stats["reused_tokens"] == 25);
  CHECK(longer.stats["prompt_tokens"] == length - 25);
  CHECK(longer.stats["recomputed_tokens"] == 0);
  CHECK(longer.stats["rows_per_layer"] == Ids(6, length - 25));
  CHECK(fresh.stats["reused_tokens"] == 0);
  CHECK(fresh.stats["prompt_tokens"] == length);

  const Told same = told(prompt.options(25) + five + restored);
  CHECK(same.out == told(prompt.options(25) + five).out);
  CHECK(same.stats["reused_tokens"] == 25);
  CHECK(same.stats["prompt_tokens"] == 0);
  CHECK(same.stats["recomputed_tokens"] == 1);

  GoldenPrompt other = prompt;
  other.ids[18] = (other.ids[18] + 1) % 64;
  const Words changed = other.options(28) + five;
  const Told branch = told(changed + restored);
  CHECK(branch.out == told(changed).out);
  CHECK(branch.stats["reused_tokens"] == 18);
  CHECK(branch.stats["prompt_tokens"] == 10);
  CHECK(branch.stats["recomputed_tokens"] <= most_replayed(kModel));

  const Told nothing = told({"--model", kModel, "--tokens", "300,5", "--max-tokens", "5", "--restore", file});
  CHECK(nothing.out == generate({"--model", kModel, "--tokens", "300,5", "--max-tokens", "5"}).out);
  CHECK(nothing.stats["reused_tokens"] == 0);
  CHECK(nothing.stats["prompt_tokens"] == 2);
}

TEST_CASE("equal ids with other image marks are another beginning", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const GoldenPrompt prompt("11-image-span");
  const Words five{"--max-tokens", "5"};
  const Words marked = prompt.options(prompt.ids.size()) + five;
  const Words plain{"--model", prompt.model, "--tokens", joined(prompt.ids), "--max-tokens", "5"};
  done(marked + Words{"--save", file});
  for (const char* chunk : {"3", "256"}) {
    const Told again = told(plain + Words{"--restore", file, "--chunk", chunk});
    const Told fresh = told(plain);
    CHECK(again.out == fresh.out);
    CHECK(again.stats["reused_tokens"] == prompt.first);
    check_last_rows(again.recorded, fresh.recorded);
    CHECK(again.recorded.tokens.size() == prompt.ids.size() + 5 - prompt.first);
  }
  CHECK(generate(marked + Words{"--restore", file}).out == generate(marked).out);
}

TEST_CASE("a prompt without its last tokens, rewound or never fed", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  for (const char* name : {"01-all-mechanisms", "03-source-at-layer-0", "04-ratio-4", "11-image-span"}) {
    const GoldenPrompt prompt(name);
    const std::size_t length = prompt.ids.size();
    done(prompt.options(length) + Words{"--max-tokens", "0", "--save", file});
    const std::size_t into_span =
        prompt.count > 0 ? length - prompt.first - 1 : 1;  // the last left is the span's first
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, into_span, length - 1}) {
      if (kShare > 1 && n == 1) continue;
      INFO(name << ", the last " << n);
      const Words rewound{"--rewind", std::to_string(n), "--max-tokens", "5"};
      const Told want = told(prompt.options(length - n) + Words{"--max-tokens", "5"});
      const Told got = told(prompt.options(length) + rewound);
      CHECK(got.out == want.out);
      CHECK(got.recorded.tokens == want.recorded.tokens);
      CHECK(got.recorded.logits == want.recorded.logits);
      CHECK(got.stats["prompt_tokens"] == length);
      CHECK(got.stats["recomputed_tokens"] >= 1);
      CHECK(got.stats["recomputed_tokens"] <= 1 + most_replayed(prompt.model));
      const Told restored = told(Words{"--model", prompt.model, "--restore", file} + rewound);
      CHECK(restored.stats["reused_tokens"] == length - n);
      check_last_rows(restored.recorded, want.recorded);
    }
  }
}

TEST_CASE("prefill modes that skip rows go on from what they saved", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const std::string model = golden("03-source-at-layer-0");
  Ids ids(70);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * i % 61);
  const Words prompt{"--tokens", joined(ids)};
  for (const char* mode : {"exact", "replay"}) {
    INFO(mode);
    const Words base{"--model", model, "--prefill", mode};
    const std::string whole = generate(base + prompt + Words{"--max-tokens", "12"}).out;
    const std::string first = generate(base + prompt + Words{"--max-tokens", "5", "--save", file}).out;
    const std::string second = generate(base + Words{"--restore", file, "--max-tokens", "7"}).out;
    CHECK(first.substr(0, first.size() - 1) + "," + second == whole);
    const Run refused = generate({"--model", model, "--restore", file});
    CHECK(refused.refused() == (mode == std::string("replay")));  // another numeric class
  }
}

TEST_CASE("a conversation goes on in a restored session", "[generate][chat][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string(), stats = (folder / "stats").string();
  const Words chat{"--chat", "--max-tokens", "3"};
  const std::string line = "Who made the earth?\n";
  const Run fresh = generate(chat + Words{"--save", file}, line);
  REQUIRE(fresh.status == 0);
  const Run again = generate(chat + Words{"--restore", file, "--stats", stats}, line);
  INFO(again.err);
  REQUIRE(again.status == 0);
  CHECK(again.out == fresh.out);
  const auto figures = nlohmann::json::parse(read_file(stats));
  CHECK(figures["prompt_tokens"] == 0);
  CHECK(figures["reused_tokens"] == figures["restored_tokens"].get<std::int64_t>() - 3);
}

TEST_CASE("saved sessions are refused by file and reason", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string();
  const Words start{"--model", kModel, "--tokens", "5,6,7"};
  done(start + Words{"--max-tokens", "3", "--save", file});
  const std::string bytes = read_file(file);
  const auto refused = [&](const std::string& path, const Words& words, const Words& more = {},
                           const std::string& model = kModel) {
    const Run run = generate(Words{"--model", model, "--restore", path, "--max-tokens", "1"} + more);
    INFO(run.err);
    CHECK(run.refused());
    CHECK(run.out.empty());
    for (const std::string& word : words) {
      INFO("must say: " << word);
      CHECK(run.says(word));
    }
  };
  refused(folder.path().string() + "/absent", {"--restore: " + folder.path().string() + "/absent", "No such file"});
  refused(folder.path().string(), {"--restore", "is a folder"});
  refused(kModel + "/config.json", {"--restore: " + kModel + "/config.json: ", "not one"});
  refused("/proc/self/mem", {"--restore: /proc/self/mem: cannot be read: Input/output error"});
  for (const std::size_t size : {std::size_t{0}, std::size_t{50}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string cut = folder.write("cut", std::string_view(bytes).substr(0, size)).string();
    refused(cut, {"--restore: " + cut + ": saved session: "});
  }
  const std::string longer = folder.write("longer", bytes + "x").string();
  refused(longer, {"--restore: " + longer + ": goes on behind what was read, expected its end there"});
  std::string flipped = bytes;
  flipped[bytes.size() / 2] ^= 1;
  const std::string damaged = folder.write("damaged", flipped).string();
  refused(damaged, {"--restore: " + damaged + ": saved session: "});
  refused(file, {"--restore: " + file + ": ", "another model"}, {}, golden("04-ratio-4"));
  refused(file, {"--restore: " + file + ": ", "numeric"}, {"--numeric", "deployed"});
  refused(file, {"--rewind: drops 6 tokens, expected fewer than the 6 there are"}, {"--rewind", "6"});
  refused(file, {"--rewind: drops 3 tokens, expected fewer than the 3 there are"},
          {"--rewind", "3", "--tokens", "5,6,7"});
}

TEST_CASE("a session may replace the one it came from; a run that fails leaves it", "[generate][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string(), err = folder.write("err", "").string();
  const Words start{"--model", kModel, "--tokens", "5,6,7"}, save{"--save", file};
  const Words on = Words{"--model", kModel, "--restore", file} + save;
  done(start + save + Words{"--max-tokens", "2"});
  done(on + Words{"--max-tokens", "3"});
  CHECK(told(Words{"--model", kModel, "--restore", file, "--max-tokens", "0"}).stats["restored_tokens"] == 8);

  const std::string before = read_file(file);
  CHECK(generate(on + Words{"--tokens", "1,999"}).refused());
  CHECK(read_file(file) == before);
  CHECK(generate(on + Words{"--rewind", "8"}).refused());
  CHECK(read_file(file) == before);

  Streams streams;
  streams.open(1, "/dev/null");
  streams.open(2, err);
  struct rlimit old {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  struct rlimit low = old;
  low.rlim_cur = 2048;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const int status = wait_for(streams.start(on));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  CHECK(status == 2);
  CHECK(read_file(err) == "generate: --save: " + file + ": cannot write: File too large\n");
  CHECK(read_file(file) == before);
  CHECK(entries(folder) == 2);
}

TEST_CASE("Ctrl-C ends the text, and its results are whole", "[generate][sessions]") {
  ModelCopy model("02-window-only");
  model.edit_weights([](auto& tensors) {  // logit 0 for the end-of-sequence token: it is never the largest
    RawTensor& head = named(tensors, "head.weight");
    const std::size_t row = head.bytes.size() / static_cast<std::size_t>(head.shape[0]);
    std::fill_n(head.bytes.begin() + static_cast<std::ptrdiff_t>(row), row, '\0');
  });
  const TempFolder folder;
  const std::string file = (folder / "session").string(), stats = (folder / "stats").string(),
                    err = folder.write("err", "").string();
  const Words start{"--model", model.path(), "--tokens", "5,6,7"};
  // The pipe holds a page, far fewer tokens than these: the run cannot be over when the signal comes.
  const PipedRun run(start + Words{"--max-tokens", "4000", "--save", file, "--stats", stats}, false, err);
  std::string text = run.read_some();
  REQUIRE_FALSE(text.empty());
  run.interrupt();
  text += whole(run.read());
  CHECK(run.wait() == 130);
  const auto figures = nlohmann::json::parse(read_file(stats));
  const auto made = figures["generated_tokens"].get<std::int64_t>();
  CHECK(read_file(err) == "generate: interrupted; " + std::to_string(made) + " tokens were generated\n");
  CHECK(figures["stop"] == "interrupted");
  CHECK(figures["position"] == 3 + made);
  CHECK(made < 4000);
  CHECK(std::count(text.begin(), text.end(), ',') + 1 == made);
  const Run rest = generate({"--model", model.path(), "--restore", file, "--max-tokens", "3"});
  CHECK(rest.status == 0);
  const Run one = generate(start + Words{"--max-tokens", std::to_string(made + 3)});
  CHECK(text.substr(0, text.size() - 1) + "," + rest.out == one.out);
}

TEST_CASE("Ctrl-C ends a conversation", "[generate][chat][sessions]") {
  const TempFolder folder;
  const std::string file = (folder / "session").string(), err = folder.write("err", "").string();
  int lines[2];
  REQUIRE(::pipe2(lines, O_CLOEXEC) == 0);
  const PipedRun run({"--chat", "--max-tokens", "3", "--save", file}, false, err, lines[0]);
  ::close(lines[0]);
  const std::string line = "Who made the earth?\n";
  REQUIRE(::write(lines[1], line.data(), line.size()) == static_cast<::ssize_t>(line.size()));
  std::string answer;
  while (answer.empty() || answer.back() != '\n') answer += run.read_some();
  run.interrupt();
  ::close(lines[1]);  // should the signal come before it waits for a line
  CHECK(run.wait() == 130);
  CHECK(read_file(err).rfind("generate: interrupted; ", 0) == 0);
  CHECK(told({"--restore", file, "--max-tokens", "0"}).stats["restored_tokens"] > 5);
}

TEST_CASE("stats of memory are the config's", "[generate][sessions]") {
  const auto text = nlohmann::json::parse(read_file(std::string(DSV41_DEMO_DIR) + "/config.json"))["text_config"];
  const auto number = [&](const char* key) { return text[key].get<std::int64_t>(); };
  const std::int64_t head = number("head_dim"), index = number("index_head_dim"), layers = number("num_hidden_layers");
  // An entry: half a byte a channel and a scale for 16; an index key: a scale for 32. A window row: a byte, a scale for 32.
  const std::int64_t row = head / 2 + head / 16 + index / 2 + index / 32;
  std::int64_t page = 0, carry = 0;
  for (const std::int64_t source : text["kv_source_layer_ids"]) {
    const auto ratio = text["compress_ratios"][static_cast<std::size_t>(source)].get<std::int64_t>();
    page += 64 / ratio * row;
    carry += (ratio - 1) * 2 * head * 4;
  }
  for (const std::int64_t tokens : {5, 64, 65}) {
    const TempFolder folder;
    const std::string stats = (folder / "stats").string();
    Ids ids(static_cast<std::size_t>(tokens), 9);
    done({"--tokens", joined(ids), "--max-tokens", "0", "--stats", stats});
    const auto s = nlohmann::json::parse(read_file(stats));
    CHECK(s["cache_bytes"] == (tokens + 63) / 64 * page);
    CHECK(s["cache_bytes_per_token"] == static_cast<double>(page) / 64);
    CHECK(s["window_bytes"] == layers * number("sliding_window") * (head + head / 32));
    CHECK(s["carry_bytes"] == carry);
    CHECK(s["block_bytes"] >= s["window_bytes"].get<std::int64_t>() + carry);
    CHECK(s["restored_tokens"] == 0);
    CHECK(s["recomputed_tokens"] == 0);
  }
}

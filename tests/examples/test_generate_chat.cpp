// SPDX-License-Identifier: MIT
//
// generate --chat on the demo checkpoint, whose tokenizer has the chat markers: what is fed, and conversations.
#include "../support/golden.hpp"
#include "dsv41/text/tokenizer.hpp"
#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Ids = std::vector<std::int64_t>;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = text::Tokenizer::from_file(std::string(DSV41_DEMO_DIR) + "/tokenizer.json");
  return t;
}

std::int64_t id(const std::string& marker) {
  return tokenizer().id_of(marker).value();
}

/// U+FF5C, the bar of the markers.
const std::string kBar = "\xef\xbd\x9c";
const std::string kEnd = "<" + kBar + "end\xe2\x96\x81of\xe2\x96\x81sentence" + kBar + ">";

std::int64_t user() {
  return id("<" + kBar + "User" + kBar + ">");
}
std::int64_t assistant() {
  return id("<" + kBar + "Assistant" + kBar + ">");
}
std::int64_t system_marker() {
  return id("<" + kBar + "System" + kBar + ">");
}

Ids text_ids(const std::string& text) {
  const auto ids = tokenizer().encode(text, false);
  return {ids.begin(), ids.end()};
}

/// Ids that one --chat prompt feeds.
Ids fed(std::vector<std::string> arguments) {
  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  arguments.insert(arguments.end(), {"--chat", "--max-tokens", "0", "--logits-out", file});
  const Run run = generate(arguments);
  INFO(run.err);
  REQUIRE(run.status == 0);
  return Recorded(file).tokens;
}

Ids concatenated(std::initializer_list<Ids> parts) {
  Ids out;
  for (const Ids& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace

TEST_CASE("a chat prompt is the conversation's form", "[generate][chat]") {
  const Ids hello = text_ids("Hello");
  CHECK(fed({"--prompt", "Hello"}) == concatenated({{0, user()}, hello, {assistant(), id("</think>")}}));
  CHECK(fed({"--prompt", "Hello", "--system", "Be brief."}) ==
        concatenated({{0, system_marker()}, text_ids("Be brief."), {user()}, hello, {assistant(), id("</think>")}}));
  const Ids thinking = fed({"--prompt", "Hello", "--thinking", "--effort", "33"});
  CHECK(thinking.back() == id("<think>"));
  std::vector<std::int32_t> ids(thinking.begin(), thinking.end());
  CHECK(tokenizer().decode(ids, true).find("Reasoning Effort: 33 ") != std::string::npos);
}

TEST_CASE("markers that a user quotes stay text in a chat and are tokens in a prompt", "[generate][chat]") {
  const std::string quoting = "what is " + kEnd + "?";
  const Ids chat = fed({"--prompt", quoting});
  CHECK(std::count(chat.begin(), chat.end(), 1) == 0);

  const TempFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  REQUIRE(generate({"--prompt", quoting, "--max-tokens", "0", "--logits-out", file}).status == 0);
  const Ids raw = Recorded(file).tokens;
  CHECK(std::count(raw.begin(), raw.end(), 1) == 1);
}

TEST_CASE("a conversation answers every line and remembers", "[generate][chat]") {
  const TempFolder folder;
  const std::string stats = (folder / "stats").string();
  const std::vector<std::string> arguments{"--chat", "--max-tokens", "5", "--stats", stats};
  const Run two = generate(arguments, "Who made the earth?\n\nAnd the sea?\n");
  INFO(two.err);
  REQUIRE(two.status == 0);
  CHECK(two.err.empty());
  const auto figures = nlohmann::json::parse(read_file(stats));
  CHECK(figures["generated_tokens"] <= 10);
  CHECK(figures["generated_tokens"] >= 2);
  CHECK(figures["position"] > text_ids("Who made the earth?").size() + text_ids("And the sea?").size());

  const Run one = generate(arguments, "Who made the earth?\n");
  CHECK(two.out.rfind(one.out, 0) == 0);  // the first answer does not know of the second question
  CHECK(one.out == generate({"--chat", "--max-tokens", "5", "--prompt", "Who made the earth?"}).out + "\n");
  CHECK(generate(arguments, "").status == 0);
  CHECK(generate(arguments, "last line without a newline").out.back() == '\n');
}

TEST_CASE("a conversation refuses broken lines by number", "[generate][chat]") {
  const Run run = generate({"--chat", "--max-tokens", "2"}, "fine\nbro\xffken\n");
  CHECK(run.refused());
  CHECK(run.says("line 2"));
  CHECK(run.says("UTF-8"));
}

TEST_CASE("a conversation that cannot be read, or whose line has no end, is an error", "[generate][chat]") {
  const auto from = [](const std::string& input) {
    const TempFolder folder;
    const std::string err = folder.write("err", "").string();
    Streams streams;
    streams.open(0, input);
    streams.open(2, err);
    Run run;
    run.status = wait_for(streams.start({"--chat", "--max-tokens", "2"}));
    run.err = read_file(err);
    INFO(run.err);
    CHECK(run.refused());
    return run;
  };
  CHECK(from("/").says("standard input: cannot be read: Is a directory"));
  CHECK(from("/dev/zero").says("standard input: a line has more than 16777216 bytes"));
}

TEST_CASE("the demo speaks without a prompt", "[generate]") {
  const Run run = generate({"--max-tokens", "8"});
  CHECK(run.status == 0);
  CHECK_FALSE(run.out.empty());
  CHECK(run.out == generate({"--max-tokens", "8", "--prompt", "In the beginning"}).out);
}

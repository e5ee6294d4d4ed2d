// SPDX-License-Identifier: MIT
//
// Reading replies: the good forms, the unfinished ones, and every way to break the form.
#include <random>

#include "dsv41/text/chat.hpp"
#include "text/text_support.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

const std::string kEos = "<\uff5cend\u2581of\u2581sentence\uff5c>", kDsml = "\uff5cDSML\uff5c";
const std::string kOpen = "\n\n<" + kDsml + " calls>\n", kClose = "</" + kDsml + " calls>";

std::string parameter(const std::string& key, bool is_string, const std::string& value) {
  return "<" + kDsml + " parameter name=\"" + key + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</" + kDsml + " parameter>\n";
}

std::string invoke(const std::string& name, const std::string& parameters) {
  return "<" + kDsml + " invoke name=\"" + name + "\">\n" + parameters + "</" + kDsml + " invoke>\n";
}

Errc code_of(const std::string& text, bool thinking = false) {
  return error_of([&] { parse_reply(text, thinking); }).first;
}

}  // namespace

TEST_CASE("a plain reply is its content") {
  const Reply reply = parse_reply("Hi!" + kEos, false);
  CHECK(reply.content == "Hi!");
  CHECK(reply.reasoning.empty());
  CHECK(reply.finished);
  CHECK_FALSE(parse_reply("Hi", false).finished);
  CHECK(parse_reply("", false).content.empty());
}

TEST_CASE("a thinking reply splits at the closing marker") {
  const Reply reply = parse_reply("why</think>so" + kEos, true);
  CHECK(reply.reasoning == "why");
  CHECK(reply.content == "so");
  const Reply cut = parse_reply("still why", true);
  CHECK(cut.reasoning == "still why");
  CHECK(cut.content.empty());
  CHECK_FALSE(cut.finished);
}

TEST_CASE("calls come with JSON arguments in order") {
  const Reply reply = parse_reply(
      "text" + kOpen + invoke("f", parameter("s", true, "a \"q\"\n") + parameter("n", false, " [1,2.50] ")) +
          invoke("ns::g", "\n") + invoke("h", "") + kClose + kEos,
      false);
  CHECK(reply.content == "text");
  REQUIRE(reply.tool_calls.size() == 3);
  CHECK(reply.tool_calls[0].name == "f");
  CHECK(reply.tool_calls[0].arguments == R"({"s": "a \"q\"\n", "n": [1, 2.5]})");
  CHECK(reply.tool_calls[1].name == "ns::g");
  CHECK(reply.tool_calls[1].arguments == "{}");
  CHECK(reply.tool_calls[2].arguments == "{}");
}

TEST_CASE("replies that break the form are errors") {
  const std::string good = kOpen + invoke("f", parameter("a", true, "x")) + kClose;
  CHECK(code_of("t" + good) == Errc::ok);
  for (const std::string& bad :
       {"t" + good + " more", "t" + good + kEos + "more", "t" + good.substr(0, good.size() - 4), "t" + kOpen + kClose,
        "t" + kOpen + invoke("f", parameter("a", true, "x") + parameter("a", true, "y")) + kClose,
        "t" + kOpen + invoke("f", parameter("a", false, "{")) + kClose, "t\n\n<" + kDsml + " calls> \n" + kClose,
        "t" + kOpen + "junk" + invoke("f", "\n") + kClose, "a" + kDsml + "b", std::string("a<think>b"),
        std::string("a</think>b"), std::string("a<\uff5cbegin\u2581of\u2581sentence\uff5c>b"),
        "t\n\n<" + kDsml + "tool_calls>\n"}) {
    INFO(bad);
    CHECK(code_of(bad) == Errc::format);
  }
  CHECK(code_of("why" + kEos, true) == Errc::format);
  CHECK(code_of("a<think>b</think>c" + kEos, true) == Errc::format);
  CHECK(code_of("a</think>b</think>c" + kEos, true) == Errc::format);
}

TEST_CASE("B23: no marker is left in the parts of any reply that parses") {
  const std::string parts[] = {"a",
                               "\n\n",
                               "<",
                               kDsml,
                               " calls>",
                               ">\n",
                               "</think>",
                               "<think>",
                               kEos,
                               "</",
                               " invoke name=\"f\">\n",
                               kOpen,
                               kClose,
                               " invoke>",
                               "\n",
                               parameter("k", true, "v"),
                               invoke("f", "\n")};
  std::mt19937 rng(23);
  int parsed = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string text;
    for (unsigned k = rng() % 8; k > 0; --k) text += parts[rng() % std::size(parts)];
    Reply reply;
    const auto [code, words] = error_of([&] { reply = parse_reply(text, i % 2 != 0); });
    CHECK((code == Errc::ok || code == Errc::format));
    if (code != Errc::ok) continue;
    ++parsed;
    for (const std::string& marker : {kEos, kDsml, std::string("</think>"), std::string("<think>")}) {
      CHECK_FALSE(contains(reply.content, marker));
      CHECK_FALSE(contains(reply.reasoning, marker));
    }
  }
  CHECK(parsed > 1000);
}

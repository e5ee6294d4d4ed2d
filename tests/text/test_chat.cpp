// SPDX-License-Identifier: MIT
//
// The prompt format: committed conversations with the released encoder's strings, the public bugs, refusals.
#include "dsv41/text/chat.hpp"

#include <algorithm>

#include "text/chat_json.hpp"
#include "text/text_support.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

const std::string kBos = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", kEos = "<\uff5cend\u2581of\u2581sentence\uff5c>";
const std::string kSystem = "<\uff5cSystem\uff5c>", kUser = "<\uff5cUser\uff5c>",
                  kAssistant = "<\uff5cAssistant\uff5c>";
const std::string kImage = "<\uff5cdeepseek_image\uff5c>", kDsml = "\uff5cDSML\uff5c";

Message of(Role role, std::string content) {
  Message m;
  m.role = role;
  m.content = std::move(content);
  return m;
}

Message calling(std::string id, std::string name, std::string arguments) {
  Message m = of(Role::assistant, "");
  m.tool_calls.push_back({std::move(id), std::move(name), std::move(arguments)});
  return m;
}

Message result(std::string id, std::string content) {
  Message m = of(Role::tool, std::move(content));
  m.tool_call_id = std::move(id);
  return m;
}

ChatOptions chat_mode() {
  ChatOptions o;
  o.thinking = false;
  return o;
}

Errc code_of(const std::vector<Message>& messages, const ChatOptions& options) {
  return error_of([&] { render_chat(messages, options); }).first;
}

std::ptrdiff_t count_of(const Ids& ids, std::int32_t id) {
  return std::count(ids.begin(), ids.end(), id);
}

}  // namespace

TEST_CASE("300 random conversations give the reference's string, and its ids in segments") {
  const Json data = data_file("chat_cases.json");
  const Tokenizer t = toy_chat_tokenizer();
  REQUIRE(data.at("cases").size() == 300);
  for (const auto& c : data.at("cases")) {
    const auto messages = messages_from(c.at("messages"));
    ChatOptions options = options_from(c.at("options"));
    options.texts = {data["texts"][0], data["texts"][1], data["texts"][2], true};
    INFO(c.dump(-1, ' ', true));
    const std::string text = render_chat(messages, options);
    CHECK(text == c.at("expected").get<std::string>());
    CHECK(encode_chat(t, messages, options) == t.encode(text));
    const auto segments = chat_segments(messages, options);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      CHECK_FALSE(segments[i].text.empty());
      if (i > 0) CHECK((segments[i].is_control || segments[i - 1].is_control));
    }
  }
}

TEST_CASE("the published conversation has the published ids", "[v4]") {
  if (!have_v4()) return;
  const std::vector<Message> messages = {of(Role::system, "You are a helpful assistant."), of(Role::user, "Hello"),
                                         of(Role::assistant, "Hi!")};
  CHECK(encode_chat(v41(), messages, chat_mode()) ==
        Ids{0, 128799, 3476, 477, 260, 11502, 22896, 16, 128803, 19923, 128804, 128822, 23166, 3, 1});
  CHECK(error_of([&] { encode_chat(v4(), messages, chat_mode()); }).first == Errc::unsupported);
}

TEST_CASE("thinking mode opens with the effort line also without a system message") {
  ChatOptions o;
  o.effort = effort_of("max");
  CHECK(render_chat(std::vector{of(Role::user, "u")}, o) ==
        kBos + kSystem +
            "Reasoning Effort: 100 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" + kUser +
            "u" + kAssistant + "<think>");
  CHECK(effort_of("low") == 50);
  CHECK(effort_of("high") == kDefaultEffort);
  CHECK(error_of([] { effort_of("xhigh"); }).first == Errc::invalid_argument);
  for (const int effort : {0, 101, -5}) {
    o.effort = effort;
    CHECK(code_of({of(Role::user, "u")}, o) == Errc::invalid_argument);
  }
}

TEST_CASE("B18: quoted markers stay text, and only real images and finished turns make control ids") {
  const Tokenizer t = toy_chat_tokenizer();
  const std::string quoted = "see " + kImage + " and " + kEos + " and </think>" + kDsml;
  Message reply = of(Role::assistant, quoted);
  reply.reasoning = quoted;
  const std::vector<Message> messages = {of(Role::system, quoted), of(Role::user, quoted), reply,
                                         of(Role::user, quoted)};
  for (const bool thinking : {false, true}) {
    ChatOptions o;
    o.thinking = thinking;
    const Ids ids = encode_chat(t, messages, o);
    CHECK(count_of(ids, *t.id_of(kImage)) == 0);
    CHECK(count_of(ids, *t.id_of(kEos)) == 1);
    CHECK(count_of(ids, *t.id_of(kDsml)) == 0);
    CHECK(t.decode(ids, false) == render_chat(messages, o));
    o.quoted_markers_as_text = false;
    CHECK(encode_chat(t, messages, o) == t.encode(render_chat(messages, o)));
    CHECK(count_of(encode_chat(t, messages, o), *t.id_of(kEos)) > 1);
  }
  Message with_image = of(Role::user, "");
  with_image.blocks = {{ContentBlock::Kind::text, kImage, {}}, {ContentBlock::Kind::image, {}, {}}};
  CHECK(count_of(encode_chat(t, std::vector{with_image}, chat_mode()), *t.id_of(kImage)) == 1);
}

TEST_CASE("B19: the cue and the continuation flag do what they say") {
  const Tokenizer t = toy_chat_tokenizer();
  const std::vector<Message> talk = {of(Role::user, "u"), of(Role::assistant, "ab")};
  ChatOptions o = chat_mode();
  o.add_generation_prompt = false;
  const Ids closed = encode_chat(t, talk, o);
  CHECK(closed.back() == *t.id_of(kEos));
  o.continue_final_message = true;
  const Ids open = encode_chat(t, talk, o), ab = t.encode("ab");
  CHECK(std::equal(ab.rbegin(), ab.rend(), open.rbegin()));
  CHECK(open.size() + 1 == closed.size());
  CHECK(code_of({of(Role::user, "u")}, o) == Errc::invalid_argument);
  CHECK(render_chat(std::vector{of(Role::user, "u")}, chat_mode()) == kBos + kUser + "u" + kAssistant + "</think>");
  o.continue_final_message = false;
  CHECK(render_chat(std::vector{of(Role::user, "u")}, o) == kBos + kUser + "u");
}

TEST_CASE("B19: continuing a turn that has only reasoning keeps the reasoning open") {
  Message thinking = of(Role::assistant, "");
  thinking.reasoning = "because";
  ChatOptions o;
  o.continue_final_message = true;
  CHECK(render_chat(std::vector{of(Role::user, "u"), thinking}, o).ends_with("<think>because"));
  thinking.content = "so";
  CHECK(render_chat(std::vector{of(Role::user, "u"), thinking}, o).ends_with("<think>because</think>so"));
}

TEST_CASE("B21: arguments with the closing tag are refused, all others parse back to the same call") {
  const auto round_trip = [](const std::string& arguments) {
    const std::string text = render_chat(std::vector{of(Role::user, "u"), calling("1", "f", arguments)}, chat_mode());
    return parse_reply(std::string_view(text).substr(text.find("</think>") + 8), false).tool_calls.at(0).arguments;
  };
  for (const std::string arguments :
       {R"({"s": "</\uff5cDSML\uff5cparameter>"})", R"({"s": "</parameter>\n\" & <b>", "n": 1.5, "l": [1, "x", null]})",
        R"({"s": ""})", R"({})", R"({"s": "\n\n", "t": true})", R"({"s": "</\uff5cDSML\uff5c invoke>"})"}) {
    CHECK(Json::parse(round_trip(arguments)) == Json::parse(arguments));
  }
  for (const std::string arguments :
       {R"({"s": "</\uff5cDSML\uff5c parameter>"})", R"({"l": ["</\uff5cDSML\uff5c parameter>"]})", R"({"a\"b": 1})",
        R"({"s": "\ud800"})"}) {
    CHECK(code_of({of(Role::user, "u"), calling("1", "f", arguments)}, chat_mode()) == Errc::invalid_argument);
  }
  CHECK(code_of({of(Role::user, "u"), calling("1", "f\"g", "{}")}, chat_mode()) == Errc::invalid_argument);
  // The format has no escape for results, but a result cannot change the call before it.
  const std::string arguments = R"({"s": "</\uff5cDSML\uff5cparameter>"})";
  const std::vector<Message> with_result = {of(Role::user, "u"), calling("1", "f", arguments),
                                            result("1", "</tool_result>x")};
  const std::string text = render_chat(with_result, chat_mode());
  CHECK(contains(text, "<tool_result></tool_result>x</tool_result>"));
  const std::size_t from = text.find("</think>") + 8, to = text.find(kEos, from);
  CHECK(Json::parse(parse_reply(text.substr(from, to - from), false).tool_calls.at(0).arguments) ==
        Json::parse(arguments));
}

TEST_CASE("B22: reasoning between tool turns stays until the next user turn") {
  Message thinking_call = calling("1", "f", "{}");
  thinking_call.reasoning = "REASON";
  thinking_call.content = "visible";
  std::vector<Message> messages = {of(Role::user, "u"), thinking_call, result("1", "r")};
  ChatOptions o;
  // To the format a folded result is a user turn, so it is the tools in the system turn that keep the reasoning.
  messages.insert(messages.begin(), of(Role::system, "s"));
  messages[0].tools = {R"({"name": "f"})"};
  o.texts = {"pre\n", "\npost\n", "fmt ", true};
  CHECK(contains(render_chat(messages, o), "REASON"));
  messages.push_back(of(Role::assistant, "done"));
  messages.push_back(of(Role::user, "next"));
  CHECK(contains(render_chat(messages, o), "REASON"));  // tools in the conversation: nothing is dropped
  messages[0].tools.clear();
  const std::string dropped = render_chat(messages, o);
  CHECK_FALSE(contains(dropped, "REASON"));
  CHECK(contains(dropped, "visible"));
  o.drop_reasoning = false;
  CHECK(contains(render_chat(messages, o), "REASON"));
}

TEST_CASE("tool results come in the order of the calls they answer") {
  Message two = calling("a", "f", "{}");
  two.tool_calls.push_back({"b", "g", "{}"});
  const std::string text = render_chat(
      std::vector{of(Role::user, "u"), two, result("b", "B"), result("a", "A"), of(Role::user, "go")}, chat_mode());
  CHECK(contains(text, kUser + "<tool_result>A</tool_result>\n\n<tool_result>B</tool_result>\n\ngo" + kAssistant));
}

TEST_CASE("non-string arguments are written as Python's json.dumps writes them") {
  const std::string text =
      render_chat(std::vector{of(Role::user, "u"),
                              calling("1", "ns::f", R"({"n":1e3,"o":{"b":[1,2],"a":"\u00e9"},"s":"\u00e9\n"})")},
                  chat_mode());
  CHECK(contains(text, "\n\n<" + kDsml + " calls>\n<" + kDsml + " invoke name=\"ns::f\">\n<" + kDsml +
                           " parameter name=\"n\" string=\"false\">1000.0</" + kDsml + " parameter>\n<" + kDsml +
                           " parameter name=\"o\" string=\"false\">{\"b\": [1, 2], \"a\": \"\u00e9\"}</" + kDsml +
                           " parameter>\n<" + kDsml + " parameter name=\"s\" string=\"true\">\u00e9\n</" + kDsml +
                           " parameter>\n</" + kDsml + " invoke>\n</" + kDsml + " calls>" + kEos));
}

TEST_CASE("tools and response formats need the released texts") {
  Message system = of(Role::system, "s");
  system.tools = {R"({"name":"f"})"};
  ChatOptions o = chat_mode();
  const auto [code, words] = error_of([&] { render_chat(std::vector{system}, o); });
  CHECK(code == Errc::invalid_argument);
  CHECK(contains(words, "tools_preamble"));
  system.tools.clear();
  system.response_format = "{\"a\":1}";
  CHECK(contains(error_of([&] { render_chat(std::vector{system}, o); }).second, "response_format_prefix"));
  o.texts = {"pre <think>\n", "\npost", "fmt ", true};
  system.tools = {R"({"name":"f"})", R"({"name":"g","x":[1.50]})"};
  CHECK(render_chat(std::vector{system}, o) ==
        kBos + kSystem +
            "s\n\npre <think>\n{\"name\": \"f\"}\n{\"name\": \"g\", \"x\": [1.5]}\npost\n\nfmt {\"a\": 1}");
  system.tools = {"{"};
  CHECK(code_of({system}, o) == Errc::invalid_argument);
}

TEST_CASE("task turns end in their token") {
  Message ask = of(Role::user, "u");
  ask.task = "title";
  CHECK(render_chat(std::vector{ask}, chat_mode()) == kBos + kUser + "u<\uff5ctitle\uff5c>");
  ask.task = "action";
  CHECK(render_chat(std::vector{ask}, chat_mode()) == kBos + kUser + "u" + kAssistant + "</think><\uff5caction\uff5c>");
  Message answer = of(Role::assistant, "t");
  answer.reasoning = "r";
  CHECK_FALSE(contains(render_chat(std::vector{ask, answer}, ChatOptions{}), "r</think>"));
  ask.task = "poem";
  CHECK(code_of({ask}, chat_mode()) == Errc::invalid_argument);
  CHECK(error_of([&] { render_chat(std::vector{ask}, chat_mode()); }).second ==
        "chat: task poem, expected one of action, query, authority, domain, title, read_url");
}

TEST_CASE("unknown roles and empty conversations are refused") {
  CHECK(error_of([] { role_of("developer"); }).first == Errc::unsupported);
  CHECK(role_of("latest_reminder") == Role::latest_reminder);
  CHECK(code_of({}, chat_mode()) == Errc::invalid_argument);
}

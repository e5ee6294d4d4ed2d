// SPDX-License-Identifier: MIT
//
// Traces of drafts: written, read again, refused with the place of what is wrong, and drawn by 07_drafts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/failure.hpp"
#include "plot/draft_trace.hpp"
#include "run_generate.hpp"

using namespace dsv41::test;
using dsv41::DraftPolicy;
using dsv41::StepPlan;
using dsv41::plot::DraftTrace;
using nlohmann::json;

namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

const std::string& drafts_program() {
  static const std::string path = std::string(DSV41_EXAMPLES_DIR) + "/07_drafts";
  return path;
}

/// Two requests of up to three drafts, then one of them alone beside a prompt, then a prompt alone.
DraftTrace small_trace(const DraftPolicy& policy = {.kind = DraftPolicy::Kind::delayed}) {
  DraftTrace trace(3, policy);
  dsv41::runtime::StepReport report;
  report.rounds = {{.request = 0, .anchor = 17, .drafted = 3, .verified = 2, .accepted = 1, .emitted = 2},
                   {.request = 4, .anchor = 5, .drafted = 2, .verified = 1, .accepted = 1, .emitted = 2}};
  report.confidences = {0.75f, 0.5f, 0.25f, 1, 0.1f, kNone};
  report.plan.prefixes = {{.tokens = 2, .step_ms = 10, .tokens_per_ms = 0.2}, {.tokens_per_ms = 1.0 / 3}};
  report.plan.undrafted_tokens_per_ms = 0.125;
  report.plan.budget = 4;
  report.plan.stopped = StepPlan::Stopped::best_of_all;
  report.rows = 5;
  report.drafting = true;
  report.draft_ms = 1.25, report.step_ms = 20.5;
  trace.add(report);
  report = {};
  report.rounds = {{.request = 4, .anchor = 7, .drafted = 3, .verified = 3, .accepted = 3, .emitted = 3}};
  report.confidences = {0.5f, 0.5f, 0.5f};
  report.plan.budget = 3;
  report.plan.stopped = StepPlan::Stopped::draft_limit;
  report.rows = 14, report.prompt_rows = 10;
  report.drafting = true;
  trace.add(report);
  report = {};
  report.rows = report.prompt_rows = 8;
  trace.add(report);
  return trace;
}

void check_equal(const DraftTrace& a, const DraftTrace& b) {
  CHECK(a.draft() == b.draft());
  CHECK(a.policy() == b.policy());
  REQUIRE(a.steps().size() == b.steps().size());
  for (std::size_t s = 0; s < a.steps().size(); ++s) {
    const DraftTrace::Step &x = a.steps()[s], &y = b.steps()[s];
    CHECK(x.rows == y.rows);
    CHECK(x.prompt_rows == y.prompt_rows);
    CHECK(x.drafting == y.drafting);
    CHECK(x.draft_ms == y.draft_ms);
    CHECK(x.step_ms == y.step_ms);
    CHECK(x.budget == y.budget);
    CHECK(x.stopped == y.stopped);
    CHECK(x.undrafted_tokens_per_ms == y.undrafted_tokens_per_ms);
    CHECK(x.tokens_per_ms == y.tokens_per_ms);
    REQUIRE(x.rounds.size() == y.rounds.size());
    for (std::size_t r = 0; r < x.rounds.size(); ++r) {
      const DraftTrace::Round &i = x.rounds[r], &j = y.rounds[r];
      CHECK(std::vector<std::int64_t>{i.request, i.anchor, i.drafted, i.verified, i.accepted, i.emitted} ==
            std::vector<std::int64_t>{j.request, j.anchor, j.drafted, j.verified, j.accepted, j.emitted});
      CHECK(std::ranges::equal(i.confidences, j.confidences,
                               [](float c, float d) { return c == d || (std::isnan(c) && std::isnan(d)); }));
    }
  }
}

}  // namespace

TEST_CASE("a trace comes back from its file as it was", "[numbered]") {
  for (const char* policy : {"off", "fixed:3", "threshold:0.3", "alg1", "delayed"}) {
    const DraftTrace trace = small_trace(dsv41::parse_draft_policy(policy));
    CHECK(dsv41::plot::policy_text(trace.policy()) == policy);
    check_equal(DraftTrace::parse(trace.json(), "t"), trace);
  }
}

TEST_CASE("a trace's file is the documented one", "[numbered]") {
  const json file = json::parse(small_trace().json());
  CHECK(file["format"] == "dsv41-draft-trace");
  CHECK(file["version"] == 1);
  CHECK(file["draft"] == 3);
  CHECK(file["policy"] == "delayed");
  REQUIRE(file["steps"].size() == 3);
  CHECK(file["steps"][0] == json::parse(R"({"requests": 2, "rows": 5, "prompt_rows": 0, "drafting": true,
    "draft_ms": 1.25, "step_ms": 20.5, "budget": 4, "stopped": "best_of_all", "undrafted_tokens_per_ms": 0.125,
    "tokens_per_ms": [0.2, 0.3333333333333333], "rounds": [
    {"request": 0, "anchor": 17, "drafted": 3, "verified": 2, "accepted": 1, "emitted": 2,
     "confidences": [0.75, 0.5, 0.25]},
    {"request": 4, "anchor": 5, "drafted": 2, "verified": 1, "accepted": 1, "emitted": 2,
     "confidences": [1.0, 0.10000000149011612, null]}]})"));
  CHECK(file["steps"][2]["stopped"] == "by_policy");
  CHECK(file["steps"][1]["stopped"] == "draft_limit");
}

TEST_CASE("a trace that no generator wrote is refused, with the place", "[numbered]") {
  const json good = json::parse(small_trace().json());
  const auto refused = [&](const char* pointer, const json& value, const std::string& message) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    const Failure failure = failure_of([&] { DraftTrace::parse(file.dump(), "F.json"); });
    CHECK(failure.code == (message.rfind("version", 0) == 0 ? dsv41::Errc::unsupported : dsv41::Errc::format));
    CHECK(failure.message == "F.json: the file." + message);
  };
  refused("/format", "dsv41-cost-table", "format is \"dsv41-cost-table\", expected \"dsv41-draft-trace\"");
  refused("/version", 2, "version is 2, expected 1");
  refused("/draft", -1, "draft is -1, expected a whole number, 0 to 1024");
  refused("/draft", 2, "steps[0].rounds[0].drafted is 3, expected a whole number, 0 to 2");
  refused("/policy", "best", "policy is \"best\", expected off, fixed:N, threshold:C, alg1 or delayed");
  refused("/policy", 1, "policy is 1, expected a text");
  refused("/steps", json::object(), "steps is {}, expected a list");
  refused("/steps/0", 1, "steps[0] is 1, expected an object");
  refused("/note", "x", "\"note\" is \"x\", expected no such key");
  refused("/steps/1/note", "x", "steps[1].\"note\" is \"x\", expected no such key");
  refused("/steps/0/rounds/1/note", "x", "steps[0].rounds[1].\"note\" is \"x\", expected no such key");
  refused("/steps/0/requests", 3, "steps[0].requests is 3, expected a whole number, 2 to 2");
  refused("/steps/0/rows", 6, "steps[0].rows is 6, expected a whole number, 5 to 5");
  refused("/steps/1/prompt_rows", 1.5, "steps[1].prompt_rows is 1.5, expected a whole number, 0 to 1099511627776");
  refused("/steps/0/budget", 2, "steps[0].budget is 2, expected a whole number, 3 to 1099511627776");
  refused("/steps/0/drafting", 1, "steps[0].drafting is 1, expected true or false");
  refused("/steps/0/draft_ms", -1, "steps[0].draft_ms is -1, expected a number of at least 0");
  refused("/steps/0/step_ms", nullptr, "steps[0].step_ms is null, expected a number of at least 0");
  refused("/steps/0/undrafted_tokens_per_ms", "1",
          "steps[0].undrafted_tokens_per_ms is \"1\", expected a number of at least 0");
  refused("/steps/0/tokens_per_ms/1", nullptr, "steps[0].tokens_per_ms[1] is null, expected a number of at least 0");
  refused("/steps/0/stopped", "tired",
          "steps[0].stopped is \"tired\", expected by_policy, next_is_no_better, best_of_all, no_more_drafts or "
          "draft_limit");
  refused("/steps/0/rounds/0/request", -1,
          "steps[0].rounds[0].request is -1, expected a whole number, 0 to 1099511627776");
  refused("/steps/0/rounds/0/anchor", UINT64_MAX,
          "steps[0].rounds[0].anchor is 18446744073709551615, expected a whole number, 0 to 1099511627776");
  refused("/steps/0/rounds/0/verified", 4, "steps[0].rounds[0].verified is 4, expected a whole number, 0 to 3");
  refused("/steps/0/rounds/0/accepted", 3, "steps[0].rounds[0].accepted is 3, expected a whole number, 0 to 2");
  refused("/steps/0/rounds/0/emitted", 3, "steps[0].rounds[0].emitted is 3, expected a whole number, 0 to 2");
  refused("/steps/0/rounds/0/confidences/1", 1.5, "steps[0].rounds[0].confidences[1] is 1.5, expected null or 0 to 1");
  refused("/steps/0/rounds/0/confidences", json::array({0.5}),
          "steps[0].rounds[0].confidences is [0.5], expected 3 values (draft)");

  const auto broken = [](const std::string& text, const std::string& message) {
    const Failure failure = failure_of([&] { DraftTrace::parse(text, "F.json"); });
    CHECK(failure.code == dsv41::Errc::format);
    CHECK(failure.message.rfind("F.json: " + message, 0) == 0);
  };
  for (const auto& [key, value] : good.items()) {
    json file = good;
    file.erase(key);
    broken(file.dump(), "the file has no key \"" + key + "\"");
  }
  broken("", "is not JSON: ");
  broken(good.dump() + "x", "is not JSON: ");
  broken(good.dump() + '\0' + "x", "has a NUL byte");
  broken(std::string(60000, '['), "nests deeper than 32 levels");
  broken(R"({"format": )" + std::string(60000, '[') + std::string(60000, ']') + "}", "nests deeper than 32 levels");
  broken("[]", "the file is [], expected an object");
  broken(R"({"format": "dsv41-draft-trace", "version": 1, "version": 1})",
         "has the name \"version\" twice in an object");
}

TEST_CASE("07_drafts counts what became of drafts, by position and by load", "[numbered]") {
  const TempFolder folder;
  const std::string one = folder.write("one.json", small_trace().json()),
                    two =
                        folder.write("<two>.json", small_trace({.kind = DraftPolicy::Kind::fixed, .drafts = 3}).json());
  const Run run = run_program(drafts_program().c_str(), {one, two});
  CHECK(run.status == 0);
  // First drafts: three verified and accepted, promised 3/4, 1 and 1/2. Second ones: two, promised 3/8 and 1/4, one accepted; both reached.
  const std::string table =
      "draft  verified  accepted  promised  reached  accepted  confidence\n"
      "    1         3     1.000     0.750        3     1.000       0.750\n"
      "    2         2     0.500     0.312        2     0.500       0.500\n"
      "    3         1     1.000     0.125        1     1.000       0.500\n"
      "requests  steps  verified by each\n"
      "       1      1             3.000\n"
      "       2      1             1.500\n";
  CHECK(run.err == one + ", delayed\n" + table + two + ", fixed:3\n" + table);
  CHECK(run.out.rfind("<svg", 0) == 0);
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (std::size_t at = run.out.find(part); at != run.out.npos; at = run.out.find(part, at + 1)) ++n;
    return n;
  };
  CHECK(count("<polyline") == 6);
  CHECK(count("<circle") == 2 * (3 + 3 + 2));
  CHECK(count("stroke-dasharray") == 2 * 2);  // a line and its name
  CHECK(count("&lt;two&gt;.json, fixed:3</text>") == 2);
  CHECK(count("nan") == 0);
}

TEST_CASE("07_drafts draws a model without confidences, a policy that drafts nothing, and where drafts are not reached",
          "[numbered]") {
  const TempFolder folder;
  json file = json::parse(small_trace().json());
  for (json& step : file["steps"]) {
    for (json& round : step["rounds"])
      round["confidences"] = json::array({nullptr, nullptr, nullptr}), round["accepted"] = 0, round["emitted"] = 1;
  }
  const std::string dumb = folder.write("dumb.json", file.dump());
  for (json& step : file["steps"]) {
    for (json& round : step["rounds"]) round["verified"] = 0;
    step["rows"] = step["prompt_rows"].get<int>() + step["requests"].get<int>();
  }
  const std::string off = folder.write("off.json", file.dump());
  const Run run = run_program(drafts_program().c_str(), {dumb, off});
  CHECK(run.status == 0);
  CHECK(run.out.find("nan") == run.out.npos);
  CHECK(run.says("    2         2     0.000"));
  CHECK(run.says("        0\n"));
  CHECK(run.says(off + ", delayed\ndraft  verified  accepted  promised  reached  accepted  confidence\nrequests"));
}

TEST_CASE("07_drafts says which file is wrong", "[numbered]") {
  const TempFolder folder;
  const std::string good = folder.write("good.json", small_trace().json()), bad = folder.write("bad.json", "{}"),
                    idle = folder.write("idle.json", DraftTrace(5, {}).json());
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const Run run = run_program(drafts_program().c_str(), arguments);
    CHECK(run.refused("07_drafts"));
    CHECK(run.err == "07_drafts: " + message + "\n");
    CHECK(run.out.empty());
  };
  refused({good, bad}, bad + ": the file has no key \"format\"");
  refused({good, "/nowhere.json"}, "trace: /nowhere.json: cannot be read: No such file or directory");
  refused({idle}, idle + ": has no step in which a request decoded");
  refused(std::vector<std::string>(7, good), "7 traces, expected at most 6");
}

TEST_CASE("07_drafts whose chart is lost does not succeed", "[numbered]") {
  const TempFolder folder;
  Streams streams;
  streams.open(1, "/dev/full");
  streams.open(2, folder.write("err", "").string());
  const std::string trace = folder.write("trace.json", small_trace().json());
  CHECK(wait_for(streams.start({trace}, drafts_program().c_str())) == 2);
  CHECK(read_file(folder / "err").find("07_drafts: standard output: No space left on device\n") != std::string::npos);
}

TEST_CASE("07_drafts without arguments draws the demo under every load", "[numbered]") {
  const Run run = run_program(drafts_program().c_str(), {});
  CHECK(run.status == 0);
  CHECK(run.err.rfind("demo, delayed\n", 0) == 0);
  for (const char* row : {"\n    1  ", "\n    2  ", "\n       1  ", "\n       2  ", "\n       3  ", "\n       4  "})
    CHECK(run.says(row));
  CHECK(run.out.find("demo, delayed</text>") != run.out.npos);
  CHECK(run.out.find("nan") == run.out.npos);
}

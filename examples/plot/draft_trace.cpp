// SPDX-License-Identifier: MIT
#include "draft_trace.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "dsv41/core/error.hpp"

namespace dsv41::plot {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "dsv41-draft-trace";
constexpr int kMaxDepth = 32;  // a trace nests six levels; messages print by recursion
constexpr std::int64_t kVersion = 1, kMostDrafts = 1024, kMost = 1ll << 40;  // bounds what a file makes us allocate
constexpr std::array<std::string_view, 5> kStopped = {                       // by StepPlan::Stopped
    "by_policy", "next_is_no_better", "best_of_all", "no_more_drafts", "draft_limit"};

ordered_json step_json(const DraftTrace::Step& step) {
  ordered_json rounds = ordered_json::array();
  for (const DraftTrace::Round& r : step.rounds) {
    ordered_json round = {{"request", r.request},   {"anchor", r.anchor},     {"drafted", r.drafted},
                          {"verified", r.verified}, {"accepted", r.accepted}, {"emitted", r.emitted}};
    round["confidences"] = r.confidences;  // NaN becomes null
    rounds.push_back(std::move(round));
  }
  ordered_json out = {{"requests", step.rounds.size()}, {"rows", step.rows},         {"prompt_rows", step.prompt_rows},
                      {"drafting", step.drafting},      {"draft_ms", step.draft_ms}, {"step_ms", step.step_ms},
                      {"budget", step.budget}};
  out["stopped"] = kStopped[static_cast<std::size_t>(step.stopped)];
  out["undrafted_tokens_per_ms"] = step.undrafted_tokens_per_ms;
  out["tokens_per_ms"] = step.tokens_per_ms;
  out["rounds"] = std::move(rounds);
  return out;
}

/// A value of the file, and where it stands.
class Value {
 public:
  Value(const json& value, std::string place) : value_(value), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& expected, Errc code = Errc::format) const {
    std::string shown = value_.dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > 40) shown = shown.substr(0, 40) + "...";
    throw Error(code, place_ + " is " + shown + ", expected " + expected);
  }

  Value at(const char* key) const {
    if (!value_.is_object()) fail("an object");
    const auto found = value_.find(key);
    if (found == value_.end()) throw Error(Errc::format, place_ + " has no key \"" + key + "\"");
    return {*found, place_ + "." + key};
  }

  /// Refuses keys that are none of these.
  void expect_keys(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : value_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        Value(value, place_ + "." + json(key).dump(-1, ' ', true, json::error_handler_t::replace)).fail("no such key");
    }
  }

  std::int64_t whole(std::int64_t least, std::int64_t most) const {
    const bool fits = value_.is_number_integer() &&
                      (!value_.is_number_unsigned() || value_.get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
    if (!fits || value_.get<std::int64_t>() < least || value_.get<std::int64_t>() > most)
      fail("a whole number, " + std::to_string(least) + " to " + std::to_string(most));
    return value_.get<std::int64_t>();
  }

  double number() const {
    if (!value_.is_number() || !(value_.get<double>() >= 0) || !std::isfinite(value_.get<double>()))
      fail("a number of at least 0");
    return value_.get<double>();
  }

  float confidence() const {
    if (value_.is_null()) return std::numeric_limits<float>::quiet_NaN();
    if (!value_.is_number() || !(value_.get<double>() >= 0 && value_.get<double>() <= 1)) fail("null or 0 to 1");
    return value_.get<float>();
  }

  bool flag() const {
    if (!value_.is_boolean()) fail("true or false");
    return value_.get<bool>();
  }

  const std::string& text() const {
    if (!value_.is_string()) fail("a text");
    return value_.get_ref<const std::string&>();
  }

  template <class F>
  void each(F&& use) const {
    if (!value_.is_array()) fail("a list");
    for (std::size_t i = 0; i < value_.size(); ++i) use(Value(value_[i], place_ + "[" + std::to_string(i) + "]"));
  }

 private:
  const json& value_;
  std::string place_;
};

DraftTrace::Round read_round(const Value& v, std::int64_t draft) {
  DraftTrace::Round r;
  r.request = v.at("request").whole(0, kMost);
  r.anchor = v.at("anchor").whole(0, kMost);
  r.drafted = static_cast<std::int32_t>(v.at("drafted").whole(0, draft));
  r.verified = static_cast<std::int32_t>(v.at("verified").whole(0, r.drafted));
  r.accepted = static_cast<std::int32_t>(v.at("accepted").whole(0, r.verified));
  r.emitted = static_cast<std::int32_t>(v.at("emitted").whole(0, r.accepted + 1));
  v.at("confidences").each([&](const Value& c) { r.confidences.push_back(c.confidence()); });
  if (std::ssize(r.confidences) != draft) v.at("confidences").fail(std::to_string(draft) + " values (draft)");
  v.expect_keys({"request", "anchor", "drafted", "verified", "accepted", "emitted", "confidences"});
  return r;
}

DraftTrace::Step read_step(const Value& v, std::int64_t draft) {
  DraftTrace::Step step;
  std::int64_t rows = step.prompt_rows = v.at("prompt_rows").whole(0, kMost), verified = 0;
  v.at("rounds").each([&](const Value& round) {
    step.rounds.push_back(read_round(round, draft));
    verified += step.rounds.back().verified;
  });
  v.at("requests").whole(std::ssize(step.rounds), std::ssize(step.rounds));
  rows += std::ssize(step.rounds) + verified;
  step.rows = v.at("rows").whole(rows, rows);
  step.budget = v.at("budget").whole(verified, kMost);
  step.drafting = v.at("drafting").flag();
  step.draft_ms = v.at("draft_ms").number();
  step.step_ms = v.at("step_ms").number();
  step.undrafted_tokens_per_ms = v.at("undrafted_tokens_per_ms").number();
  v.at("tokens_per_ms").each([&](const Value& t) { step.tokens_per_ms.push_back(t.number()); });
  const Value stopped = v.at("stopped");
  const auto name = std::find(kStopped.begin(), kStopped.end(), stopped.text());
  if (name == kStopped.end()) stopped.fail("by_policy, next_is_no_better, best_of_all, no_more_drafts or draft_limit");
  step.stopped = static_cast<StepPlan::Stopped>(name - kStopped.begin());
  v.expect_keys({"requests", "rows", "prompt_rows", "drafting", "draft_ms", "step_ms", "budget", "stopped",
                 "undrafted_tokens_per_ms", "tokens_per_ms", "rounds"});
  return step;
}

/// The parser alone would take the last of two values of one name, a NUL byte for the end, and any depth.
json parse_once(std::string_view text, const std::string& origin) {
  if (text.find('\0') != text.npos) throw Error(Errc::format, origin + ": has a NUL byte");
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth)
      throw Error(Errc::format, origin + ": nests deeper than " + std::to_string(kMaxDepth) + " levels");
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second)
      throw Error(Errc::format, origin + ": has the name " + value.dump() + " twice in an object");
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& e) {
    throw Error(Errc::format, origin + ": is not JSON: " + e.what());
  }
}

}  // namespace

std::string policy_text(const DraftPolicy& policy) {
  switch (policy.kind) {
    case DraftPolicy::Kind::off: break;
    case DraftPolicy::Kind::fixed: return "fixed:" + std::to_string(policy.drafts);
    case DraftPolicy::Kind::threshold: {
      char digits[32];
      return "threshold:" + std::string(digits, std::to_chars(digits, std::end(digits), policy.threshold).ptr);
    }
    case DraftPolicy::Kind::early_stop: return "alg1";
    case DraftPolicy::Kind::delayed: return "delayed";
  }
  return "off";
}

void DraftTrace::add(const runtime::StepReport& report) {
  Step step{.rows = report.rows,
            .prompt_rows = report.prompt_rows,
            .drafting = report.drafting,
            .draft_ms = report.draft_ms,
            .step_ms = report.step_ms,
            .budget = report.plan.budget,
            .stopped = report.plan.stopped,
            .undrafted_tokens_per_ms = report.plan.undrafted_tokens_per_ms};
  for (const StepPlan::Prefix& prefix : report.plan.prefixes) step.tokens_per_ms.push_back(prefix.tokens_per_ms);
  const std::span<const float> confidences = report.confidences;
  const auto draft = static_cast<std::size_t>(draft_);
  for (std::size_t i = 0; i < report.rounds.size(); ++i) {
    const auto own = confidences.subspan(i * draft, draft);
    step.rounds.push_back({report.rounds[i], {own.begin(), own.end()}});
  }
  steps_.push_back(std::move(step));
}

std::string DraftTrace::json() const {
  ordered_json head;
  head["format"] = kFormat;
  head["version"] = kVersion;
  head["draft"] = draft_;
  head["policy"] = policy_text(policy_);
  std::string text = head.dump();
  text.back() = ',';
  text += "\"steps\":[";
  for (std::size_t i = 0; i < steps_.size(); ++i) text += (i == 0 ? "\n" : ",\n") + step_json(steps_[i]).dump();
  return text + "\n]}\n";
}

DraftTrace DraftTrace::parse(std::string_view text, const std::string& origin) {
  const nlohmann::json root = parse_once(text, origin);
  const Value file(root, origin + ": the file");
  // The format first: of a file of another kind, its keys say nothing.
  if (const Value format = file.at("format"); format.text() != kFormat) format.fail('"' + std::string(kFormat) + '"');
  if (const Value v = file.at("version"); v.whole(0, kMost) != kVersion) v.fail("1", Errc::unsupported);
  file.expect_keys({"format", "version", "draft", "policy", "steps"});
  const Value policy = file.at("policy");
  const auto read_policy = [&] {
    try {
      return parse_draft_policy(policy.text());
    } catch (const Error& e) {
      if (e.code() != Errc::invalid_argument) throw;
      policy.fail("off, fixed:N, threshold:C, alg1 or delayed");
    }
  };
  DraftTrace trace(file.at("draft").whole(0, kMostDrafts), read_policy());
  file.at("steps").each([&](const Value& step) { trace.steps_.push_back(read_step(step, trace.draft_)); });
  return trace;
}

}  // namespace dsv41::plot

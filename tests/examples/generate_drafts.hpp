// SPDX-License-Identifier: MIT
//
// What tests of generate with drafts and with batches share: runs that must succeed, their figures, the lines of a batch put together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "dsv41/runtime/cost_table_file.hpp"
#include "run_generate.hpp"

namespace dsv41::test {

using Words = std::vector<std::string>;
using nlohmann::json;

inline const std::string kRandom = golden("01-all-mechanisms");  // has a drafter, whose drafts are hardly ever right

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Output of a run that must succeed.
inline std::string out(const Words& arguments, const std::string& input = "") {
  const Run run = generate(arguments, input);
  INFO(run.err);
  REQUIRE(run.status == 0);
  return run.out;
}

struct Told {
  std::string out;
  json stats;
};

inline Told told(const Words& arguments) {
  const TempFolder folder;
  const std::string stats = (folder / "stats").string();
  std::string text = out(arguments + Words{"--stats", stats});
  return {std::move(text), json::parse(read_file(stats))};
}

/// A cost table in a file. `row_ms`: what a row adds to a step of 10 ms; drafting costs 2 ms.
inline std::string costs_file(const TempFolder& folder, double row_ms) {
  const std::string path = (folder / "costs").string();
  runtime::save_cost_table(path, CostTable({{1, 10}, {64, 10 + 63 * row_ms}}, 0, {{1, 2}}));
  return path;
}

/// Logit 0 for the end-of-sequence token: it is never the largest.
inline void never_stop(ModelCopy& model) {
  model.edit_weights([](auto& tensors) {
    RawTensor& head = named(tensors, "head.weight");
    const std::size_t row = head.bytes.size() / static_cast<std::size_t>(head.shape[0]);
    std::fill_n(head.bytes.begin() + static_cast<std::ptrdiff_t>(row), row, '\0');
  });
}

/// What --batch wrote of one request.
struct Answer {
  std::string pieces;             ///< of the text
  std::vector<std::int64_t> ids;  ///< of the pieces that are ids
  json end;
};

inline std::map<std::string, Answer> answers(const std::string& lines, std::size_t parallel = 4096) {
  std::map<std::string, Answer> out;
  std::set<std::string> running;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const json object = json::parse(line);
    const std::string id = object["id"].dump();
    Answer& answer = out[id];
    CHECK(answer.end.is_null());  // nothing comes behind the end
    if (object.contains("finish")) {
      answer.end = object;
      running.erase(id);
      continue;
    }
    running.insert(id);
    CHECK(running.size() <= parallel);
    if (object.contains("text")) answer.pieces += object["text"].get<std::string>();
    if (object.contains("tokens")) {
      for (const json& token : object["tokens"]) answer.ids.push_back(token);
    }
  }
  for (const auto& [id, answer] : out) {
    INFO("request " << id);
    REQUIRE(answer.end.is_object());
    if (answer.end.contains("text")) CHECK(answer.end["text"] == answer.pieces);
    if (answer.end.contains("tokens")) {
      CHECK(answer.end["tokens"] == answer.ids);
      CHECK(answer.end["count"] == answer.ids.size());
    }
  }
  return out;
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// A cost table as a file: every table comes back, and whatever is no such file is refused with its place, expected and found.
#include "dsv41/runtime/cost_table_file.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"
#include "support/temp_folder.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::cost_table_json;
using runtime::parse_cost_table;

namespace {

const std::string kText = R"({
  "format": "dsv41-cost-table",
  "version": 1,
  "graph_limit": 8,
  "verify": [
    [1, 10.0],
    [2, 9.5]
  ],
  "draft": [
    [1, 0.1]
  ]
}
)";

/// kText with one part replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kText;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

Failure refused(const std::string& text) {
  return failure_of([&] { parse_cost_table(text, "costs.json"); });
}

std::vector<CostPoint> points(const CostCurve& curve) {
  return {curve.points().begin(), curve.points().end()};
}

}  // namespace

TEST_CASE("a cost table's text is one point a line and reads back") {
  const CostTable table({{1, 10}, {2, 9.5}}, 8, {{1, .1}});
  CHECK(cost_table_json(table) == kText);
  const CostTable back = parse_cost_table(kText, "costs.json");
  CHECK(points(back.verify()) == points(table.verify()));
  CHECK(points(back.draft()) == points(table.draft()));
  CHECK(back.verify().graph_limit() == 8);
  CHECK(back.verify_ms(2) == 10.0);
}

TEST_CASE("saved and loaded, every time is the same bits") {
  const TempFolder folder;
  Random random(81);
  for (int i = 0; i < 50; ++i) {
    std::vector<CostPoint> verify, draft;
    for (std::int64_t p = 1; p <= 20; ++p) {
      verify.push_back(
          {p * (1 + random.below(3)) + 100 * p, std::ldexp(static_cast<double>(random.bits() >> 11), -40)});
      draft.push_back(
          {p, std::ldexp(static_cast<double>(random.bits() >> 11), static_cast<int>(random.below(200)) - 150)});
    }
    const CostTable table(verify, random.below(3000), draft);
    runtime::save_cost_table(folder / "costs.json", table);
    const CostTable back = runtime::load_cost_table(folder / "costs.json");
    REQUIRE(points(back.verify()) == verify);
    REQUIRE(points(back.draft()) == draft);
    REQUIRE(back.verify().graph_limit() == table.verify().graph_limit());
  }
}

TEST_CASE("files that are no cost table are refused: key, expected, found, origin") {
  const struct {
    const char *from, *to, *says;
  } cases[] = {
      {"\"dsv41-cost-table\"", "\"safetensors\"",
       "costs.json: format is \"safetensors\", expected \"dsv41-cost-table\""},
      {"\"dsv41-cost-table\"", "1", "format is 1"},
      {"\"format\"", "\"Format\"", "has no key \"format\""},
      {"\"version\": 1", "\"version\": \"1\"", "version is \"1\", expected a whole number"},
      {"\"version\": 1", "\"version\": 1.0", "version is 1.0, expected a whole number"},
      {"\"version\"", "\"versions\"", "has no key \"version\""},
      {"\"graph_limit\": 8", "\"graph_limit\": null", "graph_limit is null, expected a whole number"},
      {"\"graph_limit\": 8", "\"graph_limit\": -1", "graph limit is -1, expected at least 0"},
      {"\"graph_limit\": 8", "\"graph_limit\": 18446744073709551615", "graph_limit is 18446744073709551615"},
      {"\"graph_limit\": 8,", "\"graph_limit\": 8, \"note\": \"x\",", "key \"note\" is \"x\", expected none"},
      {"\"graph_limit\": 8,", "\"graph_limit\": 8, \"graph_limit\": 8,", "occurs twice"},
      {"[1, 10.0]", "[1, 10.0, 3]", "verify[0] is [1,10.0,3], expected [size, ms]"},
      {"[1, 10.0]", "1", "verify[0] is 1, expected [size, ms]"},
      {"[2, 9.5]", "[2, \"9.5\"]", "verify[1][1] is \"9.5\", expected a number of ms"},
      {"[2, 9.5]", "[2.5, 9.5]", "verify[1][0] is 2.5, expected a whole number"},
      {"[2, 9.5]", "[1, 9.5]", "costs.json: cost table: verify: point 1: size is 1, expected 2 to"},
      {"[2, 9.5]", "[99999999999999, 9.5]", "point 1: size is 99999999999999"},
      {"[2, 9.5]", "[2, -9.5]", "point 1: time is -9.5"},
      {"[2, 9.5]", "[2, 1e999]", "not JSON"},
      {"[2, 9.5]", "[2, NaN]", "not JSON"},
      {"\"draft\": [\n    [1, 0.1]\n  ]", "\"draft\": {}", "draft is {}, expected a list"},
      {"\"draft\": [\n    [1, 0.1]\n  ]", "\"draft\": []", "draft: no points"},
      {"]\n}", "]", "not JSON"},
      {"]\n}", "]\n} x", "not JSON"},
  };
  for (const auto& c : cases) {
    const Failure failure = refused(with(c.from, c.to));
    CAPTURE(c.to, failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says(c.says));
    CHECK(failure.says("costs.json: "));
  }
  for (const char* text : {"", "[]", "null", "7", "\"x\"", "{", "{}"}) CHECK(refused(text).code == Errc::format);
  CHECK(refused(std::string("{}\0", 3)).says("a NUL byte"));
  CHECK(refused("[]").says("the file is [], expected an object"));
}

TEST_CASE("another version is unsupported, not malformed") {
  const Failure failure = refused(with("\"version\": 1", "\"version\": 2"));
  CHECK(failure.code == Errc::unsupported);
  CHECK(failure.says("costs.json: version is 2, expected 1"));
  // Whatever else it holds: keys of a later version are no fault.
  CHECK(refused(with("\"version\": 1", "\"version\": 2, \"later\": 3")).code == Errc::unsupported);
}

TEST_CASE("large, deep and random files end in an error") {
  std::string many;
  for (int i = 1; i <= 4097; ++i) many += (i == 1 ? "[" : ",[") + std::to_string(i) + ",1]";
  CHECK(refused(with("[1, 0.1]", many)).says("draft has 4097 points, expected at most 4096"));
  CHECK(refused(with("[1, 10.0]", std::string(5000, '['))).code == Errc::format);

  Random random(82);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = kText;
    for (std::int64_t edits = 1 + random.below(4); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(text.size())));
      if (random.below(2) == 0) {
        text[at] = static_cast<char>(random.below(256));
      } else {
        text.erase(at, 1 + static_cast<std::size_t>(random.below(5)));
      }
    }
    const Failure failure = refused(text);  // any other exception fails the test
    accepted += failure.code == Errc::ok;
    if (failure.code != Errc::ok && failure.code != Errc::unsupported) REQUIRE(failure.code == Errc::format);
  }
  CHECK(accepted < 1500);
}

TEST_CASE("files that are missing, too large or cannot be written") {
  const TempFolder folder;
  CHECK(failure_of([&] { runtime::load_cost_table(folder / "none.json"); }).code == Errc::io);
  folder.write("large.json", std::string((1 << 20) + 1, ' '));
  CHECK(failure_of([&] { runtime::load_cost_table(folder / "large.json"); }).code == Errc::format);
  folder.write("bad.json", "{");
  CHECK(failure_of([&] { runtime::load_cost_table(folder / "bad.json"); }).says((folder / "bad.json").string()));

  const CostTable table({{1, 1}}, 1, {{1, 1}});
  CHECK(failure_of([&] { runtime::save_cost_table(folder / "no/costs.json", table); }).code == Errc::io);
  std::vector<CostPoint> many;
  for (std::int64_t i = 1; i <= 4097; ++i) many.push_back({i, 1});
  CHECK(failure_of([&] {
          runtime::save_cost_table(folder / "many.json", CostTable(many, 1, {{1, 1}}));
        }).says("4097 points"));
}

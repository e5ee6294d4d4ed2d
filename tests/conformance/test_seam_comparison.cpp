// SPDX-License-Identifier: MIT
//
// The comparer of the kit: what must fail does, what is legitimate passes. test_compare.py says the same of compare.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/seam_comparison.hpp"
#include "support/temp_folder.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr double inf = HUGE_VAL;

/// A made case of the kit.
class Case {
 public:
  /// The first fault when an engine gives these values instead of the expected ones.
  std::string fault(const SeamValues& instead = {}, const std::string& without = "") {
    return compare(instead, without).fault();
  }

  const std::vector<double>& expected(const std::string& name) const {
    return std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; })->values;
  }

  SeamComparison compare(const SeamValues& instead, const std::string& without = "") {
    std::vector<runtime::TensorSource> sources;
    for (const Tensor& t : tensors_)
      sources.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .data = t.bytes});
    runtime::write_safetensors(folder_ / "seams.safetensors", sources);
    files_.push_back(runtime::SafetensorsFile::open(folder_ / "seams.safetensors"));
    SeamValues actual = instead;
    for (const Tensor& t : tensors_) {
      if (SeamComparison::compared(t.name)) actual.emplace(t.name, t.values);
    }
    actual.erase(without);
    return SeamComparison(files_.back(), actual);
  }

 protected:
  void limits(double excluded) {
    put<double>("limits.module", {1}, {1e-5});
    put<double>("limits.logits", {1}, {1e-4});
    put<double>("limits.decision", {1}, {2e-5});
    put<double>("limits.excluded", {1}, {excluded});
  }

  template <class T>
  void put(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<double>& values) {
    using runtime::DType;
    const DType dtype = std::is_same_v<T, double>         ? DType::f64
                        : std::is_same_v<T, float>        ? DType::f32
                        : std::is_same_v<T, std::int64_t> ? DType::i64
                                                          : DType::boolean;
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T v = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &v, sizeof(T));
    }
    tensors_.push_back({name, dtype, shape, values, bytes});
  }

 private:
  struct Tensor {
    std::string name;
    runtime::DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<double> values;
    std::vector<std::byte> bytes;
  };

  TempFolder folder_;
  std::vector<Tensor> tensors_;
  std::list<runtime::SafetensorsFile> files_;
};

/// Six tokens, two layers of ratio 2 and window 2 that share entries and selection, three experts, a vocabulary of three. test_compare.py
/// has the same cases.
struct SmallCase : Case {
  explicit SmallCase(double excluded = 0.6) {
    put<std::int64_t>("prompt.tokens", {6}, {0, 1, 2, 0, 1, 2});
    put<std::int64_t>("schedule.ratios", {2}, {2, 2});
    put<std::int64_t>("schedule.kv_source", {2}, {0, 0});
    put<std::int64_t>("schedule.index_source", {2}, {0, 0});
    put<std::int64_t>("schedule.window", {1}, {2});
    put<std::int64_t>("schedule.candidates", {2}, {-1, 2});
    limits(excluded);
    put<float>("layers.0.attn.window_kv", {6, 1}, {1, 2, 3, 4, 5, 6});  // steps of 1; row 2 was nearly 2.5
    put<double>("judge.layers.0.attn.window_kv", {6, 1}, {1, 2, 2.50001, 4, 5, 6});
    put<float>("layers.0.attn.entries", {3, 2}, {1, 2, 3, 4, 5, 6});  // row 1 was nearly 3.5
    put<double>("judge.layers.0.attn.entries", {3, 2}, {1.2, 2, 3, 3.50001, 5, 6});
    put<float>("layers.0.attn.index_keys", {3, 1}, {1, 4, 1});  // steps of 2; row 1 was nearly 3
    put<double>("judge.layers.0.attn.index_keys", {3, 1}, {1, 3.00001, 1});
    put<float>("layers.0.attn.index_q", {6, 1}, {1, 1, 1, 1, 1, 2});  // steps of 1; row 5 was nearly 1.5
    put<double>("judge.layers.0.attn.index_q", {6, 1}, {1, 1, 1, 1, 1, 1.50001});
    put<float>("layers.0.attn.index_scores", {6, 3},
               {-inf, -inf, -inf, 1, -inf, -inf, 1, -inf, -inf, 1, 1.00001, -inf, 3, 1, -inf, 1, 2, 1});
    put<std::uint8_t>("layers.0.attn.chosen", {6, 3}, {0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0});
    put<double>("judge.layers.0.attn.chosen", {6, 3},
                {-inf, -inf, -inf, 1, -inf, -inf, 1, -inf, -inf, 1, 1.00001, -inf, 3, 1, -inf, 1, 2, 1});
    put<float>("layers.0.attn_out", {6, 1}, {1, 2, 3, 4, 5, 6});
    put<std::int64_t>("layers.0.ffn.expert_ids", {6, 2}, {0, 1, 2, 1, 2, 0, 0, 1, 0, 1, 1, 0});
    put<double>("judge.layers.0.ffn.expert_ids", {6, 3},  // a near-tie in row 1, an exact tie in row 3
                {3, 2, 1, 1, 2.99999, 3, 2, 1, 3, 3, 2, 2, 3, 2, 1, 2, 3, 1});
    put<float>("layers.0.ffn_out", {6, 1}, {1, 2, 3, 4, 5, 6});
    put<float>("layers.1.attn_in", {6, 1}, {1, 2, 3, 4, 5, 6});
    put<float>("layers.1.attn_out", {6, 1}, {1, 2, 3, 4, 5, 6});
    const std::vector<double> logits = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 2, 0, 1, 2, 0, 2, 1};
    put<float>("logits", {6, 3}, logits);
    put<double>("judge.logits", {6, 3}, logits);
    put<std::int64_t>("greedy", {2}, {1, 2});
    put<double>("judge.greedy", {2, 3}, {0, 2, 2, 0, 1.99999, 2});
  }
};

/// Three tokens, two layers of ratio 1 and window 1; the second chooses one entry behind the candidates of the first, two blocks of one.
struct CandidateCase : Case {
  CandidateCase() {
    put<std::int64_t>("prompt.tokens", {3}, {0, 1, 2});
    put<std::int64_t>("schedule.ratios", {2}, {1, 1});
    put<std::int64_t>("schedule.kv_source", {2}, {0, 0});
    put<std::int64_t>("schedule.index_source", {2}, {0, 1});
    put<std::int64_t>("schedule.window", {1}, {1});
    put<std::int64_t>("schedule.candidates", {2}, {0, 1});
    limits(1);
    put<float>("layers.0.attn.index_keys", {3, 1}, {2, 1, 4});  // steps of 2; rows 0 and 2 lay between
    put<double>("judge.layers.0.attn.index_keys", {3, 1}, {1.00001, 1, 3.00001});
    put<std::uint8_t>("layers.0.attn.candidates", {3, 3}, {1, 0, 0, 1, 1, 0, 0, 1, 1});  // a near-tie in row 2
    put<double>("judge.layers.0.attn.candidates", {3, 3}, {inf, -inf, -inf, 1, inf, -inf, 1, 1.00001, inf});
    put<std::uint8_t>("layers.0.attn.chosen", {3, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1});
    put<double>("judge.layers.0.attn.chosen", {3, 3}, {5, -inf, -inf, 1, 2, -inf, 1, 1.00001, 3});
    put<float>("layers.0.attn_out", {3, 1}, {1, 2, 3});
    put<float>("layers.1.attn.index_scores", {3, 3}, {5, -inf, -inf, 1, 2, -inf, -inf, 4, 3});
    put<std::uint8_t>("layers.1.attn.chosen", {3, 3}, {1, 0, 0, 0, 1, 0, 0, 1, 0});
    put<double>("judge.layers.1.attn.chosen", {3, 3}, {5, -inf, -inf, 1, 2, -inf, -inf, 4, 3});
    put<float>("layers.1.attn_out", {3, 1}, {1, 2, 3});
  }
};

/// Five tokens, window 1; behind a layer with experts one of ratio 3: two tokens wait in the open group.
struct OpenGroupCase : Case {
  OpenGroupCase() {
    put<std::int64_t>("prompt.tokens", {5}, {0, 1, 2, 0, 1});
    put<std::int64_t>("schedule.ratios", {2}, {0, 3});
    put<std::int64_t>("schedule.kv_source", {2}, {-1, 1});
    put<std::int64_t>("schedule.index_source", {2}, {-1, 1});
    put<std::int64_t>("schedule.window", {1}, {1});
    put<std::int64_t>("schedule.candidates", {2}, {-1, 1});
    limits(0.6);
    put<float>("layers.0.attn_out", {5, 1}, {1, 2, 3, 4, 5});
    put<std::int64_t>("layers.0.ffn.expert_ids", {5, 1}, {0, 0, 0, 0, 0});
    put<double>("judge.layers.0.ffn.expert_ids", {5, 2}, {1, .99999, 1, .99999, 1, .99999, 1, .99999, 1, .99999});
    put<float>("layers.1.attn.entries", {1, 1}, {1});
    put<std::uint8_t>("layers.1.attn.chosen", {5, 1}, {0, 0, 1, 1, 1});
    put<double>("judge.layers.1.attn.chosen", {5, 1}, {-inf, -inf, 1, 1, 1});
    put<float>("layers.1.attn_out", {5, 1}, {1, 2, 3, 4, 5});
    put<std::int64_t>("greedy", {2}, {1, 2});
    put<double>("judge.greedy", {2, 3}, {0, 2, 1, 0, 1, 2});
  }
};

void check_says(const std::string& fault, const std::string& part) {
  INFO(fault << ", expected: " << part);
  CHECK(fault.find(part) != std::string::npos);
}

/// The rows of the seam that an engine may fill with anything after `instead`.
std::vector<std::size_t> open_rows(Case& c, const SeamValues& instead, const std::string& name, std::size_t width = 1) {
  std::vector<std::size_t> out;
  CHECK(c.fault(instead) == "");
  for (std::size_t r = 0; r < c.expected(name).size() / width; ++r) {
    SeamValues spoiled = instead;
    std::vector<double> values = c.expected(name);
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(r * width), width, 1e3);
    spoiled[name] = values;
    if (c.fault(spoiled).empty()) out.push_back(r);
  }
  return out;
}

using RowList = std::vector<std::size_t>;
const SeamValues kOtherChoice = {  // the near-tie of row 3, the other way
    {"layers.0.attn.chosen", {0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0}}};
const SeamValues kOtherOrder = {{"layers.0.ffn.expert_ids", {0, 1, 1, 2, 2, 0, 0, 1, 0, 1, 1, 0}}};  // of row 1
const SeamValues kOtherWindow = {{"layers.0.attn.window_kv", {1, 2, 2, 4, 5, 6}}};
const SeamValues kOtherEntry = {{"layers.0.attn.entries", {1, 2, 3, 3, 5, 6}}};
const SeamValues kOtherKey = {{"layers.0.attn.index_keys", {1, 2, 1}}};
const SeamValues kOtherQuery = {{"layers.0.attn.index_q", {1, 1, 1, 1, 1, 1}}};

SeamValues with(SeamValues values, const std::string& name, const std::vector<double>& row) {
  values[name] = row;
  return values;
}

}  // namespace

TEST_CASE("the expected values conform, and small errors do") {
  SmallCase c;
  CHECK(c.fault() == "");
  CHECK(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4, 5, 6.00001}}}) == "");
}

TEST_CASE("a value that is off, missing, of another kind, not a number or unknown fails") {
  SmallCase c;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4, 5, 6.001}}}), "layers.0.ffn_out is off");
  check_says(c.fault({{"logits", {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 2, 0, 1, 2, 0, 2.01, 1}}}), "logits is off");
  CHECK(c.fault({}, "layers.0.ffn_out") == "layers.0.ffn_out is missing");
  CHECK(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4, 5, nan}}}) == "layers.0.ffn_out holds NaN");
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4, 5, HUGE_VAL}}}), "layers.0.ffn_out is off");
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3}}}), "expected 6");
  CHECK(c.fault({{"layers.0.fnn_out", {1}}}) == "layers.0.fnn_out is no seam of this case");
  for (const double flag : {0.5, 255.0, -1.0}) {
    CHECK(c.fault({{"layers.0.attn.chosen", std::vector<double>(18, flag)}}) ==
          "layers.0.attn.chosen holds a value that is no flag");
  }
  CHECK(c.fault({{"greedy", {1.5, 2}}}) == "greedy holds a value that is no id");
  CHECK(c.fault({{"greedy", {nan, 2}}}) == "greedy holds NaN");
  CHECK(c.fault({{"greedy", {HUGE_VAL, 2}}}) == "greedy holds a value that is no id");
}

TEST_CASE("a wrong decision fails, however right its values are") {
  SmallCase c;
  const auto experts = [&](std::size_t row, double first, double second) {
    std::vector<double> ids = c.expected("layers.0.ffn.expert_ids");
    ids[2 * row] = first, ids[2 * row + 1] = second;
    return c.fault({{"layers.0.ffn.expert_ids", ids}});
  };
  check_says(experts(0, 1, 0), "expert_ids decides wrongly");
  check_says(experts(0, 0, 0), "expert_ids decides wrongly");
  check_says(experts(0, 0, 7), "expert_ids decides wrongly");
  check_says(experts(3, 0, 2),
             "expert_ids decides wrongly");  // of exactly equal scores the lower index is the only right one
  const auto chosen = [&](std::size_t row, const std::vector<double>& flags) {
    std::vector<double> all = c.expected("layers.0.attn.chosen");
    std::copy(flags.begin(), flags.end(), all.begin() + static_cast<std::ptrdiff_t>(3 * row));
    return c.fault({{"layers.0.attn.chosen", all}});
  };
  check_says(chosen(2, {0, 1, 0}), "chosen decides wrongly");  // invisible
  check_says(chosen(3, {1, 1, 0}), "chosen decides wrongly");  // one more
  check_says(chosen(4, {0, 1, 0}), "chosen decides wrongly");
  check_says(c.fault({{"greedy", {0, 2}}}), "greedy differs at token 0");
  check_says(c.fault({{"greedy", {2, 2}}}), "greedy differs at token 0");  // an exact tie
  std::vector<double> logits = c.expected("logits");
  logits[11] = 2.00001;  // an exact tie
  check_says(c.fault({{"logits", logits}}), "largest value elsewhere at row 3");
}

TEST_CASE("behind a near-tie of a selection: its row, and from the next layer on the rows whose windows hold it") {
  SmallCase c;
  CHECK(c.compare(kOtherChoice).seam("layers.0.attn.chosen").near_ties == 1);
  CHECK(open_rows(c, kOtherChoice, "layers.0.attn_out") == RowList{3});
  CHECK(open_rows(c, kOtherChoice, "layers.0.ffn_out") == RowList{3});
  CHECK(open_rows(c, kOtherChoice, "layers.1.attn_in") == RowList{3});
  CHECK(open_rows(c, kOtherChoice, "layers.1.attn_out") == RowList{3, 4});
  CHECK(open_rows(c, kOtherChoice, "logits", 3) == RowList{3, 4});
  // Nothing that a later token reads.
  check_says(c.fault(with(kOtherChoice, "greedy", {0, 2})), "greedy differs at token 0");
  check_says(c.fault(with(kOtherChoice, "greedy", {1, 0})), "greedy differs at token 1");
}

TEST_CASE("behind a near-tie of experts: its row, and from the next layer on the rows whose windows hold it") {
  SmallCase c;
  CHECK(open_rows(c, kOtherOrder, "layers.0.attn_out").empty());
  CHECK(open_rows(c, kOtherOrder, "layers.0.ffn_out") == RowList{1});
  CHECK(open_rows(c, kOtherOrder, "layers.1.attn_out") == RowList{1, 2});
}

TEST_CASE("behind a code of a window row: the rows whose windows hold it") {
  SmallCase c;
  CHECK(c.compare(kOtherWindow).seam("layers.0.attn.window_kv").near_ties == 1);
  CHECK(open_rows(c, kOtherWindow, "layers.0.attn_out") == RowList{2, 3});
  CHECK(open_rows(c, kOtherWindow, "layers.1.attn_out") == RowList{2, 3, 4});
  check_says(c.fault(with(kOtherWindow, "greedy", {0, 2})), "greedy differs at token 0");
  check_says(c.fault(with(kOtherWindow, "greedy", {1, 0})), "greedy differs at token 1");
}

TEST_CASE("behind a code of an entry: the rows that read it, in every layer that does") {
  SmallCase c;
  CHECK(open_rows(c, kOtherEntry, "layers.0.attn_out") == RowList{3, 5});
  CHECK(open_rows(c, kOtherEntry, "layers.1.attn_out") == RowList{3, 4, 5});
  CHECK(c.fault(with(kOtherEntry, "greedy", {0, 2})) == "");  // the last row is one of them
  check_says(c.fault({{"layers.0.attn.entries", {2, 2, 3, 4, 5, 6}}}), "entries is off");
}

TEST_CASE("behind a code of an index key: its scores, and choices that another score of it explains") {
  SmallCase c;
  CHECK(c.fault(with(kOtherKey, "layers.0.attn.index_scores",
                     {-inf, -inf, -inf, 1, -inf, -inf, 1, -inf, -inf, 1, 9, -inf, 3, 9, -inf, 1, 9, 1})) == "");
  check_says(c.fault(with(kOtherKey, "layers.0.attn.index_scores",
                          {-inf, -inf, -inf, 1, -inf, -inf, 1, -inf, -inf, 1, 1, -inf, 3, 1, -inf, 1, 2, 9})),
             "index_scores is off");
  const auto chosen = [&](const std::vector<double>& row_4, const std::vector<double>& row_5) {
    std::vector<double> all = c.expected("layers.0.attn.chosen");
    std::copy(row_4.begin(), row_4.end(), all.begin() + 12);
    std::copy(row_5.begin(), row_5.end(), all.begin() + 15);
    return with(kOtherKey, "layers.0.attn.chosen", all);
  };
  CHECK(open_rows(c, kOtherKey, "layers.0.attn_out").empty());
  CHECK(open_rows(c, chosen({0, 1, 0}, {0, 1, 0}), "layers.0.attn_out") == RowList{4});
  CHECK(open_rows(c, chosen({1, 0, 0}, {1, 0, 0}), "layers.0.attn_out") == RowList{5});
  check_says(c.fault(chosen({1, 0, 0}, {0, 0, 1})), "chosen decides wrongly");  // entries 0 and 2 tie exactly
  check_says(c.fault(chosen({0, 0, 1}, {0, 1, 0})), "chosen decides wrongly");  // invisible
  check_says(c.fault(chosen({1, 1, 0}, {0, 1, 0})), "chosen decides wrongly");
}

TEST_CASE("behind a code of an index query: its scores, and its row where it chose otherwise") {
  SmallCase c;
  CHECK(open_rows(c, kOtherQuery, "layers.0.attn.index_scores", 3) == RowList{5});
  CHECK(open_rows(c, kOtherQuery, "layers.0.attn_out").empty());
  std::vector<double> chosen = c.expected("layers.0.attn.chosen");
  std::swap(chosen[15], chosen[16]);
  CHECK(open_rows(c, with(kOtherQuery, "layers.0.attn.chosen", chosen), "layers.0.attn_out") == RowList{5});
}

TEST_CASE("behind other candidates: its row of the layers that choose among them, and of what these choose otherwise") {
  CandidateCase c;
  const SeamValues other = {{"layers.0.attn.candidates", {1, 0, 0, 1, 1, 0, 1, 0, 1}}};
  CHECK(c.fault() == "");
  CHECK(open_rows(c, other, "layers.0.attn_out").empty());
  CHECK(open_rows(c, other, "layers.1.attn.index_scores", 3) == RowList{2});
  CHECK(open_rows(c, other, "layers.1.attn_out").empty());
  CHECK(open_rows(c, with(other, "layers.1.attn.chosen", {1, 0, 0, 0, 1, 0, 1, 0, 0}), "layers.1.attn_out") ==
        RowList{2});
}

TEST_CASE("another key explains other candidates, but never without a token's own block") {
  CandidateCase c;
  const auto candidates = [&](std::vector<double> keys, std::vector<double> row) {
    std::vector<double> all = c.expected("layers.0.attn.candidates");
    std::copy(row.begin(), row.end(), all.begin() + 6);
    return c.fault({{"layers.0.attn.index_keys", std::move(keys)}, {"layers.0.attn.candidates", all}});
  };
  CHECK(candidates({0, 1, 4}, {1, 0, 1}) == "");
  check_says(candidates({2, 1, 2}, {1, 1, 0}), "candidates decides wrongly");
  // Invisible, and nothing else to compare it with.
  check_says(c.fault({{"layers.0.attn.index_keys", {0, 1, 4}}, {"layers.0.attn.chosen", {0, 1, 0, 0, 1, 0, 0, 0, 1}}}),
             "layers.0.attn.chosen decides wrongly");
}

TEST_CASE(
    "behind a near-tie in a group: what reads its entry; in the open group: the continuation, from its second token "
    "on") {
  OpenGroupCase c;
  const auto other = [](std::size_t row) {
    std::vector<double> ids(5);
    ids[row] = 1;
    return SeamValues{{"layers.0.ffn.expert_ids", ids}};
  };
  CHECK(c.fault() == "");
  CHECK(open_rows(c, other(3), "layers.1.attn_out") == RowList{3});
  CHECK(c.fault(with(other(3), "greedy", {1, 0})) == "");
  check_says(c.fault(with(other(3), "greedy", {0, 2})), "greedy differs at token 0");
  check_says(c.fault({{"greedy", {1, 0}}}), "greedy differs at token 1");
  // Its one entry lies behind row 2, and half of the rows read it.
  check_says(c.fault(other(2)), "layers.1.attn.entries has 1 of 1 rows behind near-ties");
}

TEST_CASE("a greedy token may be a near-tie; the text behind it is another") {
  SmallCase c;
  CHECK(c.fault({{"greedy", {1, 1}}}) == "");
  check_says(c.fault({{"greedy", {1, 0}}}), "greedy differs at token 1");
}

TEST_CASE("no seam may lie behind near-ties by more than its share") {
  SmallCase strict(0.3);
  CHECK(strict.fault({{"greedy", {1, 1}}}) == "");
  check_says(strict.fault(kOtherChoice), "layers.1.attn_out has 2 of 6 rows behind near-ties");
}

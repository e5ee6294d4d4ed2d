// SPDX-License-Identifier: MIT
//
// Values of an engine against a case of the conformance kit, seam by seam in forward order. The rules are those of docs/conformance.md;
// tests/golden/compare.py applies the same ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/runtime/safetensors.hpp"
#include "golden.hpp"

namespace dsv41::test {

/// What an engine computed, by the names of seams.safetensors; rows in order, whatever the steps were.
using SeamValues = std::map<std::string, std::vector<double>>;

/// One compared seam.
struct Seam {
  std::string name;
  double error = 0;           ///< relative norm; of decisions: rows that are wrong
  double tolerance = 0;       ///< 0: a decision
  std::size_t decisions = 0;  ///< rows that decide something
  std::size_t near_ties = 0;  ///< rows that decide otherwise, legitimately
  std::size_t rows = 0;       ///< compared
  std::size_t excluded = 0;   ///< behind a near-tie, not compared
  std::string fault;
};

class SeamComparison {
 public:
  SeamComparison(const runtime::SafetensorsFile& expected, const SeamValues& actual)
      : expected_(expected),
        actual_(actual),
        tokens_(expected.find("prompt.tokens")->bytes / sizeof(std::int64_t)),
        clean_(tokens_) {
    for (const runtime::TensorInfo& t : expected.tensors()) {
      if (compared(t.name)) seams.push_back(compare(t));
    }
    for (const auto& [name, values] : actual) {
      if (!compared(name) || expected.find(name) == nullptr) add_fault(name, "is no seam of this case");
    }
    std::size_t rows = 0, excluded = 0;
    for (const Seam& s : seams) rows += s.rows, excluded += s.excluded;
    excluded_share = rows + excluded == 0 ? 0 : static_cast<double>(excluded) / static_cast<double>(rows + excluded);
    if (excluded_share > limit("excluded")) add_fault("all", "has too many rows behind near-ties");
  }

  std::vector<Seam> seams;
  double excluded_share = 0;

  /// The first fault in forward order, as "seam what"; empty: conforms.
  std::string fault() const {
    for (const Seam& s : seams) {
      if (!s.fault.empty()) return s.name + " " + s.fault;
    }
    return "";
  }
  const Seam& seam(std::string_view name) const {
    return *std::find_if(seams.begin(), seams.end(), [&](const Seam& s) { return s.name == name; });
  }

  static bool compared(std::string_view name) {
    for (const char* beside : {"prompt.", "schedule.", "limits.", "noise.", "judge."}) {
      if (name.starts_with(beside)) return false;
    }
    return true;
  }

 private:
  using Row = const double*;
  enum class Way : std::uint8_t { equal, near, wrong };

  void add_fault(const std::string& name, const std::string& fault) { seams.push_back({.name = name, .fault = fault}); }
  double limit(const std::string& name) const { return values<double>(expected_, "limits." + name).at(0); }

  static bool ends(std::string_view name, std::initializer_list<const char*> with) {
    return std::any_of(with.begin(), with.end(), [&](const char* end) { return name.ends_with(end); });
  }

  /// Tokens that a row stands for: entries and index keys have a row a group.
  std::size_t group_of(const std::string& name) const {
    if (!ends(name, {".entries", ".index_keys"})) return 1;
    const auto layer = static_cast<std::size_t>(std::atoll(name.c_str() + 7));  // of "layers.12.attn.entries"
    return values<std::size_t>(expected_, "schedule.ratios").at(layer);
  }

  Seam compare(const runtime::TensorInfo& t) {
    Seam s{.name = t.name};
    const auto found = actual_.find(t.name);
    if (found == actual_.end()) {
      s.fault = "is missing";
      return s;
    }
    const std::vector<double>&got = found->second, want = doubles(t),
          judge = values<double>(expected_, "judge." + t.name);
    if (got.size() != want.size()) {
      s.fault = "has " + std::to_string(got.size()) + " values, expected " + std::to_string(want.size());
    } else if (std::any_of(got.begin(), got.end(), [](double v) { return std::isnan(v); })) {
      s.fault = "holds NaN";
    }
    if (!s.fault.empty()) return s;
    if (t.name == "greedy") {
      greedy(s, got, want, judge);
      return s;
    }
    const auto all = static_cast<std::size_t>(t.shape.at(0));
    if (all == 0) return s;
    const std::size_t width = want.size() / all, judged = judge.size() / all, group = group_of(t.name);
    s.rows = std::min(all, clean_ / group);
    s.excluded = all - s.rows;
    const bool decides = ends(t.name, {"expert_ids", "chosen", "candidates", "engram_rows"});
    const bool codes = ends(t.name, {"window_kv", "entries", "index_keys", "index_q"}) && judged > 0;
    std::size_t first_near = all;
    std::vector<std::size_t> plain;  // rows whose values are compared
    for (std::size_t r = 0; r < s.rows; ++r) {
      const Row g = got.data() + r * width, w = want.data() + r * width, j = judge.data() + r * judged;
      const Way way = decides ? decision(t.name, g, w, width, j, judged) : codes ? coded(g, w, j, width) : Way::equal;
      s.error += way == Way::wrong;
      if (way == Way::near) {
        ++s.near_ties;
        first_near = std::min(first_near, r);
      } else if (!decides) {
        plain.push_back(r);
      }
    }
    if (decides) {
      s.decisions = s.rows;
      if (s.error > 0) s.fault = "decides wrongly at " + std::to_string(s.error) + " rows";
    } else {
      s.error = distance(got, want, plain, width);
      s.tolerance = limit(t.name == "logits" ? "logits" : "module");
      if (!(s.error <= s.tolerance)) s.fault = "is off by " + std::to_string(s.error);
      if (t.name == "logits" && s.fault.empty()) largest_logits(s, got, judge, width);
    }
    if (first_near < all) clean_ = std::min(clean_, (first_near + 1) * group - 1);
    return s;
  }

  static double distance(const std::vector<double>& got, const std::vector<double>& want,
                         const std::vector<std::size_t>& rows, std::size_t width) {
    std::vector<double> a, b;
    for (const std::size_t r : rows) {
      a.insert(a.end(), got.data() + r * width, got.data() + (r + 1) * width);
      b.insert(b.end(), want.data() + r * width, want.data() + (r + 1) * width);
    }
    return norm_error(a, b);
  }

  double margin(Row scores, std::size_t count) const {
    double top = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (std::isfinite(scores[i])) top = std::max(top, std::fabs(scores[i]));
    }
    return limit("decision") * top;
  }

  /// Scores that lie exactly together are no near-tie: the tie rule decides.
  Way near(double apart, Row scores, std::size_t count) const {
    return apart > 0 && apart <= margin(scores, count) ? Way::near : Way::wrong;
  }

  Way decision(const std::string& name, Row got, Row want, std::size_t width, Row scores, std::size_t count) const {
    if (std::equal(got, got + width, want)) return Way::equal;
    if (count == 0) return Way::wrong;
    return name.ends_with("expert_ids") ? ranked(got, want, width, scores, count) : selected(got, want, width, scores);
  }

  /// Ids, best first: at each rank the score of what was chosen against that of what should have been.
  Way ranked(Row got, Row want, std::size_t width, Row scores, std::size_t count) const {
    std::set<double> seen;
    double apart = 0;
    for (std::size_t k = 0; k < width; ++k) {
      if (!(got[k] >= 0 && got[k] < static_cast<double>(count)) || !seen.insert(got[k]).second) return Way::wrong;
      apart = std::max(apart,
                       std::fabs(scores[static_cast<std::size_t>(got[k])] - scores[static_cast<std::size_t>(want[k])]));
    }
    return near(apart, scores, count);
  }

  /// Flags: the best that was left out against the worst that was taken instead.
  Way selected(Row got, Row want, std::size_t width, Row scores) const {
    double left_out = -HUGE_VAL, taken = HUGE_VAL;
    std::int64_t balance = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const bool g = got[i] != 0, w = want[i] != 0;
      balance += static_cast<std::int64_t>(g) - static_cast<std::int64_t>(w);
      if (w && !g) left_out = std::max(left_out, scores[i]);
      if (g && !w) taken = std::min(taken, scores[i]);
    }
    if (balance != 0 || !std::isfinite(taken)) return Way::wrong;
    return near(left_out - taken, scores, width);
  }

  /// Codes that were rounded the other way and are as near to what was rounded. Such that move their row by no more than `module` need
  /// no excuse, and anything else is left to the norm.
  Way coded(Row got, Row want, Row before, std::size_t width) const {
    double size = 0;
    for (std::size_t i = 0; i < width; ++i) size = std::max(size, std::fabs(before[i]));
    const double same = limit("module") * size, apart = limit("decision") * size;
    for (std::size_t i = 0; i < width; ++i) {
      const double nearer = std::fabs(got[i] - before[i]) - std::fabs(want[i] - before[i]);
      if (std::fabs(got[i] - want[i]) > same && !(std::fabs(nearer) <= apart)) return Way::equal;
    }
    const double moved = norm_error(std::vector<double>(got, got + width), std::vector<double>(want, want + width));
    return moved > limit("module") ? Way::near : Way::equal;
  }

  static std::size_t largest(Row row, std::size_t count) {
    return static_cast<std::size_t>(std::max_element(row, row + count) - row);  // the first of equals
  }

  /// A token chosen otherwise touches nothing in this prompt.
  void largest_logits(Seam& s, const std::vector<double>& got, const std::vector<double>& judge,
                      std::size_t vocab) const {
    s.decisions = s.rows;
    for (std::size_t r = 0; r < s.rows; ++r) {
      const Row scores = judge.data() + r * vocab;
      const std::size_t a = largest(got.data() + r * vocab, vocab), b = largest(scores, vocab);
      if (a == b) continue;
      if (near(scores[b] - scores[a], scores, vocab) == Way::wrong) {
        s.fault = "has its largest value elsewhere at row " + std::to_string(r);
        return;
      }
      ++s.near_ties;
    }
  }

  void greedy(Seam& s, const std::vector<double>& got, const std::vector<double>& want,
              const std::vector<double>& judge) const {
    if (clean_ < tokens_ && got != want) {
      s.excluded = want.size();
      return;
    }
    s.decisions = s.rows = want.size();
    const auto first =
        static_cast<std::size_t>(std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin());
    if (first == want.size()) return;
    const std::size_t vocab = judge.size() / want.size();
    const Row scores = judge.data() + first * vocab;
    const double token = got[first];
    if (token >= 0 && token < static_cast<double>(vocab) &&
        near(scores[static_cast<std::size_t>(want[first])] - scores[static_cast<std::size_t>(token)], scores, vocab) ==
            Way::near) {
      s.near_ties = 1;  // from here on the two continue different texts
      s.rows = s.decisions = first + 1;
      s.excluded = want.size() - s.rows;
      return;
    }
    s.error = 1;
    s.fault = "differs at token " + std::to_string(first);
  }

  const runtime::SafetensorsFile& expected_;
  const SeamValues& actual_;
  std::size_t tokens_;
  std::size_t clean_;  ///< tokens below it lie behind no near-tie that went the other way
};

}  // namespace dsv41::test

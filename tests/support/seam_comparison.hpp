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
#include "seam_behind.hpp"

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
      : expected_(expected), actual_(actual), behind_(expected) {
    std::int64_t layer = -1;
    for (const runtime::TensorInfo& t : expected.tensors()) {
      if (!compared(t.name)) continue;
      if (t.name.starts_with("layers.") && std::atoll(t.name.c_str() + 7) != layer) {
        layer = std::atoll(t.name.c_str() + 7);
        behind_.enter(layer);
      }
      if (t.name.ends_with(".attn_out")) behind_.attend(layer);
      seams.push_back(compare(t, layer));
    }
    for (const auto& [name, values] : actual) {
      if (!compared(name) || expected.find(name) == nullptr) add_fault(name, "is no seam of this case");
    }
    std::size_t rows = 0, excluded = 0;
    for (const Seam& s : seams) rows += s.rows, excluded += s.excluded;
    excluded_share = rows + excluded == 0 ? 0 : static_cast<double>(excluded) / static_cast<double>(rows + excluded);
  }

  std::vector<Seam> seams;
  double excluded_share = 0;  ///< of all rows of all seams; limits.excluded bounds that of each

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
  enum class Way : std::uint8_t { near, behind, wrong };

  /// A seam as a matrix, and what judges it.
  struct Rows {
    Row got, want, judge;
    std::size_t count, width, judged;
  };

  void add_fault(const std::string& name, const std::string& fault) { seams.push_back({.name = name, .fault = fault}); }
  double limit(const std::string& name) const { return values<double>(expected_, "limits." + name).at(0); }

  static bool ends(std::string_view name, std::initializer_list<const char*> with) {
    return std::any_of(with.begin(), with.end(), [&](const char* end) { return name.ends_with(end); });
  }

  /// Form and finiteness. What was expected says which kind of values these are: numbers, ids or flags.
  static std::string form(const runtime::TensorInfo& t, const std::vector<double>& got, std::size_t count) {
    if (got.size() != count) return "has " + std::to_string(got.size()) + " values, expected " + std::to_string(count);
    const auto holds = [&](auto&& what) { return std::any_of(got.begin(), got.end(), what); };
    if (holds([](double v) { return std::isnan(v); })) return "holds NaN";
    if (t.dtype == runtime::DType::i64 && holds([](double v) { return v != std::trunc(v) || !std::isfinite(v); }))
      return "holds a value that is no id";
    if (t.dtype == runtime::DType::boolean && holds([](double v) { return v != 0 && v != 1; }))
      return "holds a value that is no flag";
    return "";
  }

  Seam compare(const runtime::TensorInfo& t, std::int64_t layer) {
    Seam s{.name = t.name};
    const bool choice = t.name.ends_with(".chosen");
    const std::vector<double> want = doubles(t), judge = values<double>(expected_, "judge." + t.name);
    const auto all = static_cast<std::size_t>(t.shape.at(0));
    if (choice) behind_.chooses(layer, Flags(want.begin(), want.end()));
    const auto found = actual_.find(t.name);
    s.fault = found == actual_.end() ? "is missing" : form(t, found->second, want.size());
    if (!s.fault.empty()) return s;
    const std::vector<double>& got = found->second;
    if (t.name == "greedy") {
      greedy(s, got, want, judge);
      return s;
    }
    if (all == 0) return s;
    const Rows rows{.got = got.data(),
                    .want = want.data(),
                    .judge = judge.data(),
                    .count = all,
                    .width = want.size() / all,
                    .judged = judge.size() / all};
    Flags behind = behind_.of(layer, t.name), near(all);
    const Flags columns = Behind::hangs_on_keys(t.name) ? behind_.columns(layer, t.name) : Flags(want.size());
    if (ends(t.name, {"expert_ids", "chosen", "candidates", "engram_rows"})) {
      decide(s, rows, columns, behind, near);
    } else {
      const bool codes = ends(t.name, {"window_kv", "entries", "index_keys", "index_q"}) && !judge.empty();
      for (std::size_t r = 0; codes && r < all; ++r) near[r] = behind[r] == 0 && coded(rows, r);
      values_of(s, rows, columns, behind, near);
      if (t.name == "logits" && s.fault.empty()) largest_logits(s, rows, behind);
    }
    s.near_ties += count(near);
    s.excluded = count(behind);
    s.rows = all - s.excluded;
    if (s.tolerance == 0 || t.name == "logits") s.decisions = s.rows;
    behind_.near(layer, t.name, near);
    if (t.name.ends_with(".candidates")) behind_.published(others(rows));
    if (choice) behind_.chose(layer, others(rows));
    if (s.fault.empty() && static_cast<double>(s.excluded) > limit("excluded") * static_cast<double>(all)) {
      s.fault = "has " + std::to_string(s.excluded) + " of " + std::to_string(all) + " rows behind near-ties";
    }
    return s;
  }

  static std::size_t count(const Flags& flags) {
    return static_cast<std::size_t>(std::count(flags.begin(), flags.end(), 1));
  }

  static Flags others(const Rows& rows) {
    Flags out(rows.count);
    for (std::size_t r = 0; r < rows.count; ++r) out[r] = !same(rows, r);
    return out;
  }
  static bool same(const Rows& rows, std::size_t r) {
    return std::equal(rows.got + r * rows.width, rows.got + (r + 1) * rows.width, rows.want + r * rows.width);
  }

  /// Marks in `near` the rows that chose otherwise by a near-tie, in `behind` those that did because of a column behind one.
  void decide(Seam& s, const Rows& rows, const Flags& columns, Flags& behind, Flags& near) const {
    for (std::size_t r = 0; r < rows.count; ++r) {
      if (behind[r] != 0 || same(rows, r)) continue;
      const Way way = decision(s.name, rows, r, columns.data() + r * rows.width);
      if (way == Way::near) near[r] = 1;
      if (way == Way::behind) behind[r] = 1;
      s.error += way == Way::wrong;
    }
    if (s.error > 0) s.fault = "decides wrongly at " + std::to_string(s.error) + " rows";
  }

  void values_of(Seam& s, const Rows& rows, const Flags& columns, Flags& behind, const Flags& near) const {
    std::vector<double> a, b;
    for (std::size_t r = 0; r < rows.count; ++r) {
      bool held = false, open = false;  // whether a finite value is compared; is not
      for (std::size_t i = r * rows.width; i < (r + 1) * rows.width; ++i) {
        open |= columns[i] != 0;
        held |= columns[i] == 0 && std::isfinite(rows.want[i]);
      }
      behind[r] |= open && !held;
      for (std::size_t i = r * rows.width; i < (r + 1) * rows.width; ++i) {
        if (behind[r] != 0 || near[r] != 0 || columns[i] != 0) continue;
        a.push_back(rows.got[i]);
        b.push_back(rows.want[i]);
      }
    }
    s.error = norm_error(a, b);
    s.tolerance = limit(s.name == "logits" ? "logits" : "module");
    if (!(s.error <= s.tolerance)) s.fault = "is off by " + std::to_string(s.error);
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

  Way decision(const std::string& name, const Rows& rows, std::size_t r, const std::uint8_t* columns) const {
    if (rows.judged == 0) return Way::wrong;
    const Row got = rows.got + r * rows.width, want = rows.want + r * rows.width, judge = rows.judge + r * rows.judged;
    return name.ends_with("expert_ids") ? ranked(got, want, rows.width, judge, rows.judged)
                                        : selected(got, want, rows.width, judge, columns);
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

  /// Flags: the best that was left out against the worst that was taken. In `columns` the score is not known, so either is right.
  Way selected(Row got, Row want, std::size_t width, Row scores, const std::uint8_t* columns) const {
    double best = -HUGE_VAL, worst = HUGE_VAL;
    std::size_t first_best = width, last_worst = 0;
    std::int64_t balance = 0;
    bool open = false;
    for (std::size_t i = 0; i < width; ++i) {
      const bool taken = got[i] != 0;
      balance += static_cast<std::int64_t>(taken) - static_cast<std::int64_t>(want[i] != 0);
      if (taken && scores[i] == -HUGE_VAL) return Way::wrong;
      if (columns[i] != 0 && std::isfinite(scores[i])) {
        open = true;
      } else if (taken && scores[i] <= worst) {
        worst = scores[i], last_worst = i;
      } else if (!taken && scores[i] > best) {
        best = scores[i], first_best = i;
      }
    }
    if (balance != 0) return Way::wrong;
    if (best > worst) return near(best - worst, scores, width);
    return open && (best < worst || last_worst < first_best) ? Way::behind : Way::wrong;
  }

  /// Codes that were rounded the other way and are as near to what was rounded. Such that move their row by no more than `module` need
  /// no excuse, and anything else is left to the norm.
  bool coded(const Rows& rows, std::size_t r) const {
    const std::size_t width = rows.width;
    const Row got = rows.got + r * width, want = rows.want + r * width, before = rows.judge + r * width;
    double size = 0;
    for (std::size_t i = 0; i < width; ++i) size = std::max(size, std::fabs(before[i]));
    const double same = limit("module") * size, apart = limit("decision") * size;
    for (std::size_t i = 0; i < width; ++i) {
      const double nearer = std::fabs(got[i] - before[i]) - std::fabs(want[i] - before[i]);
      if (std::fabs(got[i] - want[i]) > same && !(std::fabs(nearer) <= apart)) return false;
    }
    return norm_error(std::vector<double>(got, got + width), std::vector<double>(want, want + width)) > limit("module");
  }

  static std::size_t largest(Row row, std::size_t count) {
    return static_cast<std::size_t>(std::max_element(row, row + count) - row);  // the first of equals
  }

  /// A token chosen otherwise touches nothing in this prompt.
  void largest_logits(Seam& s, const Rows& rows, const Flags& behind) const {
    for (std::size_t r = 0; r < rows.count; ++r) {
      if (behind[r] != 0) continue;
      const Row scores = rows.judge + r * rows.width;
      const std::size_t a = largest(rows.got + r * rows.width, rows.width), b = largest(scores, rows.width);
      if (a == b) continue;
      if (near(scores[b] - scores[a], scores, rows.width) == Way::wrong) {
        s.fault = "has its largest value elsewhere at row " + std::to_string(r);
        return;
      }
      ++s.near_ties;
    }
  }

  void greedy(Seam& s, const std::vector<double>& got, const std::vector<double>& want,
              const std::vector<double>& judge) const {
    const auto first =
        static_cast<std::size_t>(std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin());
    s.rows = first;
    if (first < want.size()) {
      const std::size_t vocab = judge.size() / want.size();
      const Row scores = judge.data() + first * vocab;
      const double token = got[first];
      if (token >= 0 && token < static_cast<double>(vocab) &&
          near(scores[static_cast<std::size_t>(want[first])] - scores[static_cast<std::size_t>(token)], scores,
               vocab) == Way::near) {
        s.near_ties = 1;  // from here on the two continue different texts
        s.rows = first + 1;
      } else if (!behind_.last_row() && !(first > 0 && behind_.continuation())) {
        s.error = 1;
        s.fault = "differs at token " + std::to_string(first);
      }
    }
    s.decisions = s.rows;
    s.excluded = want.size() - s.rows;
  }

  const runtime::SafetensorsFile& expected_;
  const SeamValues& actual_;
  Behind behind_;
};

}  // namespace dsv41::test

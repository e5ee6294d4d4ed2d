// SPDX-License-Identifier: MIT
//
// What lies behind near-ties that went the other way, row by row, as a walk over the seams comes to it. docs/conformance.md states the
// rules; Behind in tests/golden/compare.py is the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "dsv41/runtime/safetensors.hpp"
#include "golden.hpp"

namespace dsv41::test {

using Flags = std::vector<std::uint8_t>;

inline Flags operator|(Flags a, const Flags& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] |= b[i];
  return a;
}

inline bool any(const Flags& flags, std::size_t first = 0) {
  return std::find(flags.begin() + static_cast<std::ptrdiff_t>(std::min(first, flags.size())), flags.end(), 1) !=
         flags.end();
}

class Behind {
 public:
  explicit Behind(const runtime::SafetensorsFile& expected)
      : tokens_(values<std::int64_t>(expected, "prompt.tokens").size()),
        ratios_(values<std::int64_t>(expected, "schedule.ratios")),
        kv_source_(values<std::int64_t>(expected, "schedule.kv_source")),
        index_source_(values<std::int64_t>(expected, "schedule.index_source")),
        window_(values<std::size_t>(expected, "schedule.window").at(0)),
        candidate_source_(values<std::int64_t>(expected, "schedule.candidates").at(0)),
        block_(values<std::size_t>(expected, "schedule.candidates").at(1)),
        rows_(tokens_),
        candidates_(tokens_) {}

  void enter(std::int64_t layer) {
    window_kv_[layer] = rows_;
    if (kv_source(layer) == layer) {
      const std::size_t ratio = this->ratio(layer), groups = tokens_ / ratio;
      Flags complete(groups);
      for (std::size_t r = 0; r < groups * ratio; ++r) complete[r / ratio] |= rows_[r];
      open_group_ |= any(rows_, groups * ratio);
      entries_[layer] = keys_[layer] = complete;
    }
    if (index_source(layer) != layer) return;
    const bool limited = 0 <= candidate_source_ && candidate_source_ < layer;
    queries_[layer] = limited ? rows_ | candidates_ : rows_;
  }

  /// A row's attention reads its window and its selection.
  void attend(std::int64_t layer) {
    const Flags& window = window_kv_.at(layer);
    for (std::size_t r = 0; r < tokens_; ++r) {
      for (std::size_t j = r + 1 - std::min(r + 1, window_); j <= r; ++j) rows_[r] |= window[j];
    }
    if (kv_source(layer) < 0) return;
    const Flags &entries = entries_.at(kv_source(layer)), &read = read_.at(index_source(layer));
    rows_ = rows_ | moved_.at(index_source(layer));
    for (std::size_t r = 0; r < tokens_; ++r) {
      for (std::size_t e = 0; e < entries.size(); ++e)
        if (entries[e] != 0 && read[r * entries.size() + e] != 0) rows_[r] = 1;
    }
  }

  /// Rows of the seam that are not compared. Table rows hang on the tokens alone.
  Flags of(std::int64_t layer, std::string_view name) const {
    if (name.ends_with(".engram_rows")) return Flags(tokens_);
    if (name.ends_with(".entries")) return entries_.at(layer);
    if (name.ends_with(".index_keys")) return keys_.at(layer);
    return hangs_on_keys(name) ? queries_.at(layer) : rows_;
  }

  /// Index scores, candidates and selections have a column for each entry or block.
  static bool hangs_on_keys(std::string_view name) {
    return name.ends_with(".index_scores") || name.ends_with(".candidates") || name.ends_with(".chosen");
  }

  /// [T, columns] of those: where an index key behind a near-tie counts.
  Flags columns(std::int64_t layer, std::string_view name) const {
    const Flags& keys = keys_.at(kv_source(layer));
    const std::size_t block = name.ends_with(".candidates") ? block_ : 1;
    const std::size_t columns = (keys.size() + block - 1) / block;
    Flags out(tokens_ * columns);
    for (std::size_t r = 0; r < tokens_; ++r) {
      for (std::size_t e = 0; e < (r + 1) / ratio(layer); ++e) out[r * columns + e / block] |= keys[e];
    }
    return out;
  }

  /// Behind the seam: its rows with a near-tie; rows that published or chose others than expected, for whatever reason.
  void near(std::int64_t layer, std::string_view name, const Flags& rows) {
    for (auto& [last, held] : {std::pair{"window_kv", &window_kv_},
                               {"entries", &entries_},
                               {"index_keys", &keys_},
                               {"index_q", &queries_}}) {
      if (name.ends_with(last)) held->at(layer) = held->at(layer) | rows;
    }
    if (name.ends_with("expert_ids")) rows_ = rows_ | rows;
  }
  void published(const Flags& others) { candidates_ = candidates_ | others; }
  void chooses(std::int64_t layer, const Flags& expected) {
    read_[layer] = expected;
    moved_[layer] = Flags(tokens_);
  }
  void chose(std::int64_t layer, const Flags& others) { moved_[layer] = others; }

  /// Whether the prompt's last row lies behind a near-tie; whether what a later token may read does. A window row does only where the last
  /// row, which reads it too, does.
  bool last_row() const { return rows_.back() != 0; }
  bool continuation() const {
    const auto held = [](const std::map<std::int64_t, Flags>& by_layer) {
      return std::any_of(by_layer.begin(), by_layer.end(), [](const auto& of) { return any(of.second); });
    };
    return open_group_ || held(entries_) || held(keys_);
  }

 private:
  std::size_t ratio(std::int64_t layer) const {
    return static_cast<std::size_t>(ratios_.at(static_cast<std::size_t>(layer)));
  }
  std::int64_t kv_source(std::int64_t layer) const { return kv_source_.at(static_cast<std::size_t>(layer)); }
  std::int64_t index_source(std::int64_t layer) const { return index_source_.at(static_cast<std::size_t>(layer)); }

  std::size_t tokens_;
  std::vector<std::int64_t> ratios_, kv_source_, index_source_;
  std::size_t window_;
  std::int64_t candidate_source_;
  std::size_t block_;
  Flags rows_;                                                ///< [T] of the streams
  Flags candidates_;                                          ///< [T] that published other blocks
  bool open_group_ = false;                                   ///< a row of a group that the prompt does not complete
  std::map<std::int64_t, Flags> window_kv_, entries_, keys_;  ///< by layer: [T], [G], [G]
  std::map<std::int64_t, Flags> queries_;                     ///< by layer: rows of index scores [T]
  std::map<std::int64_t, Flags> read_, moved_;  ///< by layer: expected selection [T, G]; rows that chose others [T]
};

}  // namespace dsv41::test

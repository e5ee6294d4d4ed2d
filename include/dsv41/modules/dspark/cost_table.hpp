// SPDX-License-Identifier: MIT
//
// What a step costs: milliseconds of the target's forward by its rows, and of the drafter by its requests, as measured on the machine
// that runs them. The scheduler (scheduler.hpp) divides expected tokens by it. This file measures nothing and reads no file
// (runtime/cost_table_file.hpp does). Source: dspark.md 6.4.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"

namespace dsv41 {

/// One measurement: a size (rows of the target, or requests of the drafter) and what it took.
struct CostPoint {
  std::int64_t size = 0;
  double ms = 0;

  bool operator==(const CostPoint&) const = default;
};

/// A measured curve, made non-decreasing and continued to every size.
///
/// Rules:  the points' times are replaced by their running maximum. A size up to the graph limit costs what the smallest measured size
///         that holds it costs: a captured graph runs whole. Above the limit: linear between the points that are above it, flat before
///         the first of these. Beyond the last point: on with the slope of the last two points; flat with a single one.
/// Errors: invalid_argument, with `name`: no point, a size below 1 or not above the one before, a time that is negative or not finite,
///         a negative limit.
/// Cost:   log2(points) comparisons a call.
class CostCurve {
 public:
  CostCurve(const char* name, std::vector<CostPoint> points, std::int64_t graph_limit)
      : measured_(std::move(points)), graph_limit_(graph_limit) {
    check(name);
    raised_ = measured_;
    for (std::size_t i = 1; i < raised_.size(); ++i) raised_[i].ms = std::max(raised_[i].ms, raised_[i - 1].ms);
  }

  double operator()(std::int64_t size) const noexcept {
    const auto next = std::lower_bound(raised_.begin(), raised_.end(), size,
                                       [](const CostPoint& point, std::int64_t s) { return point.size < s; });
    if (next == raised_.end()) return raised_.size() < 2 ? raised_.back().ms : on_line(*(next - 2), *(next - 1), size);
    // Held by a captured size, or on the way from the last of these to the first that is none.
    if (next == raised_.begin() || (next - 1)->size <= graph_limit_) return next->ms;
    return on_line(*(next - 1), *next, size);
  }

  std::span<const CostPoint> points() const noexcept { return measured_; }  ///< as measured, by size
  std::int64_t graph_limit() const noexcept { return graph_limit_; }

 private:
  static double on_line(const CostPoint& a, const CostPoint& b, std::int64_t size) noexcept {
    const double slope = (b.ms - a.ms) / static_cast<double>(b.size - a.size);
    return b.ms + slope * static_cast<double>(size - b.size);
  }

  void check(const char* name) const {
    const auto fail = [&](const std::string& what) {
      throw Error(Errc::invalid_argument, std::string("cost table: ") + name + ": " + what);
    };
    if (measured_.empty()) fail("no points, expected at least one");
    if (graph_limit_ < 0) fail("graph limit is " + std::to_string(graph_limit_) + ", expected at least 0");
    std::int64_t least = 1;
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      const auto [size, ms] = measured_[i];
      const std::string point = "point " + std::to_string(i) + ": ";
      if (size < least || size > kLargestSize) {
        fail(point + "size is " + std::to_string(size) + ", expected " + std::to_string(least) + " to " +
             std::to_string(kLargestSize) + " (sizes ascend)");
      }
      if (!std::isfinite(ms) || ms < 0) {
        fail(point + "time is " + std::to_string(ms) + " ms, expected a finite number of at least 0");
      }
      least = size + 1;
    }
  }

  static constexpr std::int64_t kLargestSize = 1ll << 40;  // differences of sizes stay exact in double
  std::vector<CostPoint> measured_, raised_;
  std::int64_t graph_limit_;
};

/// Times of both halves of a step.
class CostTable {
 public:
  /// `verify`: rows of the target's forward -> ms, of every size that was measured; `graph_limit`: the largest captured size, 0 where
  /// nothing is captured. `draft`: requests -> ms of the drafter; a size that was not measured costs what the next larger one does.
  /// Errors: as CostCurve.
  CostTable(std::vector<CostPoint> verify, std::int64_t graph_limit, std::vector<CostPoint> draft)
      : verify_("verify", std::move(verify), graph_limit),
        draft_("draft", draft, draft.empty() ? 0 : std::max<std::int64_t>(0, draft.back().size)) {}

  /// Target's forward of so many rows, at least kLeastVerifyMs: the scheduler divides by it.
  double verify_ms(std::int64_t rows) const noexcept { return std::max(kLeastVerifyMs, verify_(rows)); }

  /// Drafter's round for so many requests.
  double draft_ms(std::int64_t requests) const noexcept { return draft_(requests); }

  /// A whole step: drafting for `requests` and verifying `rows`.
  double step_ms(std::int64_t requests, std::int64_t rows) const noexcept {
    return draft_ms(requests) + verify_ms(rows);
  }

  /// SPS(B) of the paper's Algorithm 1, with B = rows.
  double steps_per_second(std::int64_t requests, std::int64_t rows) const noexcept {
    return 1000 / step_ms(requests, rows);
  }

  const CostCurve& verify() const noexcept { return verify_; }
  const CostCurve& draft() const noexcept { return draft_; }

  static constexpr double kLeastVerifyMs = 1e-6;

 private:
  CostCurve verify_, draft_;
};

/// Sizes to measure: every captured size, then min(1.5 largest, limit), then doublings of the largest up to the limit.
///
/// Shapes:  captured: ascending from at least 1, at least one, the last at most `limit`; result ascending.
/// Errors:  invalid_argument for captured sizes that are not so.
inline std::vector<std::int64_t> sizes_to_measure(std::span<const std::int64_t> captured, std::int64_t limit) {
  if (captured.empty() || captured.front() < 1 || captured.back() > limit ||
      std::adjacent_find(captured.begin(), captured.end(), [](std::int64_t a, std::int64_t b) { return a >= b; }) !=
          captured.end()) {
    throw Error(Errc::invalid_argument, "sizes_to_measure: captured has " + std::to_string(captured.size()) +
                                            " sizes, expected at least one, ascending from 1 to at most the limit " +
                                            std::to_string(limit));
  }
  std::vector<std::int64_t> sizes(captured.begin(), captured.end());
  const std::int64_t largest = sizes.back();
  const std::int64_t half_more = largest / 2 > limit - largest ? limit : largest + largest / 2;
  if (half_more > sizes.back()) sizes.push_back(half_more);
  for (std::int64_t size = largest; size <= limit / 2;) {
    size *= 2;
    if (size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

/// The median time of each size, by size: points of a curve from repeated measurements in any order. Of an even number the mean of the
/// middle two. Errors: invalid_argument for a time that is not finite; what else a curve refuses, CostCurve does.
inline std::vector<CostPoint> median_points(std::vector<CostPoint> samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (std::isfinite(samples[i].ms)) continue;  // NaN has no place in an order
    throw Error(Errc::invalid_argument, "median_points: sample " + std::to_string(i) + " of size " +
                                            std::to_string(samples[i].size) + " took " + std::to_string(samples[i].ms) +
                                            " ms, expected a finite number");
  }
  std::sort(samples.begin(), samples.end(),
            [](const CostPoint& a, const CostPoint& b) { return std::pair(a.size, a.ms) < std::pair(b.size, b.ms); });
  std::vector<CostPoint> points;
  for (std::size_t first = 0, end = 0; first < samples.size(); first = end) {
    while (end < samples.size() && samples[end].size == samples[first].size) ++end;
    const std::size_t low = first + (end - first - 1) / 2, high = first + (end - first) / 2;
    points.push_back({samples[first].size, samples[low].ms + (samples[high].ms - samples[low].ms) / 2});
  }
  return points;
}

}  // namespace dsv41

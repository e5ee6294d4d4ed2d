// SPDX-License-Identifier: MIT
//
// From the confidence head's logits to probabilities that a draft is accepted. The checkpoint ships no temperatures, so that 1 (plain
// sigmoid) is where everybody starts; OnlineTemperatures learns them from what the target accepts. Confidences steer how much is verified,
// never which token comes out. Source: dspark.md 4 (calibration), 8.1 example 11.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/numerics/elementary.hpp"

namespace dsv41 {

/// confidence_k = sigmoid(logit_k / T_k).
///
/// Shapes:  logits, out [drafts of a request]; temperatures [at least as many]. out may be logits.
/// Rules:   the quotient is rounded once to f32; T = 1 is the plain sigmoid, bit for bit. A NaN stays one: the scheduler takes it for 0.
inline void calibrate_confidences(std::span<const float> logits, std::span<const double> temperatures,
                                  std::span<float> out) noexcept {
  DSV41_DCHECK(temperatures.size() >= logits.size() && out.size() == logits.size());
  for (std::size_t k = 0; k < logits.size(); ++k) {
    out[k] = numerics::sigmoid(static_cast<float>(static_cast<double>(logits[k]) / temperatures[k]));
  }
}

/// Temperatures given by the caller, for instance fitted elsewhere.
/// Errors: invalid_argument naming the first that is not finite and above 0.
inline void expect_temperatures(std::span<const double> temperatures) {
  for (std::size_t k = 0; k < temperatures.size(); ++k) {
    if (std::isfinite(temperatures[k]) && temperatures[k] > 0) continue;
    throw Error(Errc::invalid_argument, "calibration: temperature of draft " + std::to_string(k + 1) + " is " +
                                            std::to_string(temperatures[k]) + ", expected a finite number above 0");
  }
}

/// Temperatures that follow what the target accepts (online sequential temperature scaling).
///
/// Rules:  per draft position and bin of width 1 over the logits -8 .. 8 (others count in the end bins): trials and hits. A row of
///         `verified` drafts of which `accepted` were accepted is a trial for the first min(accepted + 1, verified) positions and a hit
///         for the first `accepted`: what a confidence promises is its own draft, given those before it. An update multiplies the
///         counters by 0.999, then counts its rows, then fits. A fit is the first of 49 temperatures 2^-3, 2^(-3 + 1/8) .. 2^3 with the
///         least sum over bins of trials |sigmoid(middle of the bin / T) - hits / trials|. With n trials behind a fit and
///         w = n / (n + 64): the pooled fit (counters summed over positions) has log P = w log fit, so that nothing seen is T = 1;
///         each position has log T = w log fit + (1 - w) log P. A NaN logit counts nowhere.
/// Cost:   49 * 16 * (draft + 1) steps an update; no allocation.
/// Source: dspark.md 4, "Online STS". The source does not say what the pooled fit shrinks to nor what its counters are; T = 1 and the sum
///         give the numbers of 8.1 example 11 to all their digits.
class OnlineTemperatures {
 public:
  /// Errors: invalid_argument for a draft length below 1.
  explicit OnlineTemperatures(std::int64_t draft) {
    if (draft < 1) {
      throw Error(Errc::invalid_argument,
                  "calibration: draft is " + std::to_string(draft) + ", expected at least one position");
    }
    counters_.resize(static_cast<std::size_t>(draft));
    temperatures_.assign(static_cast<std::size_t>(draft), 1.0);
    for (int i = 0; i < kTemperatures; ++i) {
      for (int b = 0; b < kBins; ++b) {
        const double scaled = (b + 0.5 - kReach) / std::exp2(log2_temperature(i));
        predicted_[i][b] = static_cast<double>(numerics::sigmoid(static_cast<float>(scaled)));
      }
    }
  }

  /// One update with the rows of a step.
  ///
  /// Shapes:  logits [rows, draft]; verified, accepted [rows], 0 <= accepted <= verified <= draft.
  /// Rules:   accepted is the verdict's number (Verdict::accepted), before cut_block() ends the emission at a stop token or a limit:
  ///          drafts behind the cut were accepted all the same, and the one at it was not refused.
  void update(In<float, 2> logits, std::span<const std::int32_t> verified,
              std::span<const std::int32_t> accepted) noexcept {
    DSV41_DCHECK(logits.extent(1) == static_cast<std::int64_t>(counters_.size()));
    DSV41_DCHECK(static_cast<std::int64_t>(verified.size()) == logits.extent(0) && accepted.size() == verified.size());
    for (Counters& position : counters_) {
      for (Bin& bin : position) bin = {bin.trials * kDecay, bin.hits * kDecay};
    }
    for (std::size_t r = 0; r < verified.size(); ++r) {
      DSV41_DCHECK(0 <= accepted[r] && accepted[r] <= verified[r] && verified[r] <= logits.extent(1));
      for (std::int32_t k = 0; k < std::min(accepted[r] + 1, verified[r]); ++k) {
        const float z = logits(r, k);
        if (std::isnan(z)) continue;
        const float bin = std::clamp(std::floor(z) + kReach, 0.0f, kBins - 1.0f);
        Bin& counter = counters_[static_cast<std::size_t>(k)][static_cast<std::size_t>(bin)];
        counter.trials += 1;
        if (k < accepted[r]) counter.hits += 1;
      }
    }
    fit();
  }

  /// [draft] for calibrate_confidences(); all 1 before the first update.
  std::span<const double> temperatures() const noexcept { return temperatures_; }

  double trials(std::int64_t position) const noexcept {
    return total(counters_[static_cast<std::size_t>(position)]).trials;
  }
  double hits(std::int64_t position) const noexcept {
    return total(counters_[static_cast<std::size_t>(position)]).hits;
  }

 private:
  struct Bin {
    double trials = 0, hits = 0;
  };
  static constexpr int kBins = 16, kTemperatures = 49;
  static constexpr float kReach = kBins / 2;
  static constexpr double kDecay = 0.999, kPriorTrials = 64;
  using Counters = std::array<Bin, kBins>;

  static double log2_temperature(int i) noexcept { return -3 + i / 8.0; }

  static Bin total(const Counters& bins) noexcept {
    Bin sum;
    for (const Bin& bin : bins) sum = {sum.trials + bin.trials, sum.hits + bin.hits};
    return sum;
  }

  /// log2 of the best temperature on the grid, and its weight against what it shrinks to.
  std::pair<double, double> best(const Counters& bins) const noexcept {
    int best = 0;
    double least = 0;
    for (int i = 0; i < kTemperatures; ++i) {
      double error = 0;
      for (int b = 0; b < kBins; ++b) error += std::fabs(bins[b].trials * predicted_[i][b] - bins[b].hits);
      if (i == 0 || error < least) best = i, least = error;
    }
    const double trials = total(bins).trials;
    return {log2_temperature(best), trials / (trials + kPriorTrials)};
  }

  void fit() noexcept {
    Counters pooled{};
    for (const Counters& position : counters_) {
      for (int b = 0; b < kBins; ++b) {
        pooled[b] = {pooled[b].trials + position[b].trials, pooled[b].hits + position[b].hits};
      }
    }
    const auto [pooled_fit, pooled_weight] = best(pooled);
    for (std::size_t k = 0; k < counters_.size(); ++k) {
      const auto [own_fit, weight] = best(counters_[k]);
      temperatures_[k] = std::exp2(weight * own_fit + (1 - weight) * pooled_weight * pooled_fit);
    }
  }

  std::vector<Counters> counters_;  // [draft]
  std::vector<double> temperatures_;
  std::array<std::array<double, kBins>, kTemperatures> predicted_;  // sigmoid(middle / T)
};

}  // namespace dsv41

// SPDX-License-Identifier: MIT
//
// The sampler: weights of all ids in float64, a prefix of the likeliest kept, one draw. Every filter cuts the same
// order, so only as much of it is sorted as the filters ask for.
#include "dsv41/runtime/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/numerics/draw.hpp"
#include "dsv41/numerics/rng.hpp"

namespace dsv41::runtime {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "sampler: " + what);
}

/// The order that every filter cuts: logit descending, ties to the lower id.
struct Likelier {
  In<float, 1> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

void keep_only(std::vector<std::int32_t>& order, std::size_t count, std::vector<double>& weights) {
  for (std::size_t i = count; i < order.size(); ++i) weights[static_cast<std::size_t>(order[i])] = 0;
  order.resize(count);
}

double sum(std::span<const double> values) {
  double total = 0;
  for (double v : values) total += v;
  return total;
}

/// argmax of a row without NaN.
std::int32_t likeliest(In<float, 1> logits) {
  const std::int64_t best = numerics::argmax(logits.data(), logits.extent(0));
  if (best < 0) refuse("none of the " + std::to_string(logits.extent(0)) + " logits is above -inf");
  return static_cast<std::int32_t>(best);
}

}  // namespace

void check_logits(In<float, 1> logits, std::int64_t position) {
  std::int64_t count = 0, first = 0;
  for (std::int64_t i = 0; i < logits.extent(0); ++i) count += std::isnan(logits[i]) ? 1 : 0;
  if (count == 0) return;
  while (!std::isnan(logits[first])) ++first;
  throw Error(Errc::invalid_argument,
              "logits" + (position < 0 ? std::string() : " at position " + std::to_string(position)) + ": " +
                  std::to_string(count) + " of " + std::to_string(logits.extent(0)) + " are NaN, the first for token " +
                  std::to_string(first) + ", expected none; a weight of the checkpoint is NaN or a value overflowed");
}

void SamplerOptions::check() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    refuse("temperature is " + std::to_string(temperature) + ", expected a finite number of at least 0");
  }
  if (top_k < 0) refuse("top_k is " + std::to_string(top_k) + ", expected at least 0");
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p is " + std::to_string(top_p) + ", expected above 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("min_p is " + std::to_string(min_p) + ", expected 0 to 1");
}

Sampler::Sampler(const SamplerOptions& options, std::int64_t vocab) : options_(options) {
  options.check();
  if (vocab < 1 || vocab > std::numeric_limits<std::int32_t>::max()) {
    refuse("vocabulary of " + std::to_string(vocab) + ", expected 1 to 2^31 - 1");
  }
  weights_.resize(static_cast<std::size_t>(vocab));
  order_.reserve(weights_.size());
}

void Sampler::set_options(const SamplerOptions& options) {
  options.check();
  options_ = options;
}

std::span<const double> Sampler::probabilities(In<float, 1> logits) {
  return law(logits, -1);
}

std::int32_t Sampler::sample(In<float, 1> logits, std::int64_t position) {
  const auto block = numerics::random_block(options_.seed, position, numerics::Purpose::sample);
  const std::span<const double> p = law(logits, position - 1);
  return static_cast<std::int32_t>(numerics::draw(p.data(), vocab(), numerics::uniform_below_one(block)));
}

/// probabilities() of the row behind the token at `position`.
std::span<const double> Sampler::law(In<float, 1> logits, std::int64_t position) {
  if (logits.extent(0) != vocab()) {
    refuse("row of " + std::to_string(logits.extent(0)) + " logits, expected " + std::to_string(vocab()));
  }
  check_logits(logits, position);
  const std::int32_t top = likeliest(logits);
  if (options_.temperature == 0) {
    std::fill(weights_.begin(), weights_.end(), 0.0);
    weights_[static_cast<std::size_t>(top)] = 1;
    return weights_;
  }
  weigh(logits, top);
  filter(logits);
  numerics::normalise(weights_.data(), vocab());
  return weights_;
}

void Sampler::weigh(In<float, 1> logits, std::int32_t top) {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] = numerics::softmax_weight(logits[static_cast<std::int64_t>(i)], logits[top], options_.temperature);
  }
}

/// Zeroes the weights that top_k, top_p and min_p drop.
void Sampler::filter(In<float, 1> logits) {
  const bool cut_k = options_.top_k > 0 && options_.top_k < vocab(), cut_p = options_.top_p < 1;
  if (cut_k || cut_p) {
    order_.clear();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] > 0) order_.push_back(static_cast<std::int32_t>(i));
    }
    if (cut_k) keep_top_k(logits);
    if (cut_p) keep_only(order_, nucleus(logits), weights_);
  }
  if (options_.min_p > 0) {
    for (double& w : weights_) {
      if (w < options_.min_p) w = 0;  // the largest weight is 1
    }
  }
}

/// Cuts order_ to the k likeliest, unsorted.
void Sampler::keep_top_k(In<float, 1> logits) {
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k >= order_.size()) return;
  std::nth_element(order_.begin(), order_.begin() + options_.top_k, order_.end(), Likelier{logits});
  keep_only(order_, k, weights_);
}

/// Length of the shortest prefix of order_ that holds top_p of its mass. Sorts in growing pieces: a nucleus is short as
/// a rule.
std::size_t Sampler::nucleus(In<float, 1> logits) {
  const double wanted = options_.top_p * sum(weights_);
  const Likelier likelier{logits};
  const auto at = [this](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  double mass = 0;
  std::size_t sorted = 0;
  for (std::size_t piece = 64; sorted < order_.size(); piece *= 4) {
    const std::size_t end = std::min(order_.size(), sorted + piece);
    if (end < order_.size()) std::nth_element(at(sorted), at(end), order_.end(), likelier);
    std::sort(at(sorted), at(end), likelier);
    for (; sorted < end; ++sorted) {
      mass += weights_[static_cast<std::size_t>(order_[sorted])];
      if (mass >= wanted) return sorted + 1;
    }
  }
  return order_.size();
}

std::int32_t argmax(In<float, 1> logits) {
  check_logits(logits);
  return likeliest(logits);
}

}  // namespace dsv41::runtime

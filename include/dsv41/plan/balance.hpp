// SPDX-License-Identifier: MIT
//
// Balancing experts without a loss term: loads are counted from what the router chose, and each expert's bias moves a fixed step
// against its load. The bias steers the choice only (ops/topk_route.hpp), so no gradient is involved. Text and image tokens have a
// bias vector each, and each vector is updated from its own load: call update_bias once for either.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41::plan {

/// How far a bias moves in one step. Source: architecture.md 5.
inline constexpr float kBiasStep = 0.001f;

namespace detail {

/// Sum of a load. Errors: invalid_argument for a negative count or a sum beyond int64; shape_mismatch without experts.
inline std::int64_t total_load(const char* who, In<std::int64_t, 1> load) {
  if (load.extent(0) < 1) {
    throw Error(Errc::shape_mismatch, std::string(who) + ": load is [0], expected at least one expert");
  }
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < load.extent(0); ++e) {
    if (load[e] < 0 || load[e] > std::numeric_limits<std::int64_t>::max() - total) {
      throw Error(Errc::invalid_argument, std::string(who) + ": load of expert " + std::to_string(e) + " is " +
                                              std::to_string(load[e]) +
                                              ", expected counts of at least 0 whose sum fits 63 bits");
    }
    total += load[e];
  }
  return total;
}

}  // namespace detail

/// Adds what a batch chose to the loads of its modalities.
///
/// Shapes:  ids [tokens, topk] i32 as ops::TopkRoute leaves them; image [tokens] u8, not zero: an image token; text_load, image_load
///          [experts] i64, added to.
/// Units:   load: (token, expert) pairs.
/// Rules:   id -1 (a row that ran out of scores) counts nowhere.
/// Errors:  shape_mismatch; invalid_argument for an id outside -1 .. experts - 1; nothing is counted then.
inline void add_loads(In<std::int32_t, 2> ids, In<std::uint8_t, 1> image, Out<std::int64_t, 1> text_load,
                      Out<std::int64_t, 1> image_load) {
  const std::int64_t experts = text_load.extent(0);
  const auto expect = [](bool holds, const char* what, std::int64_t expected, std::int64_t got) {
    if (holds) return;
    throw Error(Errc::shape_mismatch, std::string("add_loads: ") + what + " is " + std::to_string(got) + ", expected " +
                                          std::to_string(expected));
  };
  expect(image.extent(0) == ids.extent(0), "extent of image", ids.extent(0), image.extent(0));
  expect(image_load.extent(0) == experts, "extent of image_load", experts, image_load.extent(0));
  for (std::int64_t t = 0; t < ids.extent(0); ++t) {
    for (std::int64_t k = 0; k < ids.extent(1); ++k) {
      if (ids(t, k) >= -1 && ids(t, k) < experts) continue;
      throw Error(Errc::invalid_argument, "add_loads: id of token " + std::to_string(t) + ", rank " +
                                              std::to_string(k) + " is " + std::to_string(ids(t, k)) +
                                              ", expected -1 or an expert below " + std::to_string(experts));
    }
  }
  for (std::int64_t t = 0; t < ids.extent(0); ++t) {
    const Out<std::int64_t, 1> load = image[t] != 0 ? image_load : text_load;
    for (std::int64_t k = 0; k < ids.extent(1); ++k) {
      if (ids(t, k) >= 0) ++load[ids(t, k)];
    }
  }
}

/// One step of loss-free balancing: bias_i += step * sign(mean load - load_i).
///
/// Shapes:  load [experts] i64, of one modality since the last step; bias [experts] f32, that modality's, updated.
/// Rules:   the comparison with the mean is exact, in integers; an expert at the mean keeps its bias, so a modality that had no token
///          keeps all of them. step 0 freezes them. The sum is float32.
/// Errors:  shape_mismatch; invalid_argument for a negative load or a step that is not finite and at least 0; nothing changes then.
/// Source:  architecture.md 5; Wang et al., Auxiliary-loss-free load balancing (2024).
inline void update_bias(In<std::int64_t, 1> load, Out<float, 1> bias, float step = kBiasStep) {
  const std::int64_t experts = load.extent(0), total = detail::total_load("update_bias", load);
  if (bias.extent(0) != experts) {
    throw Error(Errc::shape_mismatch, "update_bias: bias is [" + std::to_string(bias.extent(0)) + "], expected [" +
                                          std::to_string(experts) + "]");
  }
  if (!std::isfinite(step) || step < 0) {
    throw Error(Errc::invalid_argument,
                "update_bias: step is " + std::to_string(step) + ", expected a finite number of at least 0");
  }
  // With mean = quotient + remainder / experts: a load below the mean is at most the quotient, one above it is larger.
  const std::int64_t quotient = total / experts, remainder = total % experts;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (load[e] > quotient) {
      bias[e] -= step;
    } else if (load[e] < quotient || remainder > 0) {
      bias[e] += step;
    }
  }
}

/// Maximum load violation, max_i load_i / mean load - 1: 0 when all experts serve alike; 0 for no load at all.
///
/// Shapes:  load [experts] i64. Of one batch this is the measure that a step's slowest device feels.
/// Errors:  shape_mismatch without experts; invalid_argument for a negative load.
/// Source:  Wang et al. (2024), "MaxVio".
inline double max_violation(In<std::int64_t, 1> load) {
  const std::int64_t total = detail::total_load("max_violation", load);
  if (total == 0) return 0;
  std::int64_t most = 0;
  for (std::int64_t e = 0; e < load.extent(0); ++e) most = std::max(most, load[e]);
  return static_cast<double>(most) * static_cast<double>(load.extent(0)) / static_cast<double>(total) - 1;
}

}  // namespace dsv41::plan

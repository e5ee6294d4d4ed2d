// SPDX-License-Identifier: MIT
//
// The residual-stream ops on the CPU. Many tokens: a worker takes a group of them through the whole seam, so that their streams pass once
// and what follows is still in its cache. Few tokens: workers share the channels first, then what is left.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/mhc.hpp"
#include "cpu/rows.hpp"
#include "dsv41/ops/mhc.hpp"

namespace dsv41::cpu {

/// An op as a pass and what follows it.
struct Seam {
  MhcPass pass;
  ops::MhcCoefficients coefficients;  // unless pass.fn is empty
  ops::RmsNorm norm;                  // of pass.x, unless its weight is empty

  /// Tokens [first, first + count).
  Seam rows(std::int64_t first, std::int64_t count) const {
    Seam part = *this;
    part.pass.streams = pass.streams.rows(first, count);
    if (!pass.mix.empty()) part.pass.mix = pass.mix.rows(first, count);
    if (!pass.y.empty()) part.pass.y = pass.y.rows(first, count), part.pass.next = pass.next.rows(first, count);
    if (!pass.x.empty()) part.pass.x = pass.x.rows(first, count);
    if (!pass.fn.empty()) {
      part.coefficients.streams = coefficients.streams.rows(first, count);
      part.coefficients.mix = coefficients.mix.rows(first, count);
    }
    if (!norm.weight.empty()) part.norm.x = norm.x.rows(first, count), part.norm.y = norm.y.rows(first, count);
    return part;
  }
};

inline Seam seam_of(const ops::MhcExpand& op) {
  return {.pass = {.streams = op.streams, .mix = op.mix, .y = op.y, .next = op.streams, .numeric = op.numeric}};
}
inline Seam seam_of(const ops::MhcCollapse& op) {
  return {.pass = {.streams = op.streams, .mix = op.mix, .x = op.x, .numeric = op.numeric}};
}
inline Seam seam_of(const ops::MhcCoefficients& op) {
  return {.pass = {.streams = op.streams, .fn = op.fn}, .coefficients = op};
}
inline Seam seam_of(const ops::MhcSeam& op) {
  Seam seam = seam_of(op.collapse());
  seam.pass.y = op.y;
  seam.pass.next = op.streams;
  seam.pass.fn = op.fn;
  seam.coefficients = op.coefficients();
  seam.norm = {.x = op.input, .weight = op.norm, .y = op.input, .eps = op.rules.norm_eps, .numeric = op.numeric};
  return seam;
}

template <class Op>
concept OfStreams = requires(const Op& op) {
  { seam_of(op) } -> std::same_as<Seam>;
};

inline constexpr std::int64_t kGroupTokens = 64;     // of a piece, where there are many
inline constexpr std::int64_t kPieceChannels = 512;  // where there are few

/// The parts of a workspace that a seam takes.
struct SeamSpace {
  MhcParts parts;  // for each worker of the tokens of a group; where there are few, once
  float* scratch = nullptr;
  std::int64_t group = 0, each_sums = 0, each_squares = 0, each_scratch = 0;
  bool few = false;

  SeamSpace(const MhcPass& pass, const Context& context, Cut& cut) {
    const std::int64_t tokens = pass.streams.extent(0), hc = pass.streams.extent(1), workers = context.workers.count();
    few = tokens <= kGroupTokens;
    const std::int64_t groups = (tokens + kGroupTokens - 1) / kGroupTokens, chunks = mhc_chunks(pass.streams.extent(2));
    group = groups == 0 ? 0 : (tokens + groups - 1) / groups;
    each_scratch = mhc_scratch(hc);
    scratch = cut.take<float>(each_scratch * workers);
    if (pass.fn.empty()) return;
    const std::int64_t most = std::min(tokens, kGroupTokens);  // not group: fewer tokens never need more
    each_sums = most * chunks * mhc_outputs(hc);
    each_squares = most * chunks;
    parts.sums = cut.take<float>(each_sums * (few ? 1 : workers));
    parts.squares = cut.take<double>(each_squares * (few ? 1 : workers));
  }

  MhcParts parts_of(std::int64_t worker) const {
    return {.sums = parts.sums + worker * each_sums, .squares = parts.squares + worker * each_squares};
  }
};

template <OfStreams Op>
std::size_t workspace_floats(const Op& op, const Context& context) {
  Cut cut;
  SeamSpace(seam_of(op).pass, context, cut);
  return cut.floats();
}

/// What follows a pass over whole tokens.
inline void finish(const Seam& seam, Target target, const MhcParts& parts) {
  if (!seam.pass.fn.empty()) mhc_coefficients(target, seam.coefficients, parts);
  if (!seam.norm.weight.empty()) norm_rows(target, seam.norm);
}

template <OfStreams Op>
void run(const Op& op, const Context& context, float* workspace) {
  const Seam seam = seam_of(op);
  const MhcPass& pass = seam.pass;
  Cut cut(workspace);
  const SeamSpace space(pass, context, cut);
  const std::int64_t tokens = pass.streams.extent(0), hc = pass.streams.extent(1), dim = pass.streams.extent(2);
  if (!space.few) {
    context.each_part(tokens, space.group, [&](std::int64_t first, std::int64_t end, std::int64_t worker) {
      const Seam part = seam.rows(first, end - first);
      const MhcParts parts = space.parts_of(worker);
      mhc_pass(context.target, part.pass, 0, dim, parts, space.scratch + worker * space.each_scratch);
      finish(part, context.target, parts);
    });
    return;
  }
  if (tokens == 0) return;
  context.each_part(dim, kPieceChannels, [&](std::int64_t first, std::int64_t end, std::int64_t worker) {
    mhc_pass(context.target, pass, first, end, space.parts, space.scratch + worker * space.each_scratch);
  });
  // coefficients of sixteen tokens go together, norms of four
  constexpr std::int64_t kCoefficients = 16, kNorms = 4;
  const std::int64_t with = pass.fn.empty() ? 0 : (tokens + kCoefficients - 1) / kCoefficients;
  const std::int64_t norms = seam.norm.weight.empty() ? 0 : (tokens + kNorms - 1) / kNorms;
  context.each(with + norms, [&](std::int64_t piece, std::int64_t) {
    const bool norm = piece >= with;
    const std::int64_t some = norm ? kNorms : kCoefficients, first = (norm ? piece - with : piece) * some;
    const Seam part = seam.rows(first, std::min(some, tokens - first));
    if (norm) {
      norm_rows(context.target, part.norm);
    } else {
      const std::int64_t skip = first * mhc_chunks(dim);
      mhc_coefficients(context.target, part.coefficients,
                       {.sums = space.parts.sums + skip * mhc_outputs(hc), .squares = space.parts.squares + skip});
    }
  });
}

inline std::size_t workspace_floats(const ops::StreamMean&, const Context&) {
  return 0;
}

inline void run(const ops::StreamMean& op, const Context& context, float*) {
  context.each_part(op.streams.extent(0), piece_rows(op.streams.extent(1) * op.streams.extent(2)),
                    [&](std::int64_t first, std::int64_t end, std::int64_t) {
                      ops::StreamMean part = op;
                      part.streams = op.streams.rows(first, end - first);
                      part.tap = op.tap.rows(first, end - first);
                      stream_mean(context.target, part);
                    });
}

}  // namespace dsv41::cpu

// SPDX-License-Identifier: MIT
//
// Ops are values, a backend runs them. This file names the whole interface: every op, and what else a backend must offer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "dsv41/core/config.hpp"
#include "dsv41/ops/block_attention.hpp"
#include "dsv41/ops/cache_append.hpp"
#include "dsv41/ops/compress.hpp"
#include "dsv41/ops/embed.hpp"
#include "dsv41/ops/engram_convolution.hpp"
#include "dsv41/ops/engram_gate.hpp"
#include "dsv41/ops/engram_gather.hpp"
#include "dsv41/ops/engram_hash.hpp"
#include "dsv41/ops/hash_route.hpp"
#include "dsv41/ops/index_select.hpp"
#include "dsv41/ops/linear.hpp"
#include "dsv41/ops/markov.hpp"
#include "dsv41/ops/mhc.hpp"
#include "dsv41/ops/rms_norm.hpp"
#include "dsv41/ops/rope.hpp"
#include "dsv41/ops/sparse_attention.hpp"
#include "dsv41/ops/swiglu_experts.hpp"
#include "dsv41/ops/topk_route.hpp"

namespace dsv41::ops {

template <class... Ops>
struct List {};

/// Every op of the interface.
using All = List<Embed, EngramHash, EngramGather, EngramGate, EngramConvolution, MhcSeam, MhcExpand, MhcCoefficients,
                 MhcCollapse, StreamMean, Linear, RmsNorm, Rope, CacheAppend, Compress, IndexSelect, SparseAttention,
                 BlockAttention, TopkRoute, HashRoute, SwigluExperts, Markov>;

// clang-format off (version 14 does not know requirements)

/// `run` enqueues the op in the backend's one ordered queue. It returns nothing and cannot fail visibly: errors surface at sync().
template <class B, class Op>
concept Runs = requires(B& b, const Op& op) {
  { b.run(op) }
  noexcept->std::same_as<void>;
};

/// Memory in the backend's space, and the only ways across. prepare makes room for the workspaces of any step of this many rows, so
/// that a step never allocates. An upload has taken its source when it returns; a copy goes from the backend's memory into it, in its turn
/// in the queue; download waits for the queue first. prepare, allocate, download and sync throw Error.
template <class B>
concept Allocates = requires(B& b, void* to, const void* from, std::size_t bytes, const ModelConfig& config,
                             std::int64_t rows) {
  {b.prepare(config, rows)};
  { b.allocate(bytes) } -> std::same_as<void*>;
  { b.release(to) }
  noexcept;
  { b.upload(to, from, bytes) }
  noexcept;
  { b.copy(to, from, bytes) }
  noexcept;
  {b.download(to, from, bytes)};
  {b.sync()};
};
// clang-format on

template <class B, class L>
inline constexpr bool kRunsAll = false;
template <class B, class... Ops>
inline constexpr bool kRunsAll<B, List<Ops...>> = (Runs<B, Ops> && ...);

template <class B>
concept Backend = kRunsAll<B, All> && Allocates<B>;

}  // namespace dsv41::ops

// SPDX-License-Identifier: MIT
//
// A target and a drafter over three tokens whose laws depend on everything before, small enough to enumerate what a round can do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/numerics/rng.hpp"

namespace dsv41::test {

using Ids = std::vector<std::int32_t>;
using Row = std::vector<double>;

/// Rows and drafts of one block, with their memory.
struct OwnedBlock {
  Ids drafts = {};
  std::vector<Row> target = {}, proposal = {};
  std::int64_t anchor = 0;
  std::uint64_t seed = 0;
  Row flat_target = {}, flat_proposal = {};  // view()'s

  /// Valid until the next call, and while this lives.
  DraftBlock view() {
    flat_target.clear(), flat_proposal.clear();
    for (const Row& row : target) flat_target.insert(flat_target.end(), row.begin(), row.end());
    for (const Row& row : proposal) flat_proposal.insert(flat_proposal.end(), row.begin(), row.end());
    const std::int64_t vocab = std::ssize(target[0]);
    return {.drafts = {drafts.data(), {std::ssize(drafts)}},
            .target = {flat_target.data(), {std::ssize(target), vocab}},
            .proposal = {flat_proposal.data(), {std::ssize(proposal), vocab}},
            .anchor = anchor,
            .seed = seed};
  }
};

/// Law of the token behind a context.
using Law = std::function<Row(const Ids&)>;

/// Different random rows for different contexts. `zeros`: share of entries that are 0; at least one of a row is not.
inline Law random_law(std::uint64_t seed, std::size_t vocab, double zeros) {
  return [=](const Ids& context) {
    std::int64_t code = 1;
    for (std::int32_t id : context) code = (code * 31 + id) % 0xffffffffffff;
    std::uint32_t at = 0;
    const auto uniform = [&] {
      const std::uint64_t key = seed + (std::uint64_t{1} << 40);  // far from the seeds of rounds
      return numerics::uniform_below_one(numerics::random_block(key, code, numerics::Purpose::sample, at++));
    };
    Row row(vocab);
    double total = 0;
    for (double& p : row) {
      const double weight = uniform();
      total += p = uniform() < zeros ? 0 : weight * weight;
    }
    if (total == 0) total = row[0] = 1;
    for (double& p : row) p /= total;
    return row;
  };
}

inline Law constant_law(Row row) {
  return [row = std::move(row)](const Ids&) { return row; };
}

/// A target, a drafter, and whether the drafter takes its likeliest token instead of drawing.
struct Toy {
  Law target = {}, drafter = {};
  bool certain = false;

  /// The drafts' own law: what draft row `context` is drawn from.
  Row draft_law(const Ids& context) const {
    Row q = drafter(context);
    if (certain) {
      const auto top = static_cast<std::size_t>(std::max_element(q.begin(), q.end()) - q.begin());
      std::fill(q.begin(), q.end(), 0.0);
      q[top] = 1;
    }
    return q;
  }

  /// The block of these drafts behind a context.
  OwnedBlock block(Ids context, const Ids& drafts) const {
    OwnedBlock out{.drafts = drafts};
    for (std::int32_t id : drafts) {
      out.target.push_back(target(context));
      if (!certain) out.proposal.push_back(drafter(context));
      context.push_back(id);
    }
    out.target.push_back(target(context));
    return out;
  }
};

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// ops::Compress: pooling against the formula in double, and a carry that does not care how a sequence is cut.
#include "dsv41/ops/compress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t ratio, tokens, width;
  double gate_size;
  std::uint64_t seed;
};

const Case kCases[] = {
    {2, 0, 8, 1, 1},   {2, 1, 1, 1, 2},   {2, 9, 16, 1, 3},   {3, 10, 33, 2, 4}, {4, 13, 7, 1, 5},
    {8, 31, 16, 3, 6}, {2, 8, 512, 1, 7}, {4, 16, 32, 60, 8}, {1, 5, 8, 1, 9},
};

struct Inputs {
  Array<float, 2> kv, gate;
};

Inputs make(const Case& c) {
  Random random(c.seed);
  return {random_array<2>(random, {c.tokens, c.width}), random_array<2>(random, {c.tokens, c.width}, c.gate_size)};
}

/// One sequence on a backend: its carry with room for `groups` groups, and the latents of its next tokens.
template <class B>
class Pooling {
 public:
  Pooling(const Case& c, const Inputs& in, Numeric numeric, std::int64_t groups = 1)
      : in_(&in), memory_(backend_), numeric_(numeric), ratio_(c.ratio), width_(c.width) {
    // What lies in an empty carry must not matter.
    carry_kv_ = memory_.put(Array<float, 2>({groups * ratio_, width_}, std::nanf("")));
    carry_gate_ = memory_.put(Array<float, 2>({groups * ratio_, width_}, std::nanf("")));
  }

  /// The sequence forgets its tokens from `position` on.
  void rewind(std::int64_t position) { position_ = position; }

  std::vector<float> next(std::int64_t count) {
    const std::int64_t groups = (position_ + count) / ratio_ - position_ / ratio_;
    const auto latent = memory_.put(Array<float, 2>({groups, width_}, -1.0f));
    const ops::Compress op{.kv = memory_.put(in_->kv.rows(position_, count)),
                           .gate = memory_.put(in_->gate.rows(position_, count)),
                           .carry_kv = carry_kv_,
                           .carry_gate = carry_gate_,
                           .latent = latent,
                           .first_position = position_,
                           .ratio = ratio_,
                           .numeric = numeric_};
    op.check();
    backend_.run(op);
    position_ += count;
    return memory_.get(latent);
  }

  std::vector<float> carry() {
    std::vector<float> kv = memory_.get(carry_kv_), gate = memory_.get(carry_gate_);
    kv.insert(kv.end(), gate.begin(), gate.end());
    return kv;
  }

 private:
  const Inputs* in_;
  B backend_;
  Memory<B> memory_;
  Numeric numeric_;
  std::int64_t ratio_, width_, position_ = 0;
  Out<float, 2> carry_kv_, carry_gate_;
};

Doubles formula(const Case& c, const Inputs& in, Numeric numeric) {
  Doubles out;
  for (std::int64_t g = 0; (g + 1) * c.ratio <= c.tokens; ++g) {
    for (std::int64_t i = 0; i < c.width; ++i) {
      double total = 0, sum = 0;
      for (std::int64_t t = g * c.ratio; t < (g + 1) * c.ratio; ++t) {
        const double weight = std::exp(static_cast<double>(in.gate.values[static_cast<std::size_t>(t * c.width + i)]));
        total += weight;
        sum += weight * static_cast<double>(in.kv.values[static_cast<std::size_t>(t * c.width + i)]);
      }
      out.push_back(as_activation(numeric, sum / total));
    }
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("compress pools groups by the softmax of their gates", "[compress]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      Pooling<TestType> pooling(c, in, numeric);
      check_close(pooling.next(c.tokens), formula(c, in, numeric), numeric);
    }
  }
}

TEMPLATE_LIST_TEST_CASE(
    "B53: every split into two calls, and every fixed width, gives the same latents and carry to the bit", "[compress]",
    Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    Pooling<TestType> whole(c, in, Numeric::exact);
    const std::vector<float> want = whole.next(c.tokens);
    for (std::int64_t k = 0; k <= c.tokens; ++k) {
      Pooling<TestType> split(c, in, Numeric::exact);
      std::vector<float> got = split.next(k);
      const std::vector<float> rest = split.next(c.tokens - k);
      got.insert(got.end(), rest.begin(), rest.end());
      CHECK(same_bits(got, want));
      CHECK(same_bits(split.carry(), whole.carry()));
    }
    for (std::int64_t width = 1; width <= 9; ++width) {
      Pooling<TestType> steps(c, in, Numeric::exact);
      std::vector<float> got;
      for (std::int64_t t = 0; t < c.tokens; t += width) {
        const std::vector<float> piece = steps.next(std::min(width, c.tokens - t));
        got.insert(got.end(), piece.begin(), piece.end());
      }
      CHECK(same_bits(got, want));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a carry of several groups gives the latents of one, and keeps each position in its own slot",
                        "[compress]", Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    Pooling<TestType> one(c, in, Numeric::deployed);
    const std::vector<float> want = one.next(c.tokens);
    for (const std::int64_t groups : {2, 3, 5}) {
      INFO("seed " << c.seed << ", " << groups << " groups");
      Pooling<TestType> ring(c, in, Numeric::deployed, groups);
      std::vector<float> got;
      for (std::int64_t t = 0; t < c.tokens; t += 2) {
        const std::vector<float> piece = ring.next(std::min<std::int64_t>(2, c.tokens - t));
        got.insert(got.end(), piece.begin(), piece.end());
      }
      CHECK(same_bits(got, want));
      const std::vector<float> carry = ring.carry();
      const std::int64_t slots = groups * c.ratio;
      for (std::int64_t p = std::max<std::int64_t>(0, c.tokens - slots); p < c.tokens; ++p) {
        const auto slot = static_cast<std::ptrdiff_t>(p % slots * c.width);
        CHECK(std::equal(carry.begin() + slot, carry.begin() + slot + c.width,
                         in.kv.values.begin() + static_cast<std::ptrdiff_t>(p * c.width)));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("back by as many positions as the carry has beyond a group, and one: the same latents again",
                        "[compress]", Backends) {
  const Case c{3, 30, 5, 1, 10};
  const Inputs in = make(c);
  Pooling<TestType> straight(c, in, Numeric::exact);
  const std::vector<float> want = straight.next(c.tokens);
  for (const std::int64_t groups : {2, 4}) {
    for (std::int64_t tokens = 13; tokens < 25; ++tokens) {
      for (std::int64_t back = 0; back <= (groups - 1) * c.ratio + 1; ++back) {
        INFO(groups << " groups, back from " << tokens << " by " << back);
        Pooling<TestType> ring(c, in, Numeric::exact, groups);
        ring.next(tokens);
        ring.rewind(tokens - back);
        const std::vector<float> rest = ring.next(c.tokens - tokens + back);
        CHECK(same_bits(rest, {want.end() - std::ssize(rest), want.end()}));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("gates of +-1000 pool without overflow: the largest takes all", "[compress]", Backends) {
  const Case c{2, 2, 2, 1, 0};
  const Inputs in{{{2, 2}, {3, 5, 7, 11}}, {{2, 2}, {1000, -1000, -1000, 1000}}};
  Pooling<TestType> pooling(c, in, Numeric::exact);
  CHECK(pooling.next(2) == std::vector<float>{3, 11});
}

TEST_CASE("compress: check() names the field, what it expects and what it got") {
  const ops::Compress good{.kv = shaped<const float, 2>({5, 8}),
                           .gate = shaped<const float, 2>({5, 8}),
                           .carry_kv = shaped<float, 2>({2, 8}),
                           .carry_gate = shaped<float, 2>({2, 8}),
                           .latent = shaped<float, 2>({3, 8}),
                           .first_position = 3,
                           .ratio = 2};
  for (const std::int64_t ratio : {0, -2}) {
    check_refuses(good, "ratio is " + std::to_string(ratio) + ", expected at least 1",
                  [&](auto& op) { op.ratio = ratio; });
  }
  for (const std::int64_t slots : {0, 1, 3}) {
    check_refuses(good, "carry_kv is " + std::to_string(slots) + ", expected rows of whole groups", [&](auto& op) {
      op.carry_kv = shaped<float, 2>({slots, 8});
    });
  }
  check_refuses(good, "first_position is -1, expected at least 0", [](auto& op) { op.first_position = -1; });
  check_refuses(good, "gate is [4, 8], expected [5, 8]", [](auto& op) { op.gate = shaped<const float, 2>({4, 8}); });
  check_refuses(good, "carry_kv is [2, 9], expected [2, 8]", [](auto& op) { op.carry_kv = shaped<float, 2>({2, 9}); });
  check_refuses(good, "carry_gate is [3, 8], expected [2, 8]", [](auto& op) {
    op.carry_gate = shaped<float, 2>({3, 8});
  });
  check_refuses(good, "latent is [2, 8], expected [3, 8]", [](auto& op) { op.latent = shaped<float, 2>({2, 8}); });
}

// SPDX-License-Identifier: MIT
//
// Experts through a tier: weights come from elsewhere, in waves of any size and order, and the bits are those of weights in place.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/ops/swiglu_experts.hpp"
#include "support/cpu_backends.hpp"
#include "support/failure.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Gives copies of what is asked for, at most `most` at a time, in an order of its own; and after `fails_after` experts none.
class Waves final : public ExpertTier {
 public:
  Waves(std::span<const ExpertWeights> real, std::span<const ExpertWeights> copies, std::uint64_t seed)
      : real_(real), copies_(copies), random_(seed) {}

  void begin(std::span<const ExpertWeights* const> experts) noexcept override {
    ++begun;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const ExpertWeights* weights = experts[i];
      if (weights >= real_.data() && weights < real_.data() + real_.size())
        weights = &copies_[static_cast<std::size_t>(weights - real_.data())];
      left_.push_back({static_cast<std::int64_t>(i), weights});
    }
  }
  std::span<const Resident> take() noexcept override {
    ++waves;
    given_.clear();
    if (fails_after >= 0 && asked >= fails_after) return given_;
    for (std::int64_t n = 1 + random_.below(3); n > 0 && !left_.empty(); --n) {
      const auto at = left_.begin() + static_cast<std::ptrdiff_t>(random_.below(std::ssize(left_)));
      given_.push_back(*at);
      left_.erase(at);
      ++asked;
    }
    return given_;
  }
  void end() noexcept override {
    ++ended;
    left_.clear();
  }
  void sync() override {
    if (fails_after >= 0) throw Error(Errc::io, "no such expert");
  }

  std::int64_t begun = 0, ended = 0, waves = 0, asked = 0, fails_after = -1;

 private:
  std::span<const ExpertWeights> real_, copies_;
  Random random_;
  std::vector<Resident> left_, given_;
};

struct Case {
  std::int64_t tokens, dim, ff, experts, topk;
  Format format;
  bool shared;
};

/// Experts of a case in the memory of a backend: what an op names, and what a tier gives.
struct Model {
  std::vector<ExpertWeights> named, kept;
  ExpertWeights shared;
};

struct Data {
  Array<float, 2> x, weights;
  Array<std::int32_t, 2> ids;
  std::vector<Stored> matrices, other;

  explicit Data(const Case& c) {
    Random random(static_cast<std::uint64_t>(c.tokens + c.dim));
    x = random_array<2>(random, {c.tokens, c.dim});
    weights = random_array<2>(random, {c.tokens, c.topk});
    ids = Array<std::int32_t, 2>({c.tokens, c.topk});
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const std::int64_t first = random.below(c.experts);
      for (std::int64_t k = 0; k < c.topk; ++k)
        ids.values[static_cast<std::size_t>(t * c.topk + k)] = static_cast<std::int32_t>((first + k) % c.experts);
    }
    ids.values[0] = -1;  // an empty slot
    for (std::int64_t e = 0; e <= c.experts; ++e) {
      for (int m = 0; m < 3; ++m) {
        const bool down = m == 1;
        matrices.push_back(random_matrix(random, c.format, down ? c.dim : c.ff, down ? c.ff : c.dim, 0.1));
        other.push_back(random_matrix(random, c.format, down ? c.dim : c.ff, down ? c.ff : c.dim, 0.1));
      }
    }
  }

  /// `named` hold other weights than the tier's copies where `elsewhere`: reading them would show.
  Model put(Memory<CpuBackend>& memory, const Case& c, bool elsewhere) const {
    Model out;
    const auto expert = [&](const std::vector<Stored>& from, std::size_t e) {
      return ExpertWeights{memory.put(from[3 * e]), memory.put(from[3 * e + 1]), memory.put(from[3 * e + 2])};
    };
    for (std::size_t e = 0; e < static_cast<std::size_t>(c.experts); ++e) {
      out.kept.push_back(expert(matrices, e));
      out.named.push_back(elsewhere ? expert(other, e) : out.kept.back());
    }
    if (c.shared) out.shared = expert(matrices, static_cast<std::size_t>(c.experts));
    return out;
  }

  ops::SwigluExperts op(Memory<CpuBackend>& memory, const Case& c, Numeric numeric, const Model& model) const {
    const ops::SwigluExperts out{.x = memory.put(x),
                                 .ids = memory.put(ids),
                                 .weights = memory.put(weights),
                                 .experts = model.named,
                                 .shared = model.shared,
                                 .y = memory.put(Array<float, 2>({c.tokens, c.dim}, -1.0f)),
                                 .limit = 10,
                                 .numeric = numeric};
    out.check();
    return out;
  }

  std::vector<float> run(CpuBackend& backend, const Case& c, Numeric numeric, Memory<CpuBackend>& memory,
                         const Model& model) const {
    const ops::SwigluExperts experts = op(memory, c, numeric, model);
    backend.run(experts);
    return memory.get(experts.y);
  }
};

const Case kCases[] = {{1, 64, 32, 8, 3, Format::fp4_row, true},
                       {5, 96, 64, 6, 2, Format::fp8_tile, false},
                       {23, 192, 160, 16, 4, Format::fp4_row, true},
                       {9, 64, 96, 4, 4, Format::bf16, true}};

}  // namespace

TEST_CASE("experts that a tier gives in waves have the bits of experts in place") {
  for (const Case& c : kCases) {
    const Data data(c);
    for (const Numeric numeric : kNumerics) {
      INFO(c.tokens << " tokens, " << format_name(c.format));
      CpuBackend plain({.threads = 1});
      Memory<CpuBackend> memory(plain);
      const std::vector<float> want = data.run(plain, c, numeric, memory, data.put(memory, c, false));
      for (const std::int64_t threads : {1, 2, 3}) {
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
          CpuBackend owner({.threads = 1});  // of memory that the tier has before the backend is there
          Memory<CpuBackend> kept(owner);
          const Model model = data.put(kept, c, true);
          Waves tier(model.named, model.kept, seed);
          CpuBackend backend({.threads = threads, .tier = &tier});
          Memory<CpuBackend> own(backend);
          CHECK(same_bits(data.run(backend, c, numeric, own, model), want));
          CHECK(tier.begun == 1);
          CHECK(tier.ended == 1);
          CHECK((tier.waves > 1 || c.tokens == 1));
        }
      }
    }
  }
}

TEST_CASE("an op that lacks an expert is skipped, and sync tells the tier's reason") {
  const Case& c = kCases[2];
  const Data data(c);
  CpuBackend owner({.threads = 1});
  Memory<CpuBackend> kept(owner);
  const Model model = data.put(kept, c, true);
  Waves tier(model.named, model.kept, 1);
  CpuBackend backend({.threads = 2, .tier = &tier});
  Memory<CpuBackend> memory(backend);
  tier.fails_after = 5;
  const ops::SwigluExperts op = data.op(memory, c, Numeric::exact, model);
  backend.run(op);
  const Failure failure = failure_of([&] { backend.sync(); });
  CHECK(failure.code == Errc::io);
  CHECK(failure.message == "no such expert");
  CHECK(tier.ended == 1);

  tier.fails_after = -1;
  CHECK(same_bits(memory.get(op.y), std::vector<float>(static_cast<std::size_t>(c.tokens * c.dim), -1.0f)));
  // And the next one runs.
  CpuBackend plain({.threads = 1});
  Memory<CpuBackend> place(plain);
  const std::vector<float> want = data.run(plain, c, Numeric::exact, place, data.put(place, c, false));
  CHECK(same_bits(data.run(backend, c, Numeric::exact, memory, model), want));
}

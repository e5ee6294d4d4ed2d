// SPDX-License-Identifier: MIT
//
// How many of a layer's experts a step reads, by the formula and by routing random logits, and the bytes of expert weights that this
// costs over all layers: the reason why decoding a larger batch is cheaper per token. Headers only: no library, no checkpoint.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "dsv41/numerics/rng.hpp"
#include "dsv41/plan/experts_touched.hpp"
#include "dsv41/ref/ref_backend.hpp"

namespace {

struct Router {
  const char* name;
  std::int64_t experts, topk, layers, dim, ff;
};

constexpr std::int64_t kTokens = 4096;  // routed once; every batch size takes them in turn

/// Experts of random logits, so that every choice is equally likely. The logits are a function of (token, expert): every run prints the
/// same.
std::vector<std::int32_t> random_routes(const Router& r) {
  std::vector<float> logits(static_cast<std::size_t>(kTokens * r.experts));
  std::int64_t at = 0;
  for (float& x : logits) {
    using namespace dsv41::numerics;
    x = static_cast<float>(uniform_below_one(random_block(3, at++, Purpose::sample)));
  }
  const std::vector<float> bias(static_cast<std::size_t>(r.experts), 0.0f);
  const std::vector<std::uint8_t> image(kTokens, 0);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kTokens * r.topk));
  std::vector<float> weights(ids.size());
  dsv41::ops::TopkRoute op{.logits = {logits.data(), {kTokens, r.experts}}};
  op.bias = op.bias_vl = {bias.data(), {r.experts}};
  op.image = {image.data(), {kTokens}};
  op.ids = {ids.data(), {kTokens, r.topk}};
  op.weights = {weights.data(), {kTokens, r.topk}};
  op.check();
  dsv41::RefBackend().run(op);
  return ids;
}

/// Mean number of distinct ids in consecutive groups of `group` ids.
double mean_distinct(const std::vector<std::int32_t>& ids, std::int64_t group) {
  std::int64_t distinct = 0;
  for (auto first = ids.begin(); first != ids.end(); first += group) {
    std::vector<std::int32_t> own(first, first + group);
    std::sort(own.begin(), own.end());
    distinct += std::unique(own.begin(), own.end()) - own.begin();
  }
  return static_cast<double>(distinct * group) / static_cast<double>(ids.size());
}

void print_table(const Router& r) {
  const std::vector<std::int32_t> ids = random_routes(r);
  const double expert_bytes = 3.0 * static_cast<double>(r.dim * r.ff) * 17 / 32;  // FP4, and a scale byte for 32 values
  std::printf("%s: %d of %d experts, %.3f MB each, %d layers\n", r.name, static_cast<int>(r.topk),
              static_cast<int>(r.experts), expert_bytes / 1e6, static_cast<int>(r.layers));
  std::printf("batch  expected  routed    MB a step  MB a token\n");
  for (std::int64_t batch = 1; batch <= 512; batch *= 2) {
    const double expected = dsv41::plan::expected_experts_touched(r.experts, r.topk, batch);
    const double bytes = expected * expert_bytes * static_cast<double>(r.layers);
    std::printf("%5d  %8.1f  %6.1f  %11.3f  %10.3f\n", static_cast<int>(batch), expected,
                mean_distinct(ids, batch * r.topk), bytes / 1e6, bytes / 1e6 / static_cast<double>(batch));
  }
}

}  // namespace

int main() {
  print_table({.name = "released", .experts = 384, .topk = 6, .layers = 40, .dim = 5120, .ff = 2304});
  print_table({.name = "demo", .experts = 16, .topk = 3, .layers = 6, .dim = 192, .ff = 96});
}

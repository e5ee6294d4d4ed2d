// SPDX-License-Identifier: MIT
//
// How many of a layer's experts a step reads, by the formula and by routing random logits, and the bytes of expert weights that this
// costs over all layers: the reason why decoding a larger batch is cheaper per token. The released model, and the demo checkpoint's.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "dsv41/core/v41_flash.hpp"
#include "dsv41/numerics/rng.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/checkpoint.hpp"

namespace {

constexpr std::int64_t kTokens = 4096;  // routed once; every batch size takes them in turn

/// Experts of random logits, so that every choice is equally likely. The logits are a function of (token, expert): every run prints the
/// same.
std::vector<std::int32_t> random_routes(const dsv41::ModelConfig& c) {
  std::vector<float> logits(static_cast<std::size_t>(kTokens * c.experts));
  std::int64_t at = 0;
  for (float& x : logits) {
    using namespace dsv41::numerics;
    x = static_cast<float>(uniform_below_one(random_block(3, at++, Purpose::sample)));
  }
  const std::vector<float> bias(static_cast<std::size_t>(c.experts), 0.0f);
  const std::vector<std::uint8_t> image(kTokens, 0);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kTokens * c.topk));
  std::vector<float> weights(ids.size());
  dsv41::ops::TopkRoute op{.logits = {logits.data(), {kTokens, c.experts}}};
  op.bias = op.bias_vl = {bias.data(), {c.experts}};
  op.image = {image.data(), {kTokens}};
  op.ids = {ids.data(), {kTokens, c.topk}};
  op.weights = {weights.data(), {kTokens, c.topk}};
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

void print_table(const char* name, const dsv41::ModelConfig& c) {
  const std::vector<std::int32_t> ids = random_routes(c);
  const dsv41::plan::ModelSizes sizes = dsv41::plan::model_sizes(c);
  std::printf("%s: %d of %d experts, %.3f MB each, %d layers\n", name, static_cast<int>(c.topk),
              static_cast<int>(c.experts), static_cast<double>(sizes.expert_bytes) / 1e6, static_cast<int>(c.layers));
  std::printf("batch  expected  routed    MB a step  MB a token\n");
  for (std::int64_t batch = 1; batch <= 512; batch *= 2) {
    const dsv41::plan::StepCost step = step_cost(c, sizes, batch);
    std::printf("%5d  %8.1f  %6.1f  %11.3f  %10.3f\n", static_cast<int>(batch), step.experts,
                mean_distinct(ids, batch * c.topk), step.expert_bytes / 1e6,
                step.expert_bytes / 1e6 / static_cast<double>(batch));
  }
}

}  // namespace

int main() try {
  print_table("released", dsv41::v41_flash());
  print_table("demo", dsv41::runtime::Checkpoint::open(DSV41_DEMO_DIR).config());
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
} catch (const dsv41::Error& e) {
  std::fprintf(stderr, "03_experts_touched: %s\n", e.what());
  return 1;
}

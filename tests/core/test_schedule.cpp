// SPDX-License-Identifier: MIT
//
// The schedule of the release, and of models that lack its mechanisms.
#include "dsv41/core/schedule.hpp"

#include <cstdint>
#include <vector>

#include "support/catch.hpp"

using namespace dsv41;

namespace {

ModelConfig released() {
  ModelConfig c;
  c.layers = 40;
  for (int l = 0; l < 40; ++l) c.ratios.push_back(l < 2 ? 0 : l < 20 ? 2 : 1);
  c.kv_sources = {2, 8, 14, 20};
  c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
  c.candidate_source = 20;
  c.engram.layers = {1, 14};
  c.draft.tap_layers = {37, 38, 39};
  return c;
}

}  // namespace

TEST_CASE("the release: two window layers, four full, four that read again, the rest reuse") {
  const Schedule s = make_schedule(released());
  REQUIRE(s.layers.size() == 40);
  int counts[4] = {};
  for (const LayerPlan& plan : s.layers) ++counts[static_cast<std::size_t>(plan.kind)];
  CHECK(counts[static_cast<std::size_t>(LayerKind::window)] == 2);
  CHECK(counts[static_cast<std::size_t>(LayerKind::full)] == 4);
  CHECK(counts[static_cast<std::size_t>(LayerKind::reindex)] == 4);
  CHECK(counts[static_cast<std::size_t>(LayerKind::reuse)] == 30);
  CHECK(s.boundary == 20);
}

TEST_CASE("each layer reads the source at or before it") {
  const Schedule s = make_schedule(released());
  for (std::size_t l = 0; l < 40; ++l) {
    INFO("layer " << l);
    CHECK(s.layers[l].source == (l < 2 ? -1 : l < 8 ? 0 : l < 14 ? 1 : l < 20 ? 2 : 3));
    CHECK(s.layers[l].ratio == (l < 2 ? 0 : l < 20 ? 2 : 1));
  }
}

TEST_CASE("candidates are published by one layer and bind the index sources after it only") {
  const Schedule s = make_schedule(released());
  for (std::size_t l = 0; l < 40; ++l) {
    INFO("layer " << l);
    CHECK(s.layers[l].publishes_candidates == (l == 20));
    CHECK(s.layers[l].limited_to_candidates == (l == 24 || l == 28 || l == 32 || l == 36));
  }
}

TEST_CASE("Engram tables and taps are numbered in the order of their lists") {
  const Schedule s = make_schedule(released());
  CHECK(s.layers[1].engram == 0);
  CHECK(s.layers[14].engram == 1);
  CHECK(s.layers[2].engram == -1);
  CHECK(s.layers[37].tap == 0);
  CHECK(s.layers[39].tap == 2);
  CHECK(s.layers[36].tap == -1);
}

TEST_CASE("a model of window layers has no sources and no boundary") {
  ModelConfig c;
  c.layers = 3, c.ratios = {0, 0, 0};
  const Schedule s = make_schedule(c);
  CHECK(s.boundary == -1);
  for (const LayerPlan& plan : s.layers) {
    CHECK(plan.kind == LayerKind::window);
    CHECK(plan.source == -1);
    CHECK_FALSE((plan.publishes_candidates || plan.limited_to_candidates));
  }
}

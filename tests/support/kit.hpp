// SPDX-License-Identifier: MIT
//
// Cases of the conformance kit (docs/conformance.md), and the model's values for them on any host backend: the prompt in one step or
// cut into chunks, and its greedy continuation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/model/model.hpp"
#include "dsv41/model/state.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "golden.hpp"
#include "recording.hpp"
#include "seam_comparison.hpp"

namespace dsv41::test {

struct KitCase {
  std::string name, covers;
  runtime::ModelFolder model;
  runtime::SafetensorsFile expected;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> image;
  std::size_t greedy = 0;  ///< tokens of the continuation

  explicit KitCase(const std::filesystem::path& folder)
      : name(folder.filename().string()),
        model(runtime::ModelFolder::open(folder)),
        expected(runtime::SafetensorsFile::open(folder / "seams.safetensors")),
        tokens(values<std::int32_t>(expected, "prompt.tokens")),
        image(values<std::uint8_t>(expected, "prompt.image")),
        greedy(values<std::int32_t>(expected, "greedy").size()) {
    if (image.empty()) image.assign(tokens.size(), 0);
    std::ifstream file(folder / "covers.txt");
    std::getline(file, covers);
  }
};

/// The folders that the kit lists as whole.
inline std::vector<std::filesystem::path> kit_folders(const std::filesystem::path& kit) {
  std::vector<std::filesystem::path> out;
  std::ifstream list(kit / "complete");
  for (std::string name; std::getline(list, name);) out.push_back(kit / name);
  return out;
}

/// Every seam of a case, its prompt cut into steps of `chunk` rows (0: one step), and its greedy continuation row by row.
template <class B>
SeamValues run_case(const KitCase& c, Numeric numeric, std::size_t chunk) {
  const std::size_t prompt = c.tokens.size();
  if (chunk == 0) chunk = prompt;
  Recording<B> backend;
  const auto max_rows = static_cast<std::int64_t>(std::min(chunk, prompt));
  const Limits limits{
      .max_context = static_cast<std::int64_t>(prompt + c.greedy), .max_rows = max_rows, .score_rows = max_rows};
  const ModelConfig& config = c.model.checkpoint.config();
  Model<Recording<B>> model(backend, config, c.model.checkpoint.weights(), c.model.token_map, numeric);
  backend.prepare(config, max_rows);
  CachePool<Recording<B>> pool(backend, config, 2);
  State<Recording<B>> state(pool, limits.max_context);
  Scratch<Recording<B>> scratch(backend, config, limits);
  std::vector<float> last(static_cast<std::size_t>(config.vocab));
  std::vector<std::int32_t> fed, history(static_cast<std::size_t>(config.engram.look_back()));

  const auto feed = [&](const std::int32_t* ids, const std::uint8_t* image, std::int64_t rows) {
    std::vector<std::int64_t> positions;
    for (std::int64_t r = 0; r < rows; ++r) positions.push_back(state.position() + r);
    const Segment segment{.state = &state.sequence(), .first_row = 0, .rows = rows, .first_position = state.position()};
    numerics::engram_history(fed.data(), std::ssize(fed), std::ssize(history), history.data());
    for (std::int64_t r = 0; r < rows; ++r) fed.push_back(image[r] != 0 ? numerics::kEngramDead : ids[r]);
    const Batch batch{.ids = {ids, {rows}},
                      .image = {image, {rows}},
                      .image_rows = {},
                      .positions = {positions.data(), {rows}},
                      .history = {history.data(), {1, std::ssize(history)}},
                      .segments = {&segment, 1}};
    const ScratchViews t = scratch.views().first_rows(rows);
    state.reserve(rows);
    model.step(backend, batch, t);
    state.advance(rows);
    std::vector<float> logits(static_cast<std::size_t>(rows * config.vocab));
    model.logits(backend, t, 0, rows, {logits.data(), {rows, config.vocab}});
    last.assign(logits.end() - config.vocab, logits.end());
  };
  for (std::size_t first = 0; first < prompt; first += chunk) {
    feed(c.tokens.data() + first, c.image.data() + first, static_cast<std::int64_t>(std::min(chunk, prompt - first)));
  }
  SeamValues out = backend.values;
  std::vector<double>& continuation = out["greedy"];
  const std::uint8_t text = 0;
  while (continuation.size() < c.greedy) {
    const auto next = static_cast<std::int32_t>(argmax(last.data(), config.vocab));
    continuation.push_back(next);
    feed(&next, &text, 1);
  }
  return out;
}

}  // namespace dsv41::test

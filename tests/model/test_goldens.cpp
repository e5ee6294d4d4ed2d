// SPDX-License-Identifier: MIT
//
// Every golden folder against RefBackend: logits, every named inner value, every decision; class `deployed` sublayer by sublayer and in
// logits; and any split of the prompt into calls, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/schedule.hpp"
#include "dsv41/model/model.hpp"
#include "dsv41/model/state.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/recording.hpp"
#include "support/share.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Golden {
  std::filesystem::path folder;
  runtime::ModelFolder model;
  runtime::SafetensorsFile expected;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> image;

  explicit Golden(const std::filesystem::path& path)
      : folder(path),
        model(runtime::ModelFolder::open(path)),
        expected(runtime::SafetensorsFile::open(path / "expected.safetensors")),
        tokens(values<std::int32_t>(expected, "tokens")),
        image(values<std::uint8_t>(expected, "image")) {
    if (image.empty()) image.assign(tokens.size(), 0);
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// One sequence of a golden on any backend, sized to run in one step and to keep all index scores.
template <class B>
struct Run {
  B backend;
  Limits limits;
  Model<B> model;
  CachePool<B> pool;
  State<B> state;
  Scratch<B> scratch;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> history;
  Segment segment;
  Batch batch;

  Run(const Golden& g, Numeric numeric)
      : limits{.max_context = g.rows(), .max_rows = g.rows(), .score_rows = g.rows()},
        model(backend, g.model.checkpoint.config(), g.model.checkpoint.weights(), g.model.token_map, numeric),
        pool(backend, model.config(), g.rows()),  // rings that keep every row, to compare them all
        state(pool, limits.max_context),
        scratch(backend, model.config(), limits) {
    state.reserve(g.rows());
    for (std::int64_t p = 0; p < g.rows(); ++p) positions.push_back(p);
    history.assign(static_cast<std::size_t>(model.config().engram.look_back()), numerics::kEngramDead);
    segment = {.state = &state.sequence(), .first_row = 0, .rows = g.rows()};
    batch = {.ids = {g.tokens.data(), {g.rows()}},
             .image = {g.image.data(), {g.rows()}},
             .image_rows = {},
             .positions = {positions.data(), {g.rows()}},
             .history = {history.data(), {1, std::ssize(history)}},
             .segments = {&segment, 1}};
  }

  std::vector<float> logits() {
    const std::int64_t rows = batch.rows(), vocab = model.config().vocab;
    std::vector<float> out(static_cast<std::size_t>(rows * vocab));
    model.logits(backend, scratch.views(), 0, rows, {out.data(), {rows, vocab}});
    return out;
  }
};

void check_logits(const std::vector<float>& got, const std::vector<double>& want, std::int64_t vocab,
                  double tolerance) {
  CHECK(norm_error({got.begin(), got.end()}, want) < tolerance);
  const std::vector<float> expected(want.begin(), want.end());
  for (std::size_t row = 0; row < got.size(); row += static_cast<std::size_t>(vocab)) {
    CHECK(argmax(got.data() + row, vocab) == argmax(expected.data() + row, vocab));
  }
}

/// 3 of "trace.layers.3.attn.index_scores"
std::size_t layer_of(std::string_view name) {
  return static_cast<std::size_t>(std::atoll(std::string(name.substr(name.find("layers.") + 7)).c_str()));
}

bool is_decision(std::string_view name) {
  return name.ends_with("expert_ids") || name.ends_with("chosen") || name.ends_with("engram_rows");
}

/// The scores that a layer limited to candidates was asked for: the trace also holds those outside the blocks, which are never computed.
std::vector<double> where_scored(const std::vector<double>& got, std::vector<double> want) {
  for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
    if (got[i] == -HUGE_VAL) want[i] = -HUGE_VAL;
  }
  return want;
}

}  // namespace

TEST_CASE("goldens, class exact: logits, argmax, every inner value and every decision") {
  const auto folders = golden_folders();
  REQUIRE(folders.size() == kFolders);
  for (const auto& folder : folders) {
    INFO(folder.filename().string());
    const Golden g(folder);
    Run<Recording<RefBackend>> run(g, Numeric::exact);
    run.model.step(run.backend, run.batch, run.scratch.views());
    check_logits(run.logits(), values<double>(g.expected, "logits"), run.model.config().vocab, kExactTolerance);

    const Schedule schedule = make_schedule(run.model.config());
    std::size_t compared = 0;
    for (const runtime::TensorInfo& t : g.expected.tensors()) {
      if (!t.name.starts_with("trace.layers.") || t.name.ends_with("_margin")) continue;
      INFO(t.name);
      const auto found = run.backend.values.find(t.name.substr(6));
      REQUIRE(found != run.backend.values.end());
      std::vector<double> want = doubles(t);
      if (t.name.ends_with("index_scores") && schedule.layers[layer_of(t.name)].limited_to_candidates)
        want = where_scored(found->second, std::move(want));
      CHECK(norm_error(found->second, want) <= (is_decision(t.name) ? 0 : kExactTolerance));
      ++compared;
    }
    CHECK(compared >= 2 * static_cast<std::size_t>(run.model.config().layers));
    if (const runtime::TensorInfo* taps = g.expected.find("trace.taps"); taps != nullptr && taps->bytes > 0) {
      const Out<float, 2> got = run.scratch.views().taps;
      CHECK(norm_error({got.data(), got.data() + got.size()}, doubles(*taps)) < kExactTolerance);
    }
  }
}

TEST_CASE("goldens, class deployed: each sublayer from the stored inputs") {
  std::size_t folders = 0;
  for (const auto& folder : golden_folders()) {
    const Golden g(folder);
    if (g.expected.find("deployed.layers.0.attn_in") == nullptr) continue;
    ++folders;
    Run<RefBackend> run(g, Numeric::deployed);
    const std::int64_t dim = run.model.config().dim;
    for (std::size_t l = 0; l < static_cast<std::size_t>(run.model.config().layers); ++l) {
      const Layer& layer = run.model.layer(l);
      const ScratchViews& t = run.scratch.views();
      for (const bool attention : {true, false}) {
        const std::string site = "deployed.layers." + std::to_string(l) + (attention ? ".attn" : ".ffn");
        const std::vector<float> in = values<float>(g.expected, site + "_in"),
                                 want = values<float>(g.expected, site + "_out");
        const In<float, 2> x(in.data(), {g.rows(), dim});
        if (attention) {
          layer.attend(run.backend, x, run.batch, t, t.attn_out);
        } else {
          layer.moe().forward(run.backend, x, run.batch.image, t.moe, t.ffn_out);
        }
        const float* got = (attention ? t.attn_out : t.ffn_out).data();
        std::size_t equal = 0;
        double worst = 0;
        for (std::int64_t row = 0; row < g.rows(); ++row) {
          const float *a = got + row * dim, *b = want.data() + row * dim;
          float top = 0;
          for (std::int64_t i = 0; i < dim; ++i) top = std::max(top, std::fabs(b[i]));
          const double ulp = std::ldexp(1.0, std::ilogb(top) - 7);
          for (std::int64_t i = 0; i < dim; ++i) {
            equal += a[i] == b[i];
            worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])) / ulp);
          }
        }
        INFO(folder.filename().string() << " " << site);
        CHECK(static_cast<double>(equal) >= kDeployedEqual * static_cast<double>(want.size()));
        CHECK(worst <= kDeployedUlps);
      }
    }
  }
  CHECK(folders == kDeployedSublayerFolders);
}

TEST_CASE("goldens, class deployed: logits and argmax where the case is steady") {
  std::size_t folders = 0;
  for (const auto& folder : golden_folders()) {
    const Golden g(folder);
    if (g.expected.find("deployed.logits") == nullptr) continue;
    ++folders;
    INFO(folder.filename().string());
    Run<RefBackend> run(g, Numeric::deployed);
    run.model.step(run.backend, run.batch, run.scratch.views());
    check_logits(run.logits(), values<double>(g.expected, "deployed.logits"), run.model.config().vocab,
                 kDeployedTolerance);
    const Out<float, 2> taps = run.scratch.views().taps;  // what the drafter reads is rounded too
    for (std::int64_t i = 0; i < taps.size(); ++i) {
      if (numerics::bf16_round(taps.data()[i]) != taps.data()[i]) FAIL("tap " << i << " is " << taps.data()[i]);
    }
  }
  CHECK(folders == kDeployedLogitFolders);
}

TEST_CASE("B52, B08: a prompt in one call, in chunks of 1, 2, 3 or 7, and token by token gives the same bits") {
  for (const auto& folder : golden_folders()) {
    const Golden g(folder);
    for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
      std::vector<float> whole;
      for (const std::size_t chunk :
           {g.tokens.size(), std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}}) {
        if (kShare > 1 && (chunk == 2 || chunk == 3)) continue;
        INFO(folder.filename().string() << ", " << numeric_name(numeric) << ", chunks of " << chunk);
        runtime::Engine engine(
            g.model, {.numeric = numeric, .max_context = g.rows(), .max_rows = static_cast<std::int64_t>(chunk)});
        runtime::Session session = engine.open_session();
        std::vector<float> logits;
        for (std::size_t first = 0; first < g.tokens.size(); first += chunk) {
          const std::size_t count = std::min(chunk, g.tokens.size() - first);
          session.append({.ids = {g.tokens.data() + first, count},
                          .logit_rows = runtime::kAllRows,
                          .image = {g.image.data() + first, count}});
          const In<float, 2> rows = session.logits();
          logits.insert(logits.end(), rows.data(), rows.data() + rows.size());
        }
        if (whole.empty()) whole = logits;
        REQUIRE(logits.size() == whole.size());
        CHECK(std::memcmp(logits.data(), whole.data(), whole.size() * sizeof(float)) == 0);
      }
    }
  }
}

// SPDX-License-Identifier: MIT
//
// Sizes of the release against the published figures (architecture.md 10; checkpoint.md 2.1; serving.md 1.7, 2.2, 4.2 and 4.5), and of the
// golden folders against their files. Exact integers were worked out from the shapes of checkpoint.md 2.2, apart from the library.
#include "dsv41/plan/sizes.hpp"

#include <map>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "../support/golden.hpp"
#include "../support/raw_safetensors.hpp"
#include "dsv41/core/cache_layout.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/core/schedule.hpp"
#include "dsv41/core/v41_flash.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/runtime/config_file.hpp"

using dsv41::Errc;
using dsv41::ModelConfig;
using dsv41::plan::model_sizes;
using dsv41::plan::ModelSizes;
using dsv41::plan::PartSize;
using dsv41::plan::step_cost;
using dsv41::runtime::Part;
using namespace dsv41::test;

namespace {

const std::filesystem::path kGolden = DSV41_GOLDEN_DIR;

const ModelConfig& release() {
  static const ModelConfig config = dsv41::v41_flash();
  return config;
}

const ModelSizes& released() {
  static const ModelSizes sizes = model_sizes(release());
  return sizes;
}

ModelConfig config_of(const std::filesystem::path& folder) {
  return dsv41::runtime::parse_config(read_file(folder / "config.json"), "config.json");
}

double billions(std::int64_t count) {
  return static_cast<double>(count) / 1e9;
}

std::int64_t sum_of(const std::vector<std::int64_t>& list) {
  std::int64_t total = 0;
  for (const std::int64_t x : list) total += x;
  return total;
}

/// Parts that always-read weights are made of.
bool always_read(Part part) {
  return part == Part::attention || part == Part::compressor || part == Part::indexer || part == Part::seams ||
         part == Part::router || part == Part::shared || part == Part::engram || part == Part::head;
}

}  // namespace

TEST_CASE("parameters of the release are the published ones") {
  const ModelSizes& s = released();
  CHECK(s.expert_params == 35389440);  // 35.4 M
  CHECK(s.expert_bytes == 18800640);
  CHECK(s.routed_params == std::int64_t{40} * 384 * 35389440);
  CHECK(billions(s.routed_params) == Approx(543.6).margin(0.05));
  CHECK(s.shared_params == 1415577600);  // 1.4 B
  CHECK(s.engram_params == 196613849600);
  CHECK(billions(s.engram_params) == Approx(196.6).margin(0.05));
  CHECK(s.engram_bytes == 202758032400);
  CHECK(static_cast<double>(s.engram_bytes) / (1 << 30) == Approx(188.8).margin(0.05));
  CHECK(s.engram_projection_params == 157286400);  // 157 M
  CHECK(s.other_params == 21279435474);
  CHECK(s.total_params == 763205315794);
  CHECK(s.total_bytes == 510286023000);
  CHECK(s.active_decode_params == 16130606192);  // 16 B
  CHECK(s.active_prefill_params == 7895585592);  // 8 B
}

TEST_CASE("caches and traffic of the release are the published ones") {
  const ModelSizes& s = released();
  CHECK(s.entry_bytes == 288);
  CHECK(s.index_key_bytes == 68);
  CHECK(s.window_row_bytes == 528);
  CHECK(s.kv_bytes_per_token == 890.0);
  CHECK(kv_bytes(release(), s, 1048576) == 933232640);  // "1 M tokens official = 933 MB"
  CHECK(kv_bytes(release(), s, 131072) == 116654080);   // "128 K = 117 MB"
  CHECK(kv_bytes(release(), s, 1) == 356);              // the groups of ratio 2 are open
  CHECK(kv_bytes(release(), s, 0) == 0);
  CHECK(s.window_bytes == 2703360);
  CHECK(s.window_bytes + s.draft_window_bytes == 2906112);
  CHECK(s.carry_bytes == 12288);
  CHECK(s.seam_elements == 51200);
  CHECK(s.seams == 80);
  CHECK(s.engram_bytes_per_token == 12672);
}

TEST_CASE("weight bytes of a step: what is always read, and the experts that a batch touches") {
  const ModelSizes& s = released();
  const auto one = step_cost(release(), s, 1);
  CHECK(one.experts == Approx(6));
  CHECK(one.expert_bytes == Approx(4512153600.0));  // 40 * 6 * 18,800,640: "4.51 GB routed"
  CHECK(one.bytes == Approx(13035097920.0).epsilon(1e-12));
  std::int64_t always = 0;
  for (const PartSize& part : s.parts) {
    if (always_read(part.part)) always += part.bytes;
  }
  CHECK(always == 8522921408);  // "8.44 GB always-read", "compressors/indexers add ~0.1 GB"
  const auto many = step_cost(release(), s, 64);
  CHECK(many.experts == Approx(243.8).margin(0.05));
  CHECK(many.bytes == Approx(191902201418.35).epsilon(1e-12));
  double before = 0;
  for (const std::int64_t batch : {0, 1, 2, 16, 64, 512, 4096}) {
    const auto cost = step_cost(release(), s, batch);
    CHECK(cost.bytes > before);
    CHECK(cost.experts <= 384);
    before = cost.bytes;
  }
  CHECK(failure_of([&] { step_cost(release(), s, -1); }).code == Errc::invalid_argument);
}

TEST_CASE("a step reads at most what a part holds, and rows that tokens share once") {
  std::vector<std::filesystem::path> folders = golden_folders();
  folders.push_back(kGolden / "release");
  for (const std::filesystem::path& folder : folders) {
    INFO(folder);
    const ModelConfig c = config_of(folder);
    const ModelSizes s = model_sizes(c);
    for (const PartSize& part : s.parts) {
      INFO(part_name(part.part));
      double before = 0;
      for (const std::int64_t batch :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{1024}, INT64_MAX}) {
        const double bytes = part_step_bytes(c, s, part, batch);
        CHECK(bytes >= before);
        CHECK(bytes <= static_cast<double>(part.bytes));
        before = bytes;
      }
      const double one = part_step_bytes(c, s, part, 1);
      if (part.part == Part::embed) CHECK(one == Approx(2.0 * static_cast<double>(c.dim)));
      if (part.part == Part::engram_table) CHECK(one == Approx(static_cast<double>(s.engram_bytes_per_token)));
    }
  }
  const PartSize& embed = released().parts.front();
  REQUIRE(embed.part == Part::embed);
  // 1 - 1/e of the vocabulary for as many tokens as it has.
  CHECK(part_step_bytes(release(), released(), embed, 129280) == Approx(0.63212 * 129280 * 10240).epsilon(1e-4));
}

TEST_CASE("configs that cannot be planned with are refused, and so are negative numbers") {
  const auto refused = [](auto&& change, const std::string& key) {
    ModelConfig c = release();
    change(c);
    const Failure failure = failure_of([&] { model_sizes(c); });
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says(key));
    CHECK(failure_of([&] { dsv41::plan::released_shards(c); }).message == failure.message);
  };
  refused([](ModelConfig& c) { c = {}; }, "vocab_size");
  refused([](ModelConfig& c) { c.experts = 0; }, "n_routed_experts");
  refused([](ModelConfig& c) { c.ratios[2] = 0; }, "kv_source_layer_ids");
  refused([](ModelConfig& c) { c.engram.rows.clear(); }, "engram_num_embeddings");
  refused(
      [](ModelConfig& c) {
        c.engram.rows = {std::int64_t{1} << 40, std::int64_t{1} << 40};
      },
      "engram_num_embeddings of layer 1 is 1099511627776, expected 384006168: the sum of its primes");
  refused([](ModelConfig& c) { ++c.engram.rows[1]; }, "layer 14 is 384016683, expected 384016682");

  ModelConfig no_ratio = release();
  no_ratio.ratios[2] = 0;
  CHECK(failure_of([&] { kv_bytes(no_ratio, released(), 1); }).code == Errc::format);
  const Failure context = failure_of([] { kv_bytes(release(), released(), -1000); });
  CHECK(context.code == Errc::invalid_argument);
  CHECK(context.message == "kv_bytes: context is -1000, expected at least 0");
  for (const PartSize& part : released().parts) {
    CHECK(failure_of([&] { part_step_bytes(release(), released(), part, -1); }).message ==
          "part_step_bytes: batch is -1, expected at least 0");
  }
}

TEST_CASE("parts add up to what the files hold") {
  std::vector<std::filesystem::path> folders = golden_folders();
  folders.insert(folders.end(), {kGolden / "release", DSV41_DEMO_DIR});
  for (const std::filesystem::path& folder : folders) {
    INFO(folder);
    const ModelConfig c = config_of(folder);
    const ModelSizes s = model_sizes(c);
    std::int64_t tensors = 0, bytes = 0;
    for (const auto& shard : dsv41::plan::released_shards(c)) {
      tensors += static_cast<std::int64_t>(shard.tensors.size());
      bytes += static_cast<std::int64_t>(shard.payload_bytes);
    }
    std::int64_t params = 0;
    for (const PartSize& part : s.parts) {
      INFO(part_name(part.part));
      tensors -= part.tensors;
      bytes -= part.bytes;
      params += part.params;
      CHECK(sum_of(part.layer_bytes) == part.bytes);
    }
    CHECK(tensors == 0);
    CHECK(bytes == 0);
    CHECK(params == s.total_params);
  }
}

TEST_CASE("sizes of the golden folders follow their own schedules") {
  for (const std::filesystem::path& folder : golden_folders()) {
    INFO(folder);
    const ModelConfig c = config_of(folder);
    const ModelSizes s = model_sizes(c);
    // Parameters by the files' own element counts: an FP4 byte has two, a scale none.
    std::int64_t params = 0;
    for (const RawTensor& t : read_raw(folder / "model.safetensors")) {
      std::int64_t count = t.dtype == "F8_E8M0" ? 0 : t.dtype == "I8" ? 2 : 1;
      for (const std::int64_t extent : t.shape) count *= extent;
      params += count;
    }
    CHECK(s.total_params == params);
    CHECK(s.seams == 2 * c.layers);
    CHECK(s.active_prefill_params < s.active_decode_params);
    CHECK((s.kv_bytes_per_token == 0) == c.kv_sources.empty());
    CHECK((s.engram_bytes_per_token == 0) == c.engram.layers.empty());
    CHECK(s.shared_params == c.layers * c.shared_experts * 3 * c.dim * c.ff);
    // Whole groups cost what the rate says.
    std::int64_t context = 1;
    for (const std::int32_t source : c.kv_sources) context *= c.ratios[static_cast<std::size_t>(source)];
    CHECK(static_cast<double>(kv_bytes(c, s, context)) == Approx(s.kv_bytes_per_token * static_cast<double>(context)));
  }
}

TEST_CASE("what a plan says of caches is what sequences are laid out for") {
  std::vector<std::filesystem::path> folders = golden_folders();
  folders.insert(folders.end(), {kGolden / "release", DSV41_DEMO_DIR});
  for (const std::filesystem::path& folder : folders) {
    INFO(folder);
    const ModelConfig c = config_of(folder);
    const ModelSizes s = model_sizes(c);
    const dsv41::CacheLayout layout = dsv41::make_cache_layout(c, 0);
    const auto bytes = [&](std::int64_t position, bool bounded) {
      std::int64_t total = 0;
      each_cache_run(layout, c, position, bounded, [&](const dsv41::CacheRun& run) { total += run.bytes; });
      return total;
    };
    CHECK(layout.block_bytes - layout.rings.front() == s.window_bytes);
    CHECK(static_cast<double>(layout.page_bytes) ==
          Approx(s.kv_bytes_per_token * static_cast<double>(layout.page_positions)));
    for (const std::int64_t context : {0, 1, 2, 5, 63, 64, 1000})
      CHECK(bytes(context, false) == kv_bytes(c, s, context));
    // One token before a page's end every group is open and lacks one.
    const std::int64_t position = (c.window / layout.page_positions + 2) * layout.page_positions - 1;
    CHECK(bytes(position, true) - bytes(position, false) == s.window_bytes + s.carry_bytes);
  }
}

TEST_CASE("rows that are no multiple of a quantiser's block stay float32 in the caches") {
  ModelConfig c = release();
  c.head_dim = 520;
  c.index_dim = 144;
  CHECK_NOTHROW(validate(c));
  ModelSizes s = model_sizes(c);
  CHECK(s.window_row_bytes == 2080);
  CHECK(s.entry_bytes == 2080);
  CHECK(s.index_key_bytes == 576);
  c.head_dim = 528;  // a multiple of 16
  s = model_sizes(c);
  CHECK(s.window_row_bytes == 2112);
  CHECK(s.entry_bytes == 264 + 33);
}

TEST_CASE("prefill runs an Engram module at the last kv source, and none behind it") {
  ModelConfig c = release();
  c.engram.layers = {1, 20};
  CHECK(model_sizes(c).active_prefill_params == released().active_prefill_params);
  c.engram.layers = {1, 21};
  const std::int64_t module = 157286400 + 2 * 4 * 5120 + 24 * 256;  // wkv, gate weights, rows
  CHECK(model_sizes(c).active_prefill_params == released().active_prefill_params - module);
  CHECK(model_sizes(c).active_decode_params == released().active_decode_params);
}

TEST_CASE("without kv sources prefill runs every layer, and without a part its figures are 0") {
  ModelConfig c = release();
  c.ratios.assign(40, 0);
  c.kv_sources.clear();
  c.index_sources.clear();
  c.candidate_source = -1;
  c.engram = {};
  c.shared_experts = 0;
  CHECK_NOTHROW(validate(c));
  const ModelSizes s = model_sizes(c);
  CHECK(s.active_decode_params - s.active_prefill_params == c.vocab * c.dim + c.dim);  // head and last norm
  CHECK(s.kv_bytes_per_token == 0);
  CHECK(s.entry_bytes == 0);
  CHECK(s.carry_bytes == 0);
  CHECK(s.engram_params == 0);
  CHECK(s.engram_projection_params == 0);
  CHECK(s.shared_params == 0);
  CHECK(s.window_bytes == 2703360);
}

TEST_CASE("sums beyond 63 bits are refused, not wrapped around") {
  ModelConfig c = release();
  c.heads = c.head_dim = c.q_rank = 1 << 20;
  c.o_groups = 1;
  CHECK_NOTHROW(validate(c));
  const Failure failure = failure_of([&] { model_sizes(c); });
  CHECK(failure.code == Errc::unsupported);
  CHECK(failure.says("2^63 - 1"));
  CHECK(failure_of([&] { kv_bytes(release(), released(), INT64_MAX); }).code == Errc::unsupported);
}

// SPDX-License-Identifier: MIT
//
// sparse_release [options]: the full released geometry, 763 B parameters in 48 files of 510 GB, as sparse files of zeros with some values
// planted: opened, planned, checked at far offsets and decoded within a host budget. Options:
//   --small            golden 01's config with the release's Engram tables and many wide experts: bytes behind 2^32, a second
//   --weight-bytes N   (16 GiB; small: the least budget and three experts more)
//   --tokens N (6), --threads N (all processors), --compare N (1): tokens that are also decoded with all weights mapped
// Fails when a planted value is not where plan/shards.hpp put it, when logits differ between the two, or memory exceeds the budget.
//
// A zero file is no model: norms, embeddings and routers are planted, so that tokens differ and choose their experts, and in two layers two
// experts that every token chooses. The other weights give zero; they are read and multiplied all the same. Scales of zero files are
// 2^-127, subnormal numbers, which processors multiply slowly: those of weights that a token reads whole are planted as 1, and so are those
// of some experts a layer (1.4 GB), which a bias confines the tokens to.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "bench/sparse_model.hpp"
#include "dsv41/backend/cpu.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/ops/embed.hpp"
#include "dsv41/ops/engram_gather.hpp"
#include "dsv41/ops/swiglu_experts.hpp"
#include "dsv41/plan/memory.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "dsv41/runtime/engine.hpp"
#include "runtime/weight_budget.hpp"
#include "support/formulas.hpp"
#include "support/memory.hpp"
#include "support/random.hpp"

namespace {

using namespace dsv41;
using bench::SparseModel;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::uint16_t kOne = 0x3F80;  // bfloat16
constexpr std::uint8_t kScaleOne = 127;

struct Options {
  bool small = false;
  std::int64_t weight_bytes = 16 * kGiB, tokens = 6, threads = 0, compare = 1;
};

Options parse(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return ++i < argc ? std::atoll(argv[i]) : -1; };
    if (word == "--small") {
      out.small = true;
    } else if (word == "--weight-bytes") {
      out.weight_bytes = number();
    } else if (word == "--tokens") {
      out.tokens = number();
    } else if (word == "--threads") {
      out.threads = number();
    } else if (word == "--compare") {
      out.compare = number();
    } else {
      throw Error(Errc::invalid_argument, "unknown option " + word);
    }
  }
  return out;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Bytes of a line of /proc/self/status.
std::int64_t status(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

std::string gib(std::int64_t bytes) {
  std::ostringstream out;
  out.precision(3);
  out << static_cast<double>(bytes) / static_cast<double>(kGiB) << " GiB";
  return out.str();
}

void say_memory(const std::string& when) {
  std::cout << when << ": resident " << gib(status("VmRSS")) << " (anonymous " << gib(status("RssAnon"))
            << ", of files " << gib(status("RssFile")) << ")\n";
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw Error(Errc::internal, what);
}

std::string config_text(bool small) {
  const std::filesystem::path golden = DSV41_GOLDEN_DIR;
  const std::string release = test::read_file(golden / "release" / "config.json");
  if (!small) return release;
  nlohmann::json out = nlohmann::json::parse(test::read_file(golden / "01-all-mechanisms" / "config.json"));
  const nlohmann::json from = nlohmann::json::parse(release)["text_config"];
  nlohmann::json& to = out.contains("text_config") ? out["text_config"] : out;
  for (const char* key :
       {"engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads", "engram_head_dim"})
    to[key] = from[key];
  to["moe_intermediate_size"] = 131072, to["n_routed_experts"] = 512;  // a layer's file goes beyond 2^32 bytes too
  return out.dump();
}

class Bench {
 public:
  Bench(const Options& options)
      : options_(options),
        text_(config_text(options.small)),
        config_(runtime::parse_config(text_, "config.json")),
        model_(config_, text_) {
    const std::int64_t last = config_.vocab - 1;
    for (std::int64_t i = 0; i < 8; ++i) ids_.push_back(static_cast<std::int32_t>(last - i * (last / 8)));
    busy_ = options.small ? 4 : 32;
    layers_ = {config_.layers / 2, config_.layers - 1};
    experts_ = {config_.experts / 2, config_.experts - 1};
  }

  void run() {
    const double start = now();
    plant();
    std::cout << model_.shards().size() << " files of " << gib(static_cast<std::int64_t>(model_.apparent_bytes()))
              << " in all, planted in " << now() - start << " s\n";
    say_plan();
    check_refusal();
    const double opening = now();
    const runtime::ModelFolder folder{
        .checkpoint = runtime::Checkpoint::open(model_.folder()), .tokenizer = {}, .token_map = token_map()};
    std::cout << "opened in " << now() - opening << " s\n";
    say_memory("opened");
    check_tables(folder.checkpoint.weights());
    check_embedding(folder.checkpoint.weights());
    if (options_.small) options_.weight_bytes = least(folder);
    check_experts(folder.checkpoint);
    const std::vector<float> logits = decode(folder, options_.weight_bytes, options_.tokens);
    const std::vector<float> mapped = decode(folder, 0, options_.compare);
    expect(std::equal(mapped.begin(), mapped.end(), logits.begin()),
           "logits within the budget are not those of mapped weights");
    std::cout << "the first " << options_.compare << " tokens have the same logits with all weights mapped\n";
  }

 private:
  /// Codes of an Engram row, no NaN among them; they tell rows and columns apart.
  std::vector<std::uint8_t> row_codes(std::int64_t row) const {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(config_.engram.dim));
    test::Random random(static_cast<std::uint64_t>(row));
    for (std::uint8_t& code : out) code = static_cast<std::uint8_t>(random.below(120));
    return out;
  }
  std::vector<std::uint8_t> row_scales(std::int64_t row) const {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(scale_blocks(config_.engram.dim)));
    for (std::size_t b = 0; b < out.size(); ++b)
      out[b] = static_cast<std::uint8_t>(120 + (static_cast<std::size_t>(row) + b) % 9);
    return out;
  }

  /// Rows around those that byte 2^31 and byte 2^32 of values and of scales lie in, and the last.
  std::vector<std::int64_t> far_rows(std::int64_t rows) const {
    std::vector<std::int64_t> out{0, 1, rows - 2, rows - 1};
    for (const int bit : {31, 32, 33, 36}) {
      for (const std::int64_t each : {config_.engram.dim, scale_blocks(config_.engram.dim)}) {
        const std::int64_t row = (std::int64_t{1} << bit) / each;
        for (std::int64_t r = row - 1; r <= row + 1; ++r) {
          if (r < rows) out.push_back(r);
        }
      }
    }
    return out;
  }

  static std::vector<std::uint16_t> random_bf16(test::Random& random, std::int64_t count, double size) {
    std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
    for (std::uint16_t& v : out)
      v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(random.normal(size)) >> 16);
    return out;
  }
  std::vector<std::uint16_t> embedding(std::int32_t id) const {
    test::Random random(static_cast<std::uint64_t>(id) + 1);
    return random_bf16(random, config_.dim, 1);
  }

  void plant() {
    for (const plan::Shard& shard : model_.shards()) {
      for (const plan::ShardTensor& t : shard.tensors) {
        if (t.name.ends_with("norm.weight") && !t.name.starts_with("vision."))
          model_.plant(t.name, 0, std::vector<std::uint16_t>(static_cast<std::size_t>(t.shape[0]), kOne));
        const bool part = t.name.find(".experts.") != std::string::npos || t.name.ends_with("engram.embed.scale");
        if (t.name.ends_with(".scale") && !part) plant_scales(t.name);
      }
    }
    for (std::int64_t l = 0; l < config_.layers; ++l) {
      for (std::int64_t b = 0; b < busy_; ++b) plant_busy(l, b * (config_.experts - 1) / (busy_ - 1), 1000);
      for (const std::int64_t e : experts_) plant_busy(l, e, 2000);
    }
    const auto dim = static_cast<std::uint64_t>(config_.dim);
    test::Random random(7);
    for (const std::int32_t id : ids_) {
      model_.plant("embed.weight", static_cast<std::uint64_t>(id) * dim * 2, embedding(id));
      model_.plant("head.weight", static_cast<std::uint64_t>(id) * dim * 2, random_bf16(random, config_.dim, .1));
    }
    for (std::int64_t l = 0; l < config_.layers; ++l) {
      model_.plant("layers." + std::to_string(l) + ".ffn.gate.weight", 0,
                   random_bf16(random, config_.experts * config_.dim, 1 / std::sqrt(static_cast<double>(config_.dim))));
    }
    for (const std::int64_t l : layers_) {
      for (const std::int64_t e : experts_) plant_expert(l, e);
    }
    for (std::size_t m = 0; m < config_.engram.layers.size(); ++m) {
      const std::string name = "layers." + std::to_string(config_.engram.layers[m]) + ".engram.embed.";
      for (const std::int64_t row : far_rows(config_.engram.rows[m])) {
        model_.plant(name + "weight", static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(config_.engram.dim),
                     row_codes(row));
        const std::vector<std::uint8_t> scales = row_scales(row);
        model_.plant(name + "scale", static_cast<std::uint64_t>(row) * scales.size(), scales);
      }
    }
  }

  void plant_scales(const std::string& name) {
    model_.plant(name, 0, std::vector<std::uint8_t>(model_.bytes(name), kScaleOne));
  }

  static std::string moe(std::int64_t layer) { return "layers." + std::to_string(layer) + ".ffn."; }
  static std::string expert(std::int64_t layer, std::int64_t expert) {
    return moe(layer) + "experts." + std::to_string(expert) + ".";
  }

  void plant_busy(std::int64_t layer, std::int64_t e, float bias) {
    model_.plant(moe(layer) + "gate.bias", static_cast<std::uint64_t>(e) * sizeof bias, &bias, sizeof bias);
    for (const char* m : {"w1.scale", "w2.scale", "w3.scale"}) plant_scales(expert(layer, e) + m);
  }

  /// FP4 codes of w2's last column; never zero.
  static int down_code(std::int64_t layer, std::int64_t expert, std::int64_t output) {
    return static_cast<int>(1 + (output + layer + 3 * expert) % 7);
  }

  /// The last hidden value alone: gate the sum of the last 32 inputs, up twice that, and the last column of w2.
  void plant_expert(std::int64_t layer, std::int64_t e) {
    const std::int64_t ff = config_.ff, dim = config_.dim;
    const auto last = [](std::int64_t rows, std::int64_t each, std::int64_t count) {  // `count` bytes at the end
      return static_cast<std::uint64_t>(rows * each - count);
    };
    for (const auto& [name, codes] :
         {std::pair{"w1.weight", std::uint8_t{0x22}}, std::pair{"w3.weight", std::uint8_t{0x44}}})  // 1, 2
      model_.plant(expert(layer, e) + name, last(ff, dim / 2, 16), std::vector<std::uint8_t>(16, codes));
    for (std::int64_t o = 0; o < dim; ++o) {
      const auto code = static_cast<std::uint8_t>(down_code(layer, e, o) << 4);  // the odd column is the high nibble
      model_.plant(expert(layer, e) + "w2.weight", last(o + 1, ff / 2, 1), &code, 1);
    }
  }

  std::vector<std::int32_t> token_map() const {
    std::vector<std::int32_t> out(static_cast<std::size_t>(config_.vocab));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % config_.engram.compressed_vocab);
    return out;
  }

  void say_plan() const {
    const plan::ModelSizes sizes = plan::model_sizes(config_);
    std::cout << sizes.total_params << " parameters, " << sizes.total_bytes << " bytes of weights, "
              << plan::step_cost(config_, sizes, 1).bytes / 1e9 << " GB read by a token\n";
    const plan::MemoryPlan memory = plan::plan_memory(config_, sizes, {.host_bytes = options_.weight_bytes}, 64, 1);
    for (const plan::PartMemory& part : memory.parts) {
      if (part.host_bytes > 0)
        std::cout << "  plan: " << runtime::part_name(part.part) << " " << gib(part.host_bytes) << " of "
                  << gib(part.host_bytes + part.file_bytes) << " in memory\n";
    }
  }

  /// The least budget, and three experts more.
  std::int64_t least(const runtime::ModelFolder& folder) const {
    const runtime::WeightBudget some(folder.checkpoint, {.weight_bytes = kGiB});
    return some.report().dense_bytes + 4 * some.report().slot_bytes;
  }

  /// A NaN among the last table's last scales, gigabytes behind its first, is found when the model is opened.
  void check_refusal() {
    const std::int64_t last = config_.engram.rows.back() - 1, blocks = scale_blocks(config_.engram.dim);
    const std::string name = "layers." + std::to_string(config_.engram.layers.back()) + ".engram.embed.scale";
    const std::string says = "NaN (byte 255) at [" + std::to_string(last) + ", " + std::to_string(blocks - 1) + "]";
    const std::uint64_t at = model_.bytes(name) - 1;
    const std::uint8_t nan = 255, good = row_scales(last).back();
    model_.plant(name, at, &nan, 1);
    std::string message;
    try {
      (void)runtime::Checkpoint::open(model_.folder());
    } catch (const Error& e) {
      message = e.what();
    }
    expect(message.find(says) != std::string::npos, "a NaN scale is not refused with " + says + ", but: " + message);
    model_.plant(name, at, &good, 1);
  }

  void check_tables(const ModelWeights& weights) const {
    for (std::size_t m = 0; m < config_.engram.layers.size(); ++m) {
      const Matrix& table = weights.layers[static_cast<std::size_t>(config_.engram.layers[m])].engram.table;
      const std::vector<std::int64_t> rows = far_rows(config_.engram.rows[m]);
      CpuBackend backend({.threads = options_.threads});
      test::Memory<CpuBackend> memory(backend);
      const auto count = std::ssize(rows), dim = config_.engram.dim;
      const Out<float, 2> out = memory.put(test::Array<float, 2>({count, dim}));
      backend.run(ops::EngramGather{
          .table_rows = memory.put(test::Array<std::int64_t, 2>({count, 1}, rows)), .table = table, .out = out});
      backend.sync();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = rows[static_cast<std::size_t>(i)];
        const std::vector<std::uint8_t> codes = row_codes(row), scales = row_scales(row);
        for (std::int64_t c = 0; c < dim; ++c) {
          const double want = test::e4m3_value(codes[static_cast<std::size_t>(c)]) *
                              test::e8m0_value(scales[static_cast<std::size_t>(c / 32)]);
          expect(static_cast<double>(out(i, c)) == want, "Engram table " + std::to_string(m) + ", row " +
                                                             std::to_string(row) + ", column " + std::to_string(c) +
                                                             " is not what was planted");
        }
      }
      std::cout << "Engram table " << m << ": " << count << " rows as planted, up to "
                << *std::max_element(rows.begin(), rows.end()) << " of " << table.rows << "\n";
    }
  }

  void check_embedding(const ModelWeights& weights) const {
    CpuBackend backend({.threads = options_.threads});
    test::Memory<CpuBackend> memory(backend);
    const auto count = std::ssize(ids_), dim = config_.dim, hc = config_.hc;
    const Out<float, 3> streams = memory.put(test::Array<float, 3>({count, hc, dim}));
    backend.run(ops::Embed{.ids = memory.put(ids_),
                           .image = memory.put(std::vector<std::uint8_t>(ids_.size())),
                           .image_rows = {},
                           .table = weights.embed,
                           .streams = streams,
                           .mix = memory.put(test::Array<float, 2>({count, hc}))});
    backend.sync();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<std::uint16_t> want = embedding(ids_[static_cast<std::size_t>(i)]);
      for (std::int64_t c = 0; c < dim; ++c) {
        const auto bits = static_cast<std::uint32_t>(want[static_cast<std::size_t>(c)]) << 16;
        expect(std::bit_cast<std::uint32_t>(streams(i, 0, c)) == bits,
               "embedding " + std::to_string(i) + " is not what was planted");
      }
    }
    std::cout << "embedding: " << count << " rows as planted, up to " << config_.vocab - 1 << "\n";
  }

  /// Outputs of the planted experts, read by the tier, against the formula in double: sums of 32 float32 products and three more.
  void check_experts(const runtime::Checkpoint& checkpoint) const {
    runtime::WeightBudget budget(checkpoint, {.weight_bytes = options_.weight_bytes, .check_weights = options_.small});
    CpuBackend backend({.threads = options_.threads, .tier = &budget.tier()});
    test::Memory<CpuBackend> memory(backend);
    const std::int64_t dim = config_.dim;
    std::vector<float> x(static_cast<std::size_t>(dim));
    for (std::size_t c = 0; c < x.size(); ++c) x[c] = static_cast<float>(c % 7) / 64;
    const double sum = std::accumulate(x.end() - 32, x.end(), 0.0);
    for (const std::int64_t l : layers_) {
      for (const std::int64_t e : experts_) {
        const Out<float, 2> y = memory.put(test::Array<float, 2>({1, dim}));
        backend.run(
            ops::SwigluExperts{.x = memory.put(test::Array<float, 2>({1, dim}, x)),
                               .ids = memory.put(test::Array<std::int32_t, 2>({1, 1}, static_cast<std::int32_t>(e))),
                               .weights = memory.put(test::Array<float, 2>({1, 1}, 0.5f)),
                               .experts = checkpoint.weights().layers[static_cast<std::size_t>(l)].moe.experts,
                               .shared = {},
                               .y = y,
                               .limit = static_cast<float>(config_.swiglu_limit)});
        backend.sync();
        for (std::int64_t o = 0; o < dim; ++o) {
          const double limit = config_.swiglu_limit, gate = std::min(sum, limit), up = std::min(2 * sum, limit);
          const double want = 0.5 * gate / (1 + std::exp(-gate)) * up * test::e2m1_value(down_code(l, e, o));
          expect(std::abs(static_cast<double>(y(0, o)) - want) <= 1e-5 * std::abs(want),
                 "expert " + std::to_string(e) + " of layer " + std::to_string(l) + ": output " + std::to_string(o) +
                     " is " + std::to_string(y(0, o)) + ", expected " + std::to_string(want));
        }
      }
    }
    std::cout << "experts " << experts_[0] << " and " << experts_[1] << " of layers " << layers_[0] << " and "
              << layers_[1] << ": outputs as planted\n";
  }

  /// Logits of `tokens` single steps; 0 bytes: all weights mapped.
  std::vector<float> decode(const runtime::ModelFolder& folder, std::int64_t bytes, std::int64_t tokens) const {
    const double opening = now();
    runtime::Engine engine(
        folder, {.cpu = {.threads = options_.threads}, .max_context = 64, .max_rows = 4, .weight_bytes = bytes});
    runtime::Session session = engine.open_session();
    std::cout << (bytes > 0 ? "within " + gib(bytes) : std::string("mapped")) << ": engine in " << now() - opening
              << " s; tokens in";
    std::vector<float> out;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t id = ids_[static_cast<std::size_t>(t) % ids_.size()];
      const double start = now();
      session.append({.ids = {&id, 1}});
      std::cout << ' ' << now() - start << std::flush;
      const In<float, 2> logits = session.logits();
      out.insert(out.end(), logits.data(), logits.data() + logits.size());
      for (const std::int32_t head : ids_)
        expect(std::isfinite(logits(0, head)) && logits(0, head) != 0, "a planted row of the head gives no logit");
    }
    std::cout << " s\n";
    say_memory("decoded");
    if (bytes > 0) check_counters(engine.weight_tier(), tokens);
    return out;
  }

  void check_counters(const runtime::WeightTier& w, std::int64_t tokens) const {
    std::cout << "dense " << gib(w.dense_bytes) << ", " << w.slots << " slots of "
              << static_cast<double>(w.slot_bytes) / 1e6 << " MB for " << w.experts << " experts; " << w.hits
              << " hits, " << w.misses << " misses, " << gib(w.bytes_read) << " read, " << gib(w.ahead_bytes)
              << " ahead, " << w.stall_seconds << " s waited, " << (w.direct ? "direct" : "through the page cache")
              << "\n";
    expect(w.hits + w.misses == tokens * config_.layers * config_.topk, "not every layer asked for its experts");
    expect(w.dense_bytes + w.slots * w.slot_bytes <= w.limit_bytes, "slots exceed the budget");
    expect(status("VmRSS") <= w.limit_bytes + kGiB,
           "resident memory exceeds the budget by more than caches and scratch");
  }

  Options options_;
  std::string text_;
  ModelConfig config_;
  SparseModel model_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int64_t> layers_, experts_;  // that are planted
  std::int64_t busy_ = 0;                       // experts of a layer that tokens are confined to, beside those
};

}  // namespace

int main(int argc, char** argv) try {
  Bench(parse(argc, argv)).run();
  return std::cout.flush() ? 0 : 1;
} catch (const Error& e) {
  std::cout << std::flush;
  std::cerr << "sparse_release: " << e.what() << '\n';
  return 1;
}

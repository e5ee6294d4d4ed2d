// SPDX-License-Identifier: MIT
//
// model FOLDER [LINE ...] [options]: how fast a whole model decodes and reads prompts, beside what this machine can do, measured in the
// same run. make_mid.py makes the folder that docs/benchmarks.md speaks of. LINE:
//   decode:B    a token for each of B sequences, which hold 128 tokens (decode:1 decode:4 decode:16)
//   prefill:T   a prompt of T tokens, all layers, logits of the last (prefill:512)
//   context:N   a token for one sequence that holds N (context:1024; context:131072 takes minutes to fill)
// Without lines: those in brackets. Options:
//   --backend cpu|ref, --threads N (1), --repeats N (32; of a prompt an eighth), --jsonl (as bench_ops), --small (short, not fast)
// Ids are random, so experts are chosen nearly alike. Times are medians; the bound is the larger of bytes over read bandwidth and float32
// operations over the peak of fused multiply-adds. Bytes: the weights that plan::step_cost expects of such tokens, and what attention and
// indexer read of the caches.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bounds.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/runtime/engine.hpp"
#include "support/random.hpp"

namespace {

using namespace dsv41;
using runtime::Engine;
using runtime::Session;
using Ids = std::vector<std::int32_t>;

struct LineName {
  std::string kind;  // decode, prefill, context
  std::int64_t size = 0;
};

struct Options {
  std::string folder, backend = "cpu";
  std::vector<LineName> lines;
  std::int64_t threads = 1, repeats = 32, mib = 1024;
  bool jsonl = false;
};

/// What a line must at least do.
struct Work {
  double bytes = 0, flop = 0;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument,
              what +
                  "; expected FOLDER [decode:N | prefill:N | context:N ...] [--backend cpu|ref] "
                  "[--threads N] [--repeats N] [--jsonl] [--small]");
}

std::int64_t positive(const std::string& text) {
  const std::int64_t value = std::atoll(text.c_str());
  if (value < 1) refuse("'" + text + "' is no positive number");
  return value;
}

Options parse(int argc, char** argv) {
  Options out;
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (++i >= argc) refuse(word + " needs a value");
      return argv[i];
    };
    if (word == "--backend") {
      out.backend = value();
    } else if (word == "--threads") {
      out.threads = positive(value());
    } else if (word == "--repeats") {
      out.repeats = positive(value());
    } else if (word == "--jsonl") {
      out.jsonl = true;
    } else if (word == "--small") {
      small = true;
    } else if (word.starts_with("-")) {
      refuse("unknown option " + word);
    } else if (out.folder.empty()) {
      out.folder = word;
    } else {
      const std::size_t colon = std::min(word.find(':'), word.size());
      out.lines.push_back({word.substr(0, colon), positive(word.substr(std::min(colon + 1, word.size())))});
      const std::string& kind = out.lines.back().kind;
      if (kind != "decode" && kind != "prefill" && kind != "context") refuse("no line " + word);
    }
  }
  if (out.folder.empty()) refuse("no folder");
  if (out.lines.empty())
    out.lines = {{"decode", 1}, {"decode", 4}, {"decode", 16}, {"prefill", 512}, {"context", 1024}};
  if (small) out.repeats = 2, out.mib = 16;
  return out;
}

double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Ids random_ids(test::Random& random, std::int64_t count, std::int64_t vocab) {
  Ids ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
  return ids;
}

class Bench {
 public:
  Bench(const runtime::ModelFolder& folder, const Options& options)
      : folder_(folder),
        options_(options),
        config_(folder.checkpoint.config()),
        sizes_(plan::model_sizes(config_)),
        memory_(static_cast<std::size_t>(options.mib) << 20, std::byte{1}),
        bounds_(bench::measure_bounds(options.threads, memory_)) {}

  void run() {
    if (options_.jsonl) {
      bound("read_bw", bounds_.read), bound("fma_f32", bounds_.fma);
    } else {
      std::cout << "threads " << bounds_.threads << ", reads " << bounds_.read << " GB/s, " << bounds_.fma
                << " GFLOP/s (" << bounds_.target
                << ")\nline | ms (least, 90 %) | tokens/s | MB | GFLOP | share of the bound\n";
    }
    for (const LineName& line : options_.lines) {
      if (line.kind == "decode") decode(line.size);
      if (line.kind == "prefill") prefill(line.size);
      if (line.kind == "context") context(line.size);
    }
  }

 private:
  static constexpr std::int64_t kHeld = 128;  // tokens of a sequence whose length does not matter

  Engine engine(std::int64_t context, std::int64_t rows, Prefill mode) const {
    return Engine(folder_, {.backend = options_.backend,
                            .cpu = {.threads = options_.threads},
                            .max_context = context,
                            .max_rows = rows,
                            .prefill = mode});
  }

  /// What one token at `position` reads of its caches and computes with them.
  Work caches(std::int64_t position) const {
    const ModelConfig& c = config_;
    Work out;
    for (std::int32_t l = 0; l < c.layers; ++l) {
      const std::int64_t ratio = c.ratios[static_cast<std::size_t>(l)], window = std::min(position + 1, c.window);
      const std::int64_t visible = ratio == 0 ? 0 : (position + 1) / ratio, taken = std::min(visible, c.index_topk);
      out.bytes += static_cast<double>(window * sizes_.window_row_bytes + taken * sizes_.entry_bytes);
      out.flop += 4 * static_cast<double>((window + taken) * c.heads * c.head_dim);
      if (std::find(c.index_sources.begin(), c.index_sources.end(), l) == c.index_sources.end()) continue;
      const bool limited = c.candidate_source >= 0 && l > c.candidate_source;
      const std::int64_t scored = limited ? std::min(visible, c.candidate_blocks * c.candidate_block) : visible;
      out.bytes += static_cast<double>(scored * sizes_.index_key_bytes);
      out.flop += 2 * static_cast<double>(scored * c.index_heads * c.index_dim);
    }
    return out;
  }

  /// A step of `rows` tokens at `position` and behind, logits of `logits` of them; of one sequence, or each of its own.
  Work work(std::int64_t rows, std::int64_t logits, std::int64_t position, bool one_sequence) const {
    std::int64_t head = 0;
    for (const plan::PartSize& part : sizes_.parts) head += part.part == runtime::Part::head ? part.params : 0;
    const double body = static_cast<double>(sizes_.active_decode_params - head);
    Work out{.bytes = plan::step_cost(config_, sizes_, rows).bytes,
             .flop = 2 * (static_cast<double>(rows) * body + static_cast<double>(logits * head))};
    for (std::int64_t i = 0; i < rows; ++i) {
      const Work mine = caches(one_sequence ? position + i : position);
      out.flop += mine.flop;
      if (!one_sequence || i + 1 == rows) out.bytes += mine.bytes;  // rows of one sequence share what they read
    }
    return out;
  }

  /// Times of `timed`, some of which come first and do not count.
  template <class Timed>
  std::vector<double> times(std::int64_t count, const Timed& timed) {
    std::vector<double> out;
    for (std::int64_t i = -2; i < count; ++i) {
      const double ns = timed();
      if (i >= 0) out.push_back(ns);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  void decode(std::int64_t batch) {
    Engine e = engine(kHeld + options_.repeats + 2, 256, Prefill::full);
    std::vector<Session> sessions;
    for (std::int64_t i = 0; i < batch; ++i) {
      sessions.push_back(e.open_session());
      sessions.back().append({.ids = random_ids(random_, kHeld, config_.vocab)});
    }
    const std::vector<double> ns = times(options_.repeats, [&] {
      const Ids ids = random_ids(random_, batch, config_.vocab);
      std::vector<runtime::SessionFeed> feeds;
      for (std::size_t i = 0; i < sessions.size(); ++i) feeds.push_back({&sessions[i], {.ids = {&ids[i], 1}}});
      const double start = now();
      e.step(feeds);
      return now() - start;
    });
    report("decode", batch, kHeld, ns, work(batch, batch, kHeld, false));
  }

  void prefill(std::int64_t tokens) {
    Engine e = engine(tokens, tokens, Prefill::full);
    Session session = e.open_session();
    const std::vector<double> ns = times(std::max<std::int64_t>(options_.repeats / 8, 2), [&] {
      session.rewind(0);
      const Ids ids = random_ids(random_, tokens, config_.vocab);
      const double start = now();
      session.append({.ids = ids});
      return now() - start;
    });
    report("prefill", tokens, 0, ns, work(tokens, 1, 0, true));
  }

  void context(std::int64_t held) {
    Engine e = engine(held + options_.repeats + 2, 512, Prefill::exact);
    Session session = e.open_session();
    const double start = now();
    session.append({.ids = random_ids(random_, held, config_.vocab)});
    std::cerr << "context " << held << ": filled in " << (now() - start) / 1e9 << " s\n";
    const std::vector<double> ns = times(options_.repeats, [&] {
      const Ids ids = random_ids(random_, 1, config_.vocab);
      const double from = now();
      session.append({.ids = ids});
      return now() - from;
    });
    report("context", 1, held, ns, work(1, 1, held, false));
  }

  void bound(const char* name, double value) const {
    std::cout << "{\"bench\": \"bound\", \"name\": \"" << name << "\", \"how\": \"dsv41, " << bounds_.target
              << "\", \"threads\": " << bounds_.threads << ", \"value\": " << value << ", \"unit\": \"G/s\"}"
              << std::endl;
  }

  void report(const char* kind, std::int64_t tokens, std::int64_t held, const std::vector<double>& ns,
              const Work& work) const {
    const double median = ns[ns.size() / 2], high = ns[ns.size() * 9 / 10],
                 share = bounds_.at_least(work.bytes, work.flop) / median;
    if (options_.jsonl) {
      std::cout << "{\"bench\": \"dsv41_" << kind << "\", \"type\": \"fp4\", \"layout\": \"context " << held
                << "\", \"n\": " << config_.layers << ", \"k\": " << config_.dim << ", \"tokens\": " << tokens
                << ", \"threads\": " << bounds_.threads << ", \"ns\": " << median << ", \"ns_min\": " << ns.front()
                << ", \"ns_p90\": " << high << ", \"weight_bytes\": " << work.bytes << ", \"flop\": " << work.flop
                << ", \"runs\": " << ns.size() << ", \"share\": " << share << "}" << std::endl;
      return;
    }
    std::cout << kind << ' ' << tokens << " at " << held << " | " << median / 1e6 << " (" << ns.front() / 1e6 << ", "
              << high / 1e6 << ") | " << 1e9 * static_cast<double>(tokens) / median << " | " << work.bytes / 1e6
              << " | " << work.flop / 1e9 << " | " << share << std::endl;
  }

  const runtime::ModelFolder& folder_;
  const Options& options_;
  const ModelConfig& config_;
  const plan::ModelSizes sizes_;
  const std::vector<std::byte> memory_;
  const bench::Bounds bounds_;
  test::Random random_{1};
};

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const runtime::ModelFolder folder = runtime::ModelFolder::open(options.folder);
  Bench(folder, options).run();
  return std::cout.flush() ? 0 : 1;
} catch (const Error& e) {
  std::cerr << "model: " << e.what() << '\n';
  return 1;
}

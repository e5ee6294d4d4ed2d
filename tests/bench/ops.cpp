// SPDX-License-Identifier: MIT
//
// ops [--backend cpu|ref] [--threads 1,2] [--set-mib 640] [--small] [--jsonl] [Google Benchmark's options]: how fast a backend runs each
// op, beside what this machine can do, measured in the same run. Calls are timed one by one, nine or more; medians count. Weights come from
// memory: each matrix is read again only after `set-mib` of others.
//
//   share   the time that the bound allows over the time taken: the bound is the larger of bytes over read bandwidth and float32 operations
//           over the peak of fused multiply-adds. Ops that count in integers may beat it.
//   small   an eighth of each dimension: shows that everything runs, not how fast
//   jsonl   a JSON object a line: bounds, then cases (bench, type, layout, n, k, tokens, threads, ns, weight_bytes, flop and more)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bounds.hpp"
#include "bench/op_data.hpp"
#include "dsv41/backend/cpu.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/ref/ref_backend.hpp"

namespace {

using namespace dsv41;
using bench::PackedCache;
using bench::WeightSet;

struct Options {
  std::string backend = "cpu";
  std::vector<std::int64_t> threads = {1, 2};
  std::int64_t set_mib = 640;
  std::int64_t shrink = 1, fewest = 9;
  bool jsonl = false;
};

/// One case, its memory in hand.
struct Case {
  std::function<double(std::int64_t)>
      next;  ///< makes a call ready, by its number; returns the bytes that it must read or write
  std::function<void()> run;
  double flop = 0;
};

/// What a case is called, and how to make it.
struct Entry {
  std::string bench, type;
  std::int64_t n = 0, k = 0, tokens = 0;
  std::function<Case()> make;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// All cases on one backend. Entries share the set of weights: a case holds until the next is made.
template <class B>
class Cases {
 public:
  Cases(B& backend, WeightSet& weights, std::int64_t shrink) : b_(backend), weights_(weights), shrink_(shrink) {}

  std::vector<Entry> all() {
    std::vector<Entry> out;
    struct Weight {
      const char* type;
      Format format;
    };
    for (const Weight w :
         {Weight{"fp4", Format::fp4_row}, Weight{"fp8", Format::fp8_tile}, Weight{"bf16", Format::bf16}}) {
      for (const bool down : {false, true}) {
        const std::int64_t n = (down ? 5120 : 2304) / shrink_, k = (down ? 2304 : 5120) / shrink_;
        for (const std::int64_t tokens : {1, 4, 16, 64, 512})
          out.push_back({"linear", w.type, n, k, tokens, [=, this] { return linear(w.format, n, k, tokens); }});
      }
    }
    for (const std::int64_t tokens : {1, 16, 512})
      out.push_back(
          {"swiglu_experts", "fp4", 512 / shrink_, 1024 / shrink_, tokens, [=, this] { return experts(tokens); }});
    for (const std::int64_t tokens : {1, 512})
      out.push_back({"mhc_seam", "f32", 4, 5120 / shrink_, tokens, [=, this] { return seam(tokens); }});
    for (const std::int64_t tokens : {1, 16})
      out.push_back({"sparse_attention", "fp4", 64, 512, tokens, [=, this] { return attention(tokens); }});
    out.push_back({"index_select", "fp4", 131072 / shrink_, 128, 1, [this] { return index(); }});
    for (const std::int64_t tokens : {1, 512})
      out.push_back({"engram_gather", "fp8", 24, 256, tokens, [=, this] { return gather(tokens); }});
    return out;
  }

 private:
  template <class Op>
  std::function<void()> runs(std::shared_ptr<Op> op) {
    op->check();
    return [this, op] {
      b_.run(*op);
      b_.sync();
    };
  }

  Case linear(Format format, std::int64_t n, std::int64_t k, std::int64_t tokens) {
    struct Data {
      std::vector<float> x, y;
    };
    weights_.make(format, n, k);
    auto data = std::make_shared<Data>(
        Data{test::Random(3).normals(tokens * k), std::vector<float>(static_cast<std::size_t>(tokens * n))});
    auto op = std::make_shared<ops::Linear>(
        ops::Linear{.x = {data->x.data(), {tokens, k}}, .w = weights_[0], .y = {data->y.data(), {tokens, n}}});
    return {.next = [this, op, data](std::int64_t i) { return op->w = weights_[i], weights_.matrix_bytes(); },
            .run = runs(op),
            .flop = 2 * static_cast<double>(n * k * tokens)};
  }

  Case experts(std::int64_t tokens) {
    constexpr std::int64_t kExperts = 64, kTopk = 6;
    struct Data {
      std::vector<float> x, y, gates;
      std::vector<std::int32_t> ids = {};
      std::vector<ExpertWeights> experts = std::vector<ExpertWeights>(kExperts);
      test::Random random{4};
    };
    const std::int64_t ff = 512 / shrink_, dim = 1024 / shrink_;
    weights_.make(Format::fp4_row, ff, dim);
    auto data = std::make_shared<Data>(Data{test::Random(3).normals(tokens * dim),
                                            std::vector<float>(static_cast<std::size_t>(tokens * dim)),
                                            std::vector<float>(static_cast<std::size_t>(tokens * kTopk), 0.25f)});
    data->ids.resize(static_cast<std::size_t>(tokens * kTopk));
    const auto take = [this, data, ff, dim](std::int64_t call) {
      for (std::int64_t e = 0; e < kExperts; ++e) {
        const std::int64_t first = (call * kExperts + e) * 3;
        ExpertWeights& expert = data->experts[static_cast<std::size_t>(e)];
        expert = {.w1 = weights_[first], .w2 = weights_[first + 1], .w3 = weights_[first + 2]};
        expert.w2.rows = dim, expert.w2.cols = ff;  // as many bytes and scales the other way round
      }
      std::vector<bool> seen(kExperts);
      for (std::size_t t = 0; t < data->ids.size(); t += kTopk) {
        const std::span ids = std::span(data->ids).subspan(t, kTopk);
        bench::choose(data->random, kExperts, ids);
        for (const std::int32_t id : ids) seen[static_cast<std::size_t>(id)] = true;
      }
      return 3 * weights_.matrix_bytes() * static_cast<double>(std::count(seen.begin(), seen.end(), true));
    };
    take(0);
    auto op = std::make_shared<ops::SwigluExperts>(ops::SwigluExperts{.x = {data->x.data(), {tokens, dim}},
                                                                      .ids = {data->ids.data(), {tokens, kTopk}},
                                                                      .weights = {data->gates.data(), {tokens, kTopk}},
                                                                      .experts = data->experts,
                                                                      .shared = {},
                                                                      .y = {data->y.data(), {tokens, dim}},
                                                                      .limit = 10});
    return {.next = take, .run = runs(op), .flop = 6 * static_cast<double>(ff * dim * tokens * kTopk)};
  }

  Case seam(std::int64_t tokens) {
    constexpr std::int64_t kStreams = 4, kRows = (2 + kStreams) * kStreams;
    struct Data {
      std::vector<float> y, norm, base, scale, streams, mix, input;
      std::int64_t sets;
    };
    const std::int64_t dim = 5120 / shrink_, each = tokens * kStreams * dim;
    weights_.make(Format::f32, kRows, kStreams * dim);
    test::Random random(5);
    // Many sets of streams, like those of prompts that do not stay in a cache from layer to layer.
    const std::int64_t sets = std::max<std::int64_t>(2, tokens > 1 ? std::ssize(weights_.bytes()) / 4 / each : 1);
    auto data = std::make_shared<Data>(Data{.y = random.normals(tokens * dim, 0.01),
                                            .norm = std::vector<float>(static_cast<std::size_t>(dim), 1.0f),
                                            .base = random.normals(kRows),
                                            .scale = {0.1f, 0.1f, 0.1f},
                                            .streams = std::vector<float>(static_cast<std::size_t>(sets * each)),
                                            .mix = std::vector<float>(static_cast<std::size_t>(tokens * kRows), 0.25f),
                                            .input = std::vector<float>(static_cast<std::size_t>(tokens * dim)),
                                            .sets = sets});
    for (float& x : data->streams) x = random.uniform(-1, 1);
    auto op = std::make_shared<ops::MhcSeam>(ops::MhcSeam{.y = {data->y.data(), {tokens, dim}},
                                                          .streams = {data->streams.data(), {tokens, kStreams, dim}},
                                                          .fn = weights_[0],
                                                          .base = {data->base.data(), {kRows}},
                                                          .scale = {data->scale.data(), {3}},
                                                          .norm = {data->norm.data(), {dim}},
                                                          .mix = {data->mix.data(), {tokens, kRows}},
                                                          .input = {data->input.data(), {tokens, dim}},
                                                          .rules = {.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20}});
    // Streams in and out, a sublayer's output in and the next one's input out, and the projection.
    const double bytes =
        static_cast<double>((2 * kStreams + 2) * dim * tokens) * sizeof(float) + weights_.matrix_bytes();
    const double per_element = 2 * (kStreams + 1) * kStreams + 2 * kStreams + 2 + 2 * kRows * kStreams + 3;
    return {.next =
                [this, op, data, each, tokens, dim, bytes](std::int64_t i) {
                  op->fn = weights_[i];
                  op->streams = {data->streams.data() + i % data->sets * each, {tokens, kStreams, dim}};
                  return bytes;
                },
            .run = runs(op),
            .flop = per_element * static_cast<double>(tokens * dim)};
  }

  Case attention(std::int64_t tokens) {
    static constexpr std::int64_t kHeads = 64, kWidth = 512, kWindow = 128, kTopk = 512, kAt = 70000;
    struct Data {
      Data(std::int64_t tokens, std::int64_t capacity)
          : ring(CacheFormat::window, kWindow + tokens, kWidth),
            entries(CacheFormat::entry, capacity, kWidth),
            q(random.normals(tokens * kHeads * kWidth)),
            sink(random.normals(kHeads)),
            out(q.size()),
            ids(static_cast<std::size_t>(tokens * kTopk)),
            counts(static_cast<std::size_t>(tokens), kTopk) {}
      test::Random random{6};
      PackedCache ring, entries;
      std::vector<float> q, sink, out;
      std::vector<std::int32_t> ids, counts;
    };
    const std::int64_t capacity = 65536 / shrink_;
    auto data = std::make_shared<Data>(tokens, capacity);
    auto op =
        std::make_shared<ops::SparseAttention>(ops::SparseAttention{.q = {data->q.data(), {tokens, kHeads, kWidth}},
                                                                    .ring = data->ring.view(),
                                                                    .entries = data->entries.view(),
                                                                    .ids = {data->ids.data(), {tokens, kTopk}},
                                                                    .counts = {data->counts.data(), {tokens}},
                                                                    .sink = {data->sink.data(), {kHeads}},
                                                                    .out = {data->out.data(), {tokens, kHeads, kWidth}},
                                                                    .first_position = kAt,
                                                                    .window = kWindow});
    const double rows = static_cast<double>(row_bytes(CacheFormat::window, kWidth) * (kWindow + tokens - 1) +
                                            row_bytes(CacheFormat::entry, kWidth) * kTopk * tokens);
    const double bytes = rows + 2 * sizeof(float) * static_cast<double>(data->q.size());
    return {.next =
                [data, capacity, bytes](std::int64_t) {
                  for (std::size_t t = 0; t < data->ids.size(); t += kTopk)
                    bench::choose(data->random, capacity, std::span(data->ids).subspan(t, kTopk));
                  return bytes;
                },
            .run = runs(op),
            .flop = 4 * static_cast<double>(tokens * kHeads * kWidth * (kWindow + kTopk))};
  }

  Case index() {
    static constexpr std::int64_t kHeads = 32, kWidth = 128, kTopk = 512;
    struct Data {
      explicit Data(std::int64_t count)
          : keys(CacheFormat::index, count, kWidth),
            q(random.normals(kHeads * kWidth)),
            weights(kHeads, 0.1f),
            ids(kTopk),
            scores(static_cast<std::size_t>(count)) {
        numerics::quantise_row(numerics::Quantiser::index_fp4, q.data(), kHeads * kWidth);
      }
      test::Random random{7};
      PackedCache keys;
      std::vector<float> q, weights;
      std::vector<std::int32_t> ids;
      std::int32_t count = 0;
      std::vector<float> scores;
    };
    const std::int64_t count = 131072 / shrink_;
    auto data = std::make_shared<Data>(count);
    auto op = std::make_shared<ops::IndexSelect>(ops::IndexSelect{.q = {data->q.data(), {1, kHeads, kWidth}},
                                                                  .weights = {data->weights.data(), {1, kHeads}},
                                                                  .keys = data->keys.view(),
                                                                  .ids = {data->ids.data(), {1, kTopk}},
                                                                  .counts = {&data->count, {1}},
                                                                  .blocks = {},
                                                                  .block_counts = {},
                                                                  .scores = {data->scores.data(), {1, count}},
                                                                  .block_scores = {},
                                                                  .first_position = count - 1});
    const double bytes = static_cast<double>(row_bytes(CacheFormat::index, kWidth) * count);
    return {.next = [data, bytes](std::int64_t) { return bytes; },
            .run = runs(op),
            .flop = 2 * static_cast<double>(count * kHeads * kWidth)};
  }

  Case gather(std::int64_t tokens) {
    static constexpr std::int64_t kColumns = 24, kWidth = 256;
    struct Data {
      explicit Data(std::int64_t tokens)
          : rows(static_cast<std::size_t>(tokens * kColumns)),
            out(static_cast<std::size_t>(tokens * kColumns * kWidth)) {}
      std::vector<std::int64_t> rows;
      std::vector<float> out;
      test::Random random{8};
    };
    const std::int64_t rows =
        std::ssize(weights_.bytes()) / (kWidth + kWidth / kScaleBlock) / kColumns * kColumns - kColumns;
    weights_.make(Format::fp8_row, rows, kWidth);
    auto data = std::make_shared<Data>(tokens);
    auto op =
        std::make_shared<ops::EngramGather>(ops::EngramGather{.table_rows = {data->rows.data(), {tokens, kColumns}},
                                                              .table = weights_[0],
                                                              .out = {data->out.data(), {tokens, kColumns * kWidth}}});
    const double bytes = static_cast<double>(tokens * kColumns * (kWidth + kWidth / kScaleBlock));
    return {.next =
                [data, rows, bytes](std::int64_t) {
                  for (std::int64_t& row : data->rows) row = data->random.below(rows);
                  return bytes;
                },
            .run = runs(op)};
  }

  B& b_;
  WeightSet& weights_;
  std::int64_t shrink_;
};

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// One line of the results: an entry at a number of threads.
struct Line {
  Entry entry;
  bench::Bounds bounds;
  double flop = 0;
  std::vector<double> ns = {}, bytes = {};  // one a call
};

class JsonLines final : public benchmark::BenchmarkReporter {
 public:
  JsonLines(const std::map<std::string, Line>& lines, const std::vector<bench::Bounds>& bounds)
      : lines_(lines), bounds_(bounds) {}

  bool ReportContext(const Context&) override {
    for (const bench::Bounds& b : bounds_) {
      bound("read_bw", "dsv41, 8 streams", "GB/s", b.threads, b.read);
      bound("fma_f32", "dsv41, " + b.target, "GFLOP/s", b.threads, b.fma);
      if (b.dot > 0) bound("dot_i8", "dsv41, avx512vnni", "GOP/s", b.threads, b.dot);
    }
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    const auto at = lines_.find(runs.front().run_name.function_name);
    if (at == lines_.end() || at->second.ns.empty()) return;
    const Line& line = at->second;
    std::vector<double> ns = line.ns;
    std::sort(ns.begin(), ns.end());
    const double middle = ns[ns.size() / 2], bytes = median(line.bytes);
    std::cout << "{\"bench\": \"dsv41_" << line.entry.bench << "\", \"type\": \"" << line.entry.type
              << "\", \"layout\": \"plain\", \"n\": " << line.entry.n << ", \"k\": " << line.entry.k
              << ", \"tokens\": " << line.entry.tokens << ", \"threads\": " << line.bounds.threads
              << ", \"ns\": " << middle << ", \"ns_min\": " << ns.front() << ", \"ns_p90\": " << ns[ns.size() * 9 / 10]
              << ", \"weight_bytes\": " << bytes << ", \"flop\": " << line.flop << ", \"runs\": " << ns.size()
              << ", \"share\": " << line.bounds.at_least(bytes, line.flop) / middle << "}" << std::endl;
  }

 private:
  static void bound(const char* name, const std::string& how, const char* unit, std::int64_t threads, double value) {
    std::cout << "{\"bench\": \"bound\", \"name\": \"" << name << "\", \"how\": \"" << how
              << "\", \"threads\": " << threads << ", \"value\": " << value << ", \"unit\": \"" << unit << "\"}"
              << std::endl;
  }

  const std::map<std::string, Line>& lines_;
  const std::vector<bench::Bounds>& bounds_;
};

/// Calls of one line: as many as Google Benchmark asks for, and `fewest` in all.
void measure(benchmark::State& state, Case& one, Line& line, std::int64_t& call, std::int64_t fewest) {
  constexpr std::int64_t kUncounted = 2;  // a pool wakes, workspaces grow, pages are touched
  for (; call < kUncounted; ++call) one.next(call), one.run();
  const auto timed = [&] {
    const double bytes = one.next(call++), start = now_ns();
    one.run();
    line.ns.push_back(now_ns() - start);
    line.bytes.push_back(bytes);
  };
  for ([[maybe_unused]] auto ignored : state) {
    timed();
    state.SetIterationTime(1e-9 * line.ns.back());
  }
  while (std::ssize(line.ns) < fewest) timed();
  const double ns = median(line.ns), bytes = median(line.bytes);
  state.counters["GB/s"] = bytes / ns;
  state.counters["GFLOP/s"] = line.flop / ns;
  state.counters["share"] = line.bounds.at_least(bytes, line.flop) / ns;
}

template <class B, class Make>
int run(const Options& options, const Make& make) {
  WeightSet weights(static_cast<std::size_t>(options.set_mib) << 20);
  weights.make(Format::fp4_row, 64, 64);  // memory that was never written to is read from one page of zeros
  std::vector<bench::Bounds> bounds;
  std::vector<std::unique_ptr<B>> backends;
  std::map<std::string, Line> lines;
  struct {
    std::string name;
    Case one;
    std::int64_t call = 0;
  } now;
  bool failed = false;
  for (const std::int64_t threads : options.threads) {
    bounds.push_back(bench::measure_bounds(threads, weights.bytes()));
    backends.push_back(make(threads));
    std::cerr << "threads " << threads << ": reads " << bounds.back().read << " GB/s, " << bounds.back().fma
              << " GFLOP/s, dot of bytes " << bounds.back().dot << " GOP/s (" << bounds.back().target << ")\n";
  }
  std::vector<Cases<B>> cases;
  for (const auto& backend : backends) cases.emplace_back(*backend, weights, options.shrink);
  for (std::size_t entry = 0; entry < cases.front().all().size(); ++entry) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Entry e = cases[i].all()[entry];
      const std::string name = e.bench + '/' + e.type + '/' + std::to_string(e.n) + 'x' + std::to_string(e.k) +
                               "/T:" + std::to_string(e.tokens) + "/t:" + std::to_string(bounds[i].threads);
      lines[name] = {.entry = e, .bounds = bounds[i]};
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&, name](benchmark::State& state) {
                                     Line& line = lines.at(name);
                                     try {
                                       if (now.name != name) {
                                         now = {.name = name, .one = {}, .call = 0};
                                         now.one = line.entry.make();
                                         line.flop = now.one.flop;
                                       }
                                       measure(state, now.one, line, now.call, options.fewest);
                                     } catch (const Error& error) {
                                       failed = true;
                                       state.SkipWithError(error.what());
                                     }
                                   })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  JsonLines reporter(lines, bounds);
  const std::size_t ran =
      options.jsonl ? benchmark::RunSpecifiedBenchmarks(&reporter) : benchmark::RunSpecifiedBenchmarks();
  return ran == 0 || failed ? 1 : 0;
}

[[noreturn]] void usage(const std::string& what) {
  throw Error(Errc::invalid_argument,
              what + "; expected --backend cpu|ref, --threads N,.., --set-mib N, --small, --jsonl");
}

std::int64_t positive(const std::string& text) {
  const std::int64_t value = std::atoll(text.c_str());
  if (value < 1) usage("'" + text + "' is no positive number");
  return value;
}

Options parse(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      return ++i < argc ? argv[i] : (usage(std::string(name) + " needs a value"), "");
    };
    if (name == "--backend") {
      out.backend = value();
    } else if (name == "--threads") {
      out.threads.clear();
      std::istringstream list(value());
      for (std::string item; std::getline(list, item, ',');) out.threads.push_back(positive(item));
    } else if (name == "--set-mib") {
      out.set_mib = positive(value());
    } else if (name == "--small") {
      out.shrink = 8, out.fewest = 1, out.set_mib = 16;
    } else if (name == "--jsonl") {
      out.jsonl = true;
    } else {
      usage("unknown option " + std::string(name));
    }
  }
  if (out.backend == "ref") out.threads = {1};
  if (out.threads.empty() || (out.backend != "cpu" && out.backend != "ref"))
    usage("no backend " + out.backend + ", or no threads");
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  const Options options = parse(argc, argv);
  if (options.backend == "ref")
    return run<RefBackend>(options, [](std::int64_t) { return std::make_unique<RefBackend>(); });
  return run<CpuBackend>(
      options, [](std::int64_t threads) { return std::make_unique<CpuBackend>(CpuOptions{.threads = threads}); });
} catch (const Error& e) {
  std::cerr << "ops: " << e.what() << '\n';
  return 1;
}

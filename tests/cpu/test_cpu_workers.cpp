// SPDX-License-Identifier: MIT
//
// The library's threads, a host's own, and the CPU backend's options.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/cpu_backends.hpp"
#include "support/failure.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Counts how often each piece ran, and whether a worker ever had two at a time.
class Counting final : public Workers::Pieces {
 public:
  Counting(std::int64_t pieces, std::int64_t workers)
      : runs(static_cast<std::size_t>(pieces)), busy_(static_cast<std::size_t>(workers)) {}

  void run(std::int64_t piece, std::int64_t worker) noexcept override {
    if (busy_[static_cast<std::size_t>(worker)].exchange(true)) doubled = true;
    ++runs[static_cast<std::size_t>(piece)];
    if (piece % 7 == 0) std::this_thread::yield();
    busy_[static_cast<std::size_t>(worker)] = false;
  }

  std::vector<int> runs;  // unguarded: two threads in one piece are a race, and a wrong count
  std::atomic<bool> doubled{false};

 private:
  std::vector<std::atomic<bool>> busy_;
};

}  // namespace

TEST_CASE("every piece runs once, and no worker has two at a time", "[workers]") {
  for (const std::int64_t threads : {1, 2, 3, 5}) {
    const std::unique_ptr<Workers> workers = make_workers(threads);
    CHECK(workers->count() == threads);
    bool each_once = true, doubled = false;
    for (std::int64_t call = 0; call < 3000; ++call) {
      Counting pieces(call % 40, threads);
      workers->run(call % 40, pieces);
      for (const int runs : pieces.runs) each_once = each_once && runs == 1;
      doubled = doubled || pieces.doubled;
      if (call % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until they sleep
    }
    CHECK(each_once);
    CHECK_FALSE(doubled);
  }
}

TEST_CASE("workers are shared out: with two threads both run pieces that take a while", "[workers]") {
  const std::unique_ptr<Workers> workers = make_workers(2);
  struct Slow final : Workers::Pieces {
    void run(std::int64_t, std::int64_t worker) noexcept override {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++ran[static_cast<std::size_t>(worker)];
    }
    std::array<std::atomic<int>, 2> ran{};
  } pieces;
  workers->run(100, pieces);
  CHECK(pieces.ran[0] + pieces.ran[1] == 100);
  CHECK(pieces.ran[0] > 0);
  CHECK(pieces.ran[1] > 0);
}

TEST_CASE("a host's own workers run the backend's pieces, with the same bits", "[workers]") {
  /// Runs the pieces last first, all as one worker: an order that no thread of the library's gives.
  struct Backwards final : Workers {
    std::int64_t count() const noexcept override { return 2; }
    void run(std::int64_t count, Pieces& pieces) noexcept override {
      ++calls;
      for (std::int64_t i = count; i-- > 0;) pieces.run(i, 1);
    }
    int calls = 0;
  } host;
  Random random(1);
  const Array<float, 2> x = random_array<2>(random, {9, 300});
  const Stored w = random_matrix(random, Format::fp4_row, 500, 300);
  const auto product = [&](CpuBackend& backend) {
    Memory<CpuBackend> memory(backend);
    const auto y = memory.put(Array<float, 2>({9, 500}));
    backend.run(ops::Linear{.x = memory.put(x), .w = memory.put(w), .y = y});
    return memory.get(y);
  };
  CpuBackend own({.threads = 1}), hosted({.workers = &host});
  CHECK(hosted.threads() == 2);
  CHECK(same_bits(product(own), product(hosted)));
  CHECK(host.calls > 0);
}

TEST_CASE("options that cannot be met are refused by name", "[workers]") {
  const auto refused = [](const CpuOptions& options, const std::string& message) {
    const Failure failure = failure_of([&] { CpuBackend backend(options); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message.substr(0, message.size()) == message);
  };
  refused({.threads = -1}, "cpu: threads is -1, expected at least 0");
  refused({.threads = 1, .target = "AVX9"}, "cpu: target 'AVX9', expected one of ");
  CHECK(failure_of([] { make_workers(0); }).message == "cpu: 0 threads, expected at least 1");
  CHECK(CpuBackend().threads() == cpu_processors());
  for (const std::string_view target : cpu_targets())
    CHECK(CpuBackend({.threads = 1, .target = target}).target() == target);
}

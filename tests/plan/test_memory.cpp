// SPDX-License-Identifier: MIT
//
// Where weights and caches would live: nothing is lost, no budget is exceeded, what is read most comes first.
#include "dsv41/plan/memory.hpp"

#include <algorithm>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "dsv41/core/v41_flash.hpp"

using dsv41::Errc;
using dsv41::plan::Budgets;
using dsv41::plan::MemoryPlan;
using dsv41::plan::ModelSizes;
using dsv41::plan::PartMemory;
using dsv41::plan::plan_memory;
using dsv41::runtime::Part;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

const dsv41::ModelConfig& release() {
  static const dsv41::ModelConfig config = dsv41::v41_flash();
  return config;
}

const ModelSizes& sizes() {
  static const ModelSizes released = dsv41::plan::model_sizes(release());
  return released;
}

MemoryPlan plan(std::int64_t device, std::int64_t host, std::int64_t context = 131072, std::int64_t batch = 1) {
  return plan_memory(release(), sizes(), {device, host}, context, batch);
}

const PartMemory& of(const MemoryPlan& plan, Part part) {
  const auto at = std::find_if(plan.parts.begin(), plan.parts.end(), [&](auto& p) { return p.part == part; });
  REQUIRE(at != plan.parts.end());
  return *at;
}

}  // namespace

TEST_CASE("every byte has one place, and no budget is exceeded") {
  for (const std::int64_t device : {std::int64_t{0}, 1 * kGiB, 8 * kGiB, 139 * kGiB, 1000 * kGiB}) {
    for (const std::int64_t host : {std::int64_t{0}, 64 * kGiB, 512 * kGiB}) {
      INFO(device << " device, " << host << " host");
      const MemoryPlan p = plan(device, host);
      CHECK(p.device_bytes <= device);
      CHECK(p.host_bytes <= host);
      std::int64_t bytes = p.caches_fit ? p.cache_bytes : 0;
      for (const PartMemory& part : p.parts) bytes += part.device_bytes + part.host_bytes + part.file_bytes;
      CHECK(bytes == p.device_bytes + p.host_bytes + p.file_bytes);
      CHECK(bytes == sizes().total_bytes + (p.caches_fit ? p.cache_bytes : 0));
      CHECK(p.parts.size() == sizes().parts.size());
    }
  }
}

TEST_CASE("caches come first and are whole: device, else host, else they do not fit") {
  const std::int64_t one =
      116654080 + 2703360 + 202752 + 12288;  // serving.md 2.2 and 1.7; the drafter's rings are the third
  MemoryPlan p = plan(one, 0);
  CHECK(p.cache_bytes == one);
  CHECK((p.caches_fit && p.caches_on_device));
  p = plan(one - 1, one);
  CHECK((p.caches_fit && !p.caches_on_device));
  CHECK(p.device_bytes <= one - 1);
  p = plan(one - 1, one - 1);
  CHECK_FALSE(p.caches_fit);
  CHECK(plan(0, 0, 131072, 7).cache_bytes == 7 * one);
}

TEST_CASE("on a device of 139 GiB: what is always read, then experts, and tables stay in their files") {
  const MemoryPlan p = plan(139 * kGiB, 0);
  for (const Part part : {Part::attention, Part::seams, Part::router, Part::shared, Part::engram, Part::head}) {
    INFO(part_name(part));
    CHECK(of(p, part).file_bytes == 0);
    CHECK(of(p, part).host_bytes == 0);
  }
  // 139 GiB less 8.5 GB of weights and 0.1 GB of caches are 7,480 experts of 18.8 MB (with the drafter beside them, serving.md 6 has
  // "~6,500").
  const std::int64_t experts = of(p, Part::experts).device_bytes;
  CHECK(experts % 18800640 == 0);
  CHECK(experts / 18800640 == (139 * kGiB - 8522921408 - p.cache_bytes) / 18800640);
  CHECK(of(p, Part::experts).file_bytes == std::int64_t{288777830400} - experts);
  CHECK(of(p, Part::engram_table).file_bytes == 202758032400);
  CHECK(139 * kGiB - p.device_bytes < 18800640);
}

TEST_CASE("host memory takes the next: the rest of the experts, then whole tables") {
  const MemoryPlan p = plan(139 * kGiB, 256 * kGiB);
  CHECK(of(p, Part::experts).file_bytes == 0);
  CHECK(of(p, Part::experts).host_bytes > 0);
  CHECK(of(p, Part::engram_table).host_bytes == std::int64_t{384006168} * 264);  // layer 1's
  CHECK(of(p, Part::engram_table).file_bytes == 202758032400 - of(p, Part::engram_table).host_bytes);
}

TEST_CASE("parts come in the order of bytes read per byte held") {
  const MemoryPlan p = plan(1000 * kGiB, 0, 4096, 16);
  CHECK(p.file_bytes == 0);
  double before = 2;
  for (const PartMemory& part : p.parts) {
    const double density = part.step_bytes / static_cast<double>(part.device_bytes);
    INFO(part_name(part.part));
    CHECK(density <= before);
    before = density;
  }
  CHECK(p.parts.back().part == Part::vision);
  CHECK(of(p, Part::draft).step_bytes == 0);
}

TEST_CASE(
    "whatever the batch, weights that every step reads come before those it chooses, and before those it does not "
    "run") {
  const auto kind = [](Part part) {
    if (part == Part::draft || part == Part::draft_experts || part == Part::vision) return 2;
    return part == Part::embed || part == Part::experts || part == Part::engram_table ? 1 : 0;
  };
  for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{64}, std::int64_t{10000000}, std::int64_t{1} << 40}) {
    INFO("batch " << batch);
    int before = 0;
    for (const PartMemory& part : plan(1000 * kGiB, 0, 0, batch).parts) {
      INFO(part_name(part.part));
      CHECK(kind(part.part) >= before);
      before = kind(part.part);
      CHECK(part.step_bytes <= static_cast<double>(part.device_bytes + part.host_bytes + part.file_bytes));
    }
  }
}

TEST_CASE("negative numbers are refused") {
  CHECK(failure_of([] { plan(-1, 0); }).code == Errc::invalid_argument);
  CHECK(failure_of([] { plan(0, -1); }).code == Errc::invalid_argument);
  CHECK(failure_of([] { plan(0, 0, -1); }).code == Errc::invalid_argument);
  CHECK(failure_of([] { plan(0, 0, 0, -1); }).says("-1"));
  CHECK(failure_of([] { plan(0, 0, 1048576, INT64_MAX); }).code == Errc::unsupported);
}

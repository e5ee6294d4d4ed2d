// SPDX-License-Identifier: MIT
//
// The engine on the SIMD kernels, with all weights where they are mapped or within a budget.
#include "dsv41/backend/cpu.hpp"
#include "engine_impl.hpp"
#include "engine_on.hpp"
#include "weight_budget.hpp"

namespace dsv41::runtime {

std::shared_ptr<Engine::Impl> Engine::Impl::on_cpu(const ModelFolder& folder, const EngineOptions& options) {
  if (options.weight_bytes == 0) return std::make_shared<On<CpuBackend>>(folder, options, options.cpu);
  auto budget = std::make_unique<WeightBudget>(folder.checkpoint, options);
  CpuOptions cpu = options.cpu;
  cpu.tier = &budget->tier();
  auto engine = std::make_shared<On<CpuBackend>>(folder, options, cpu);
  engine->budget = std::move(budget);
  return engine;
}

}  // namespace dsv41::runtime

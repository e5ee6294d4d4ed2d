// SPDX-License-Identifier: MIT
//
// The engine on the reference.
#include "dsv41/ref/ref_backend.hpp"
#include "engine_impl.hpp"
#include "engine_on.hpp"

namespace dsv41::runtime {

std::shared_ptr<Engine::Impl> Engine::Impl::on_ref(const ModelFolder& folder, const EngineOptions& options) {
  return std::make_shared<On<RefBackend>>(folder, options);
}

}  // namespace dsv41::runtime

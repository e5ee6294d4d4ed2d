// SPDX-License-Identifier: MIT
//
// The edge of the runtime: what the host runs out of is told as the library tells it.
#pragma once

#include <new>
#include <string>

#include "dsv41/core/error.hpp"

namespace dsv41::runtime {

/// work(), with std::bad_alloc as Error out_of_memory that begins with `what`.
template <class Work>
auto with_memory(const char* what, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, std::string(what) + ": the host has no memory left for it");
  }
}

}  // namespace dsv41::runtime

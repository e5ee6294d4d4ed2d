// SPDX-License-Identifier: MIT
//
// How often this test program has called any operator new so far.
#pragma once

#include <cstddef>

namespace dsv41::test {

std::size_t allocations();

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// How often this test program has called any operator new so far, how much of it is still held, and a way to make one call fail.
#pragma once

#include <cstddef>

namespace dsv41::test {

std::size_t allocations();

/// Allocations that have not been given back.
std::ptrdiff_t live_allocations();

/// The n-th allocation from now (1: the next) fails; 0: none does. Those behind it succeed, as small ones do where a large one fails.
void fail_allocation(std::size_t n);

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// How much of a long test runs: all of it, or under the address sanitizer, which costs that much, one part in kShare; a table of cases
// leaves out there (kShare > 1) those that make no other kind of call than the ones that stay.
#pragma once

namespace dsv41::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kShare = 20;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr int kShare = 20;
#else
inline constexpr int kShare = 1;
#endif
#else
inline constexpr int kShare = 1;
#endif

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// The one place that knows which Catch2 is installed: 3.x has catch_all.hpp, 2.13 (Debian 12) a single catch.hpp.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

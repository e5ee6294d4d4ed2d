// SPDX-License-Identifier: MIT
//
// Marks a function that host and device code share. Plain C++ sees nothing.
#pragma once

#if defined(__CUDACC__)
#define DSV41_HD __host__ __device__
#else
#define DSV41_HD
#endif

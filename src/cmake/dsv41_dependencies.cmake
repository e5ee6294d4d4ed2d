# SPDX-License-Identifier: MIT
#
# What libdsv41_core.a links. The build reads this file, and it is installed beside the package file, so both look in the same way.
# Leaves a message in dsv41_missing when something is not there.
set(dsv41_missing "")
find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  set(dsv41_missing "dsv41 needs pkg-config, to find Highway, PCRE2 and utf8proc. Debian: apt-get install pkg-config")
  return()
endif()

if(NOT TARGET PkgConfig::dsv41_hwy)
  pkg_check_modules(dsv41_hwy QUIET IMPORTED_TARGET "libhwy >= 1.0.3")
endif()
if(NOT TARGET PkgConfig::dsv41_hwy)
  set(dsv41_missing "dsv41 needs Highway 1.0.3 or later, for the SIMD kernels of the CPU backend. Debian: apt-get install libhwy-dev")
endif()

if(NOT TARGET PkgConfig::dsv41_pcre2)
  pkg_check_modules(dsv41_pcre2 QUIET IMPORTED_TARGET libpcre2-8)
endif()
if(NOT TARGET PkgConfig::dsv41_pcre2)
  set(dsv41_missing "dsv41 needs PCRE2, for the tokenizer's splitting patterns. Debian: apt-get install libpcre2-dev")
endif()

if(NOT TARGET PkgConfig::dsv41_utf8proc)
  pkg_check_modules(dsv41_utf8proc QUIET IMPORTED_TARGET libutf8proc)
endif()
if(NOT TARGET PkgConfig::dsv41_utf8proc)
  set(dsv41_missing "dsv41 needs utf8proc, for the Unicode normalisation of token texts. Debian: apt-get install libutf8proc-dev")
endif()

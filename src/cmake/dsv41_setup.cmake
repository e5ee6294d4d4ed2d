# SPDX-License-Identifier: MIT
#
# dsv41_setup(target) gives a target of this project the properties that all of them share.
# What results depend on, for our targets and for users of the headers. g++ 12.2 at -O3 distributes loops over a dependence: bytes stored to
# a small array and decoded in the same iteration come out wrong (tests/numerics/test_stored.cpp).
set(DSV41_EXACT_OPTIONS
  $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-ffp-contract=off>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-tree-loop-distribution>)

add_library(dsv41_warnings INTERFACE)
add_library(dsv41::warnings ALIAS dsv41_warnings)
target_compile_options(dsv41_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
  # A constructor's parameter may have the member's name; clang's -Wshadow agrees. g++ 12's -Wrestrict misfires on std::string.
  $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local> $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<CXX_COMPILER_ID:Clang>:-Wshadow>
  $<$<BOOL:${DSV41_WERROR}>:-Werror>)

add_library(dsv41_sanitizers INTERFACE)
if(DSV41_SANITIZE)
  target_compile_options(dsv41_sanitizers INTERFACE
    -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(dsv41_sanitizers INTERFACE -fsanitize=address,undefined)
endif()

function(dsv41_setup target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20
    CXX_STANDARD_REQUIRED ON
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE ${DSV41_EXACT_OPTIONS})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:dsv41_warnings> $<BUILD_INTERFACE:dsv41_sanitizers>)
endfunction()

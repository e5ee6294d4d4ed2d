// SPDX-License-Identifier: MIT
//
// View: strides, slices and reshapes point where they should.
#include "dsv41/core/view.hpp"

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/catch.hpp"

using namespace dsv41;

TEST_CASE("a dense view counts its last dimension fastest") {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const View<int, 3> v(data.data(), {2, 3, 4});
  CHECK(v.size() == 24);
  CHECK(v.stride(0) == 12);
  CHECK(v.stride(2) == 1);
  CHECK(v(1, 2, 3) == 23);
  CHECK(v.row(1)(0, 2) == 14);
  CHECK(v.row(1).row(2)[1] == 21);
  CHECK(v.rows(1, 1)(0, 1, 0) == 16);
}

TEST_CASE("columns of a matrix keep its stride, and their rows too") {
  std::vector<int> data(12);
  std::iota(data.begin(), data.end(), 0);
  const View<int, 2> m(data.data(), {3, 4}), part = m.columns(1, 2);
  CHECK(part.extents() == std::array<std::int64_t, 2>{3, 2});
  CHECK(part(2, 1) == 10);
  CHECK(part.row(1)[0] == 5);
  CHECK(part.rows(1, 2)(1, 0) == 9);
  part(0, 0) = 77;
  CHECK(data[1] == 77);
}

TEST_CASE("a reshape keeps the elements' order") {
  std::vector<int> data(12);
  std::iota(data.begin(), data.end(), 0);
  const auto v = View<int, 2>(data.data(), {3, 4}).reshaped<3>({3, 2, 2});
  CHECK(v(2, 1, 0) == 10);
}

TEST_CASE("a view without elements is empty, and slices of none are allowed") {
  CHECK(View<int, 2>().empty());
  CHECK(View<int, 0>().size() == 0);
  const View<int, 2> v(nullptr, {0, 4});
  CHECK(v.empty());
  CHECK(v.rows(0, 0).empty());
  const View<const int, 2> constant = v;
  CHECK(constant.extent(1) == 4);
}

TEST_CASE("offsets are 64 bits wide") {
  const View<char, 2> v(nullptr, {std::int64_t{1} << 33, 16});
  CHECK(v.size() == std::int64_t{1} << 37);
  CHECK(v.stride(0) == 16);
}

// SPDX-License-Identifier: MIT
//
// How ops check their views: one message form for every field. Used by check() only, which is for tests and for callers who build ops
// themselves; never called inside a step.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41::ops {

[[noreturn]] inline void shape_error(std::string_view op, std::string_view field, std::string_view expected,
                                     std::string_view got) {
  throw Error(Errc::shape_mismatch, std::string(op) + ": " + std::string(field) + " is " + std::string(got) +
                                        ", expected " + std::string(expected));
}

template <class Range>
std::string extents_text(const Range& extents) {
  std::string text = "[";
  for (std::int64_t e : extents) text += (text.size() > 1 ? ", " : "") + std::to_string(e);
  return text + "]";
}

/// Ops read rows by pointer: the elements of the last dimension follow each other (view.hpp).
template <class T, std::size_t Rank>
void expect_unit_stride(std::string_view op, std::string_view field, const View<T, Rank>& view) {
  if (view.extent(Rank - 1) > 1 && view.stride(Rank - 1) != 1)
    shape_error(op, field, "1", "of inner stride " + std::to_string(view.stride(Rank - 1)));
}

template <class T, std::size_t Rank>
void expect(std::string_view op, std::string_view field, const View<T, Rank>& view,
            const std::array<std::int64_t, Rank>& want) {
  expect_unit_stride(op, field, view);
  if (view.extents() != want) shape_error(op, field, extents_text(want), extents_text(view.extents()));
}

/// No extent is below its least value.
template <class T, std::size_t Rank>
void expect_at_least(std::string_view op, std::string_view field, const View<T, Rank>& view,
                     const std::array<std::int64_t, Rank>& least) {
  expect_unit_stride(op, field, view);
  for (std::size_t i = 0; i < Rank; ++i) {
    if (view.extent(i) < least[i])
      shape_error(op, field, "at least " + extents_text(least), extents_text(view.extents()));
  }
}

inline void expect(std::string_view op, std::string_view field, const Matrix& m, std::int64_t rows, std::int64_t cols) {
  if (m.rows != rows || m.cols != cols) {
    shape_error(op, m.name.empty() ? field : m.name, extents_text(std::initializer_list<std::int64_t>{rows, cols}),
                extents_text(std::initializer_list<std::int64_t>{m.rows, m.cols}));
  }
}

/// A cache of that kind, or of float32, of at least `least` rows of that width, with pages for all its rows.
inline void expect(std::string_view op, std::string_view field, const CacheRows& cache, CacheFormat format,
                   std::int64_t least, std::int64_t width) {
  const auto text = [](std::int64_t rows, std::int64_t cols) {
    return extents_text(std::initializer_list<std::int64_t>{rows, cols});
  };
  const std::string got = text(cache.rows, cache.width);
  if (cache.width != width) shape_error(op, field, text(cache.rows, width), got);
  if (cache.rows < least) shape_error(op, field, "at least " + text(least, width), got);
  if (cache.format != format && cache.format != CacheFormat::f32) {
    shape_error(op, field, std::string(cache_format_name(format)) + " or f32",
                "of format " + std::string(cache_format_name(cache.format)));
  }
  if (cache.offset < 0) shape_error(op, field, "at least 0", "at offset " + std::to_string(cache.offset));
  const std::int64_t pages = cache.pages.extent(0);
  if (cache.page_rows < 1 || pages < (cache.rows + cache.page_rows - 1) / cache.page_rows) {
    shape_error(op, field, "pages for " + std::to_string(cache.rows) + " rows",
                std::to_string(pages) + " pages of " + std::to_string(cache.page_rows) + " rows");
  }
}

inline void expect(std::string_view op, bool holds, std::string_view field, std::string_view expected,
                   std::int64_t got) {
  if (!holds) shape_error(op, field, expected, std::to_string(got));
}

/// Positions count from the start of the sequence.
inline void expect_position(std::string_view op, std::int64_t first_position) {
  expect(op, first_position >= 0, "first_position", "at least 0", first_position);
}

}  // namespace dsv41::ops

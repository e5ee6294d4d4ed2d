// SPDX-License-Identifier: MIT
//
// Test data in a backend's memory: arrays and stored matrices made on the host, put where the op can read them, and fetched back. The
// backends under test are listed here, once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "dsv41/backend/cpu.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/numerics/packed.hpp"
#include "dsv41/ops/op.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "failure.hpp"
#include "formulas.hpp"
#include "random.hpp"

namespace dsv41::test {

/// Every backend that runs the conformance suite.
using Backends = std::tuple<RefBackend, CpuBackend>;

/// Whether a backend keeps sums of products wide, as the contracts' match classes take for granted.
template <class B>
inline constexpr bool kSumsWide = std::is_same_v<B, RefBackend>;

inline constexpr Numeric kNumerics[] = {Numeric::exact, Numeric::deployed};
inline constexpr Format kFormats[] = {Format::f32,      Format::f16,     Format::bf16,
                                      Format::fp8_tile, Format::fp8_row, Format::fp4_row};

/// Dense host array.
template <class T, std::size_t Rank>
struct Array {
  std::array<std::int64_t, Rank> extents{};
  std::vector<T> values;

  Array() = default;
  Array(const std::array<std::int64_t, Rank>& e, T fill = {})
      : extents(e), values(static_cast<std::size_t>(View<T, Rank>(nullptr, e).size()), fill) {}
  Array(const std::array<std::int64_t, Rank>& e, std::vector<T> v) : extents(e), values(std::move(v)) {}

  std::int64_t row_size() const { return extents[0] == 0 ? 0 : static_cast<std::int64_t>(values.size()) / extents[0]; }

  /// `count` slices along the first dimension.
  Array rows(std::int64_t first, std::int64_t count) const {
    Array out;
    out.extents = extents;
    out.extents[0] = count;
    out.values.assign(values.begin() + first * row_size(), values.begin() + (first + count) * row_size());
    return out;
  }
};

template <std::size_t Rank>
Array<float, Rank> random_array(Random& random, const std::array<std::int64_t, Rank>& extents, double size = 1) {
  Array<float, Rank> out(extents);
  for (float& x : out.values) x = random.normal(size);
  return out;
}

template <class T>
Doubles doubles_of(const std::vector<T>& values) {
  return Doubles(values.begin(), values.end());
}

/// Values [first, first + count) as doubles.
inline Doubles slice(const std::vector<float>& values, std::int64_t first, std::int64_t count) {
  return Doubles(values.begin() + first, values.begin() + first + count);
}

/// A stored matrix and what each of its elements is worth.
struct Stored {
  Format format = Format::f32;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> bytes, scales;
  std::string name;

  double value(std::int64_t r, std::int64_t c) const {
    const std::size_t at = static_cast<std::size_t>(r * cols + c), block = static_cast<std::size_t>((cols + 31) / 32);
    const auto scale = [&](std::int64_t row) {
      return e8m0_value(scales[static_cast<std::size_t>(row) * block + static_cast<std::size_t>(c / 32)]);
    };
    float f = 0;
    switch (format) {
      case Format::f32: std::memcpy(&f, &bytes[at * 4], 4); return static_cast<double>(f);
      case Format::f16: return f16_value(bytes[at * 2] + 256 * bytes[at * 2 + 1]);
      case Format::bf16: std::memcpy(reinterpret_cast<char*>(&f) + 2, &bytes[at * 2], 2); return static_cast<double>(f);
      case Format::fp8_tile: return e4m3_value(bytes[at]) * scale(r / 32);
      case Format::fp8_row: return e4m3_value(bytes[at]) * scale(r);
      case Format::fp4_row: return e2m1_value(c % 2 == 0 ? bytes[at / 2] % 16 : bytes[at / 2] / 16) * scale(r);
    }
    return 0;
  }
};

/// Random elements of about `size`.
inline Stored random_matrix(Random& random, Format format, std::int64_t rows, std::int64_t cols, double size = 1) {
  Stored m{.format = format, .rows = rows, .cols = cols, .bytes = {}, .scales = {}, .name = {}};
  const Matrix shape{.format = format, .rows = rows, .cols = cols};
  m.bytes.resize(static_cast<std::size_t>(rows * shape.row_bytes()));
  m.scales.resize(static_cast<std::size_t>(shape.scale_rows() * shape.scale_cols()));
  const int exponent = 127 + std::ilogb(size) - (format == Format::fp4_row ? 2 : 7);
  for (std::uint8_t& s : m.scales) s = static_cast<std::uint8_t>(exponent + random.below(3) - 1);
  const std::size_t width = format == Format::f32 ? 4 : format == Format::f16 || format == Format::bf16 ? 2 : 1;
  for (std::size_t i = 0; i < m.bytes.size(); i += width) {
    const float x = random.normal(size);
    if (format == Format::f32) {
      std::memcpy(&m.bytes[i], &x, 4);
    } else if (format == Format::bf16) {
      std::memcpy(&m.bytes[i], reinterpret_cast<const char*>(&x) + 2, 2);
    } else if (format == Format::f16) {
      m.bytes[i] = static_cast<std::uint8_t>(random.below(256));
      const std::int64_t high = 15 + std::ilogb(size) - random.below(3);
      m.bytes[i + 1] = static_cast<std::uint8_t>(128 * random.below(2) + 4 * high + random.below(4));
    } else {
      m.bytes[i] = static_cast<std::uint8_t>(random.below(256));
      if (format != Format::fp4_row && m.bytes[i] % 128 == 127) m.bytes[i] = 1;  // no NaN
    }
  }
  return m;
}

/// A float32 matrix of these values.
inline Stored float_matrix(std::int64_t rows, std::int64_t cols, const std::vector<float>& values) {
  Stored m{.format = Format::f32,
           .rows = rows,
           .cols = cols,
           .bytes = std::vector<std::uint8_t>(values.size() * 4),
           .scales = {},
           .name = {}};
  std::memcpy(m.bytes.data(), values.data(), m.bytes.size());
  return m;
}

inline Stored identity_matrix(std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n * n), 0.0f);
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * n + i)] = 1;
  return float_matrix(n, n, values);
}

/// The magnitudes of a matrix's elements, and of an array's.
inline Stored magnitudes(const Stored& m) {
  std::vector<float> values;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) values.push_back(static_cast<float>(std::fabs(m.value(r, c))));
  }
  return float_matrix(m.rows, m.cols, values);
}
template <std::size_t Rank>
Array<float, Rank> magnitudes(Array<float, Rank> a) {
  for (float& v : a.values) v = std::fabs(v);
  return a;
}

/// One row of `x` [groups * cols] times the transposed matrix; output o reads its group's part.
inline Doubles product(const Stored& w, const Doubles& x, std::int64_t groups = 1) {
  Doubles y(static_cast<std::size_t>(w.rows));
  for (std::int64_t o = 0; o < w.rows; ++o) {
    const std::int64_t first = o / (w.rows / groups) * w.cols;
    for (std::int64_t i = 0; i < w.cols; ++i)
      y[static_cast<std::size_t>(o)] += x[static_cast<std::size_t>(first + i)] * w.value(o, i);
  }
  return y;
}

/// How a cache of a test lies in pages: `page_rows` rows a page (0: all in one), the first of them `offset` bytes into it.
struct Paging {
  std::int64_t page_rows = 0, offset = 0;
};

/// The paging of caches in tests: one page, pages that end within a row of cases, pages of one row, and more room than rows.
inline constexpr Paging kPagings[] = {{}, {3, 5}, {1, 1}, {1000, 64}};

/// What a cache gives back of these rows.
inline Array<float, 2> cached(CacheFormat format, Array<float, 2> rows) {
  for (std::int64_t i = 0; i < rows.extents[0]; ++i) {
    const Doubles row = quantised(quantiser_behind(format), slice(rows.values, i * rows.extents[1], rows.extents[1]));
    std::copy(row.begin(), row.end(), rows.values.begin() + i * rows.extents[1]);
  }
  return rows;
}

/// Allocations of one test in a backend's memory.
template <class B>
class Memory {
 public:
  explicit Memory(B& backend) : backend_(&backend) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (void* block : blocks_) backend_->release(block);
  }

  template <class T, std::size_t Rank>
  Out<T, Rank> put(const Array<T, Rank>& a) {
    return {reinterpret_cast<T*>(copy(a.values.data(), a.values.size() * sizeof(T), 0)), a.extents};
  }

  template <class T>
  Out<T, 1> put(const std::vector<T>& v) {
    return put(Array<T, 1>({static_cast<std::int64_t>(v.size())}, v));
  }

  /// Elements and scales `shift` bytes behind an aligned address.
  Matrix put(const Stored& m, std::size_t shift = 0) {
    Matrix out{.format = m.format, .rows = m.rows, .cols = m.cols};
    out.data = copy(m.bytes.data(), m.bytes.size(), shift);
    if (!m.scales.empty())
      out.scales = reinterpret_cast<const std::uint8_t*>(copy(m.scales.data(), m.scales.size(), shift));
    out.name = m.name;
    return out;
  }

  /// A cache that holds these rows. Every page is an allocation of its own, the last page's the first one.
  CacheRows put(CacheFormat format, const Array<float, 2>& rows, const Paging& paging = {}) {
    CacheRows cache{.format = format, .rows = rows.extents[0], .width = rows.extents[1], .offset = paging.offset};
    cache.page_rows = paging.page_rows > 0 ? paging.page_rows : std::max<std::int64_t>(cache.rows, 1);
    const std::int64_t bytes = row_bytes(format, cache.width);
    std::vector<std::byte*> pages(static_cast<std::size_t>((cache.rows + cache.page_rows - 1) / cache.page_rows));
    for (std::size_t i = pages.size(); i-- > 0;) {
      std::vector<std::byte> page(static_cast<std::size_t>(cache.offset + cache.page_rows * bytes), kUntouched);
      for (std::int64_t r = 0; r < cache.page_rows; ++r) {
        const std::int64_t row = static_cast<std::int64_t>(i) * cache.page_rows + r;
        if (row == cache.rows) break;
        numerics::pack_row(format, rows.values.data() + row * cache.width, cache.width,
                           page.data() + cache.offset + r * bytes);
      }
      pages[i] = copy(page.data(), page.size(), 0);
    }
    cache.pages = put(pages);
    return cache;
  }

  /// The bytes of rows [first, first + count).
  std::vector<std::uint8_t> bytes(const CacheRows& cache, std::int64_t first, std::int64_t count) {
    const std::vector<std::byte*> pages = get(cache.pages);
    const auto row = static_cast<std::size_t>(row_bytes(cache.format, cache.width));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count) * row);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const std::size_t at = static_cast<std::size_t>(first) + i, per_page = static_cast<std::size_t>(cache.page_rows);
      backend_->download(out.data() + i * row, pages[at / per_page] + cache.offset + at % per_page * row, row);
    }
    return out;
  }
  std::vector<std::uint8_t> bytes(const CacheRows& cache) { return bytes(cache, 0, cache.rows); }

  /// The values of rows [first, first + count).
  std::vector<float> get(const CacheRows& cache, std::int64_t first, std::int64_t count) {
    const std::vector<std::uint8_t> packed = bytes(cache, first, count);
    std::vector<float> out;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<float> row =
          unpacked(cache.format, cache.width, packed.data() + i * row_bytes(cache.format, cache.width));
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  std::vector<float> get(const CacheRows& cache) { return get(cache, 0, cache.rows); }

  /// Overwrites every row with this pattern.
  void fill(const CacheRows& cache, std::uint32_t pattern) {
    std::vector<std::uint8_t> row(static_cast<std::size_t>(row_bytes(cache.format, cache.width)));
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::uint8_t>(pattern >> (i % 4 * 8));
    const std::vector<std::byte*> pages = get(cache.pages);
    for (std::int64_t r = 0; r < cache.rows; ++r) {
      std::byte* page = pages[static_cast<std::size_t>(r / cache.page_rows)];
      backend_->upload(page + cache.offset + r % cache.page_rows * row_bytes(cache.format, cache.width), row.data(),
                       row.size());
    }
  }

  /// Whether the bytes of the pages that belong to no row are as put() left them.
  bool untouched_between(const CacheRows& cache) {
    const std::vector<std::byte*> pages = get(cache.pages);
    const std::int64_t bytes = row_bytes(cache.format, cache.width);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::int64_t rows = std::min(cache.page_rows, cache.rows - static_cast<std::int64_t>(i) * cache.page_rows);
      std::vector<std::byte> page(static_cast<std::size_t>(cache.offset + cache.page_rows * bytes));
      backend_->download(page.data(), pages[i], page.size());
      page.erase(page.begin() + cache.offset, page.begin() + cache.offset + rows * bytes);
      for (const std::byte b : page) {
        if (b != kUntouched) return false;
      }
    }
    return true;
  }

  template <class T, std::size_t Rank>
  auto get(const View<T, Rank>& view) {
    std::vector<std::remove_const_t<T>> out(static_cast<std::size_t>(view.size()));
    backend_->download(out.data(), view.data(), out.size() * sizeof(T));
    return out;
  }

 private:
  static constexpr std::byte kUntouched{0xA5};

  std::byte* copy(const void* from, std::size_t bytes, std::size_t shift) {
    blocks_.push_back(backend_->allocate(bytes + shift + 1));
    std::byte* to = static_cast<std::byte*>(blocks_.back()) + shift;
    backend_->upload(to, from, bytes);
    return to;
  }

  B* backend_;
  std::vector<void*> blocks_;
};

/// A view of nothing, for check(): only its extents count.
template <class T, std::size_t Rank>
View<T, Rank> shaped(const std::array<std::int64_t, Rank>& extents) {
  return {nullptr, extents};
}

/// A cache of nothing, likewise.
inline CacheRows shaped_cache(std::int64_t rows, std::int64_t width, CacheFormat format = CacheFormat::f32) {
  return {.format = format, .rows = rows, .width = width, .pages = shaped<std::byte* const, 1>({rows})};
}

/// Spoils a good op and expects check() to say exactly "<op>: <message>".
template <class Op, class Spoil>
void check_refuses(Op op, const std::string& message, const Spoil& spoil) {
  CHECK_NOTHROW(op.check());
  spoil(op);
  const Failure failure = failure_of([&] { op.check(); });
  CHECK(failure.code == Errc::shape_mismatch);
  CHECK(failure.message == std::string(Op::name) + ": " + message);
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// Non-owning row-major arrays: a pointer, extents and strides. Modules and ops exchange these and stored matrices
// (matrix.hpp), so every part of the library runs on somebody else's memory. Bounds are checked in debug builds.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dsv41/core/hd.hpp"

/// A precondition that release builds do not pay for.
#define DSV41_DCHECK(condition) assert(condition)

namespace dsv41 {

/// Row-major array of `Rank` dimensions. Extents and strides count elements; the last dimension has unit stride.
template <class T, std::size_t Rank>
class View {
 public:
  using Extents = std::array<std::int64_t, Rank>;

  constexpr View() = default;

  /// Dense view of `data` with these extents.
  DSV41_HD constexpr View(T* data, const Extents& extents) : data_(data), extents_(extents) {
    std::int64_t stride = 1;
    for (std::size_t i = Rank; i-- > 0;) {
      strides_[i] = stride;
      stride *= extents_[i];
    }
  }

  DSV41_HD constexpr View(T* data, const Extents& extents, const Extents& strides)
      : data_(data), extents_(extents), strides_(strides) {}

  /// A view of mutable elements serves where constant ones are read.
  DSV41_HD constexpr operator View<const T, Rank>() const requires(!std::is_const_v<T>) {
    return {data_, extents_, strides_};
  }

  DSV41_HD constexpr T* data() const { return data_; }
  DSV41_HD constexpr std::int64_t extent(std::size_t i) const { return extents_[i]; }
  DSV41_HD constexpr const Extents& extents() const { return extents_; }
  DSV41_HD constexpr std::int64_t stride(std::size_t i) const { return strides_[i]; }
  DSV41_HD constexpr bool empty() const { return size() == 0; }

  /// Whether the elements follow each other without gaps.
  DSV41_HD constexpr bool dense() const { return empty() || strides_ == View(data_, extents_).strides_; }

  DSV41_HD constexpr std::int64_t size() const {
    std::int64_t n = Rank == 0 ? 0 : 1;
    for (std::int64_t e : extents_) n *= e;
    return n;
  }

  template <class... I>
  requires(sizeof...(I) == Rank) DSV41_HD constexpr T& operator()(I... index) const {
    const Extents at{static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < Rank; ++i) {
      DSV41_DCHECK(at[i] >= 0 && at[i] < extents_[i]);
      offset += at[i] * strides_[i];
    }
    return data_[offset];
  }

  DSV41_HD constexpr T& operator[](std::int64_t i) const requires(Rank == 1) { return (*this)(i); }

  /// The i-th slice along the first dimension.
  DSV41_HD constexpr View<T, Rank - 1> row(std::int64_t i) const requires(Rank > 1) {
    DSV41_DCHECK(i >= 0 && i < extents_[0]);
    typename View<T, Rank - 1>::Extents extents{}, strides{};
    for (std::size_t k = 1; k < Rank; ++k) extents[k - 1] = extents_[k], strides[k - 1] = strides_[k];
    return {data_ + i * strides_[0], extents, strides};
  }

  /// `count` consecutive slices along the first dimension.
  DSV41_HD constexpr View rows(std::int64_t first, std::int64_t count) const {
    DSV41_DCHECK(first >= 0 && count >= 0 && first + count <= extents_[0]);
    Extents extents = extents_;
    extents[0] = count;
    return {data_ + first * strides_[0], extents, strides_};
  }

  /// `count` consecutive columns of a matrix.
  DSV41_HD constexpr View columns(std::int64_t first, std::int64_t count) const requires(Rank == 2) {
    DSV41_DCHECK(first >= 0 && count >= 0 && first + count <= extents_[1]);
    return {data_ + first, {extents_[0], count}, strides_};
  }

  /// The same dense elements under other extents of equal product.
  template <std::size_t R>
  DSV41_HD constexpr View<T, R> reshaped(const std::array<std::int64_t, R>& extents) const {
    View<T, R> out(data_, extents);
    DSV41_DCHECK(out.size() == size() && dense());
    return out;
  }

 private:
  T* data_ = nullptr;
  Extents extents_{};
  Extents strides_{};
};

/// What an op reads.
template <class T, std::size_t Rank>
using In = View<const T, Rank>;

/// What an op writes, or updates where its contract says so.
template <class T, std::size_t Rank>
using Out = View<T, Rank>;

}  // namespace dsv41

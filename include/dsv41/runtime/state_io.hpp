// SPDX-License-Identifier: MIT
//
// Where a saved session's bytes go to and come from: the caller's functions. The library opens no file for them.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

namespace dsv41::runtime {

/// Refers to a function, lambda or function object that takes A... and gives R; owns nothing, allocates nothing.
///
/// Rules:  what it was made from must outlive it. As an argument it does, also where it is a lambda written in the call; a variable of
///         this type must not be made from one.
template <class Signature>
class FunctionRef;

template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef> && std::is_object_v<std::remove_reference_t<F>> &&
           std::is_invocable_r_v<R, F&, A...>) FunctionRef(F&& f)
  noexcept  // not explicit: a call takes a lambda as it is
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, A... a) -> R { return (*static_cast<std::remove_reference_t<F>*>(object))(a...); }) {}

  R operator()(A... a) const { return call_(object_, a...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

/// Takes all of the bytes, or throws. Is given them in order, in pieces of any length but none, each valid during the call only.
/// What it throws passes through the call that it was given to.
using WriteBytes = FunctionRef<void(std::span<const std::byte>)>;

/// Fills the bytes and returns how many it gave: all that were asked for, or fewer where the source ends there. One that can come up
/// short for other reasons (a pipe) has to try again itself. It is never asked for more than the session's own bytes, so others may
/// follow them. What it throws passes through the call that it was given to.
using ReadBytes = FunctionRef<std::size_t(std::span<std::byte>)>;

}  // namespace dsv41::runtime

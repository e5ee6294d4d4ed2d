// SPDX-License-Identifier: MIT
//
// What a call that must fail says: its kind and message, for tests that check both.
#pragma once

#include <string>

#include "catch.hpp"
#include "dsv41/core/error.hpp"

namespace dsv41::test {

struct Failure {
  Errc code = Errc::ok;
  std::string message;

  bool says(const std::string& part) const { return message.find(part) != std::string::npos; }
};

/// Runs `call` and returns its dsv41::Error; code ok when it did not throw. Other exceptions pass through and fail the
/// test.
template <class F>
Failure failure_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// One public call at a time: a listener, or another thread, that makes a second one is refused. Private to src/runtime.
#pragma once

#include <atomic>
#include <string>

#include "dsv41/core/error.hpp"

namespace dsv41::runtime {

/// A call under way on the object that `busy` belongs to.
class Call {
 public:
  /// `verb` and `whose` ("the engine") go into the message. Errors: busy when there is one already.
  Call(std::atomic<bool>& busy, const char* verb, const char* whose) : busy_(busy) {
    if (!busy_.exchange(true)) return;
    throw Error(Errc::busy, std::string(verb) + ": " + whose +
                                " is in another call, around a listener or in another thread, expected one at a time");
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { busy_ = false; }

 private:
  std::atomic<bool>& busy_;
};

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// The one error type of the library. Cold code (loading, planning, construction, op checks) throws it; a step never does.
// A message says what is wrong, what was expected, what was found, and where to look.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dsv41 {

/// Kinds of failure. Values are stable: the C API returns them.
enum class Errc : std::int32_t {
  ok = 0,
  invalid_argument,  ///< the caller asked for something impossible (an id out of range, an empty prompt)
  shape_mismatch,    ///< a tensor or view has other extents than the config or the op demands
  unsupported,       ///< well formed, but outside what this build or this model offers
  io,                ///< a file is missing, unreadable or shorter than it says
  format,            ///< a file is there, but its contents break its format or contradict the config
  device,            ///< an accelerator failed
  out_of_memory,     ///< a declared budget or the host's memory is exhausted
  internal,          ///< an invariant of ours broke: a bug
  cancelled,         ///< the caller's cancel token was set (core/cancel.hpp)
  busy,              ///< a call is under way already, in this thread (a listener's) or another one
};

/// Short name of a kind, for messages and bindings.
constexpr std::string_view errc_name(Errc code) noexcept {
  switch (code) {
    case Errc::ok: return "ok";
    case Errc::invalid_argument: return "invalid_argument";
    case Errc::shape_mismatch: return "shape_mismatch";
    case Errc::unsupported: return "unsupported";
    case Errc::io: return "io";
    case Errc::format: return "format";
    case Errc::device: return "device";
    case Errc::out_of_memory: return "out_of_memory";
    case Errc::internal: return "internal";
    case Errc::cancelled: return "cancelled";
    case Errc::busy: return "busy";
  }
  return "unknown";
}

class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

}  // namespace dsv41

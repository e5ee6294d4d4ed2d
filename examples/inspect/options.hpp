// SPDX-License-Identifier: MIT
//
// The command line of inspect: every option, parsed strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inspect {

struct Options {
  std::optional<std::string> config;  ///< config.json or a folder that holds one; absent: the released model
  std::optional<std::int64_t> context;
  std::int64_t batch = 1;
  std::optional<std::int64_t> host_bytes, device_bytes;
  std::optional<std::string> json, plot, shards, headers;
  bool help = false;
};

/// Reads the arguments after the program's name. `--name value` and `--name=value` are the same.
///
/// Errors: dsv41::Error invalid_argument naming the option, what it expects and what it got: an unknown option, one
///         given twice, a missing value, a bad number, a second config.
Options parse_options(const std::vector<std::string>& arguments);

/// The text of --help.
std::string_view help_text() noexcept;

}  // namespace inspect

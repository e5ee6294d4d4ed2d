// SPDX-License-Identifier: MIT
//
// config.json -> ModelConfig, in both released spellings: the composite form (text_config inside) and the flat form of the
// inference code. Source: checkpoint.md 1.
#pragma once

#include <string_view>

#include "dsv41/core/config.hpp"

namespace dsv41::runtime {

/// Parses and validates. `origin` names the file in messages.
///
/// Errors:  format (not JSON, a missing key, a wrong type), unsupported (a value no module implements), and whatever
///          validate() throws; each message gives origin, key, expected and found.
ModelConfig parse_config(std::string_view json, std::string_view origin);

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// config.json -> ModelConfig, in both released spellings: the composite form (text_config inside) and the flat form of the
// inference code. Source: checkpoint.md 1.
#pragma once

#include <string>
#include <string_view>

#include "dsv41/core/config.hpp"

namespace dsv41::runtime {

/// What a config.json says that ModelConfig has no place for.
struct ConfigNotes {
  /// A key that the vision tower's sizes lack, so that ModelConfig::vision is empty; empty: all of them are there, or none.
  std::string missing_vision_key;
};

/// Parses and validates. `origin` names the file in messages.
///
/// Errors:  format (not JSON, a missing key, a wrong type), unsupported (a value no module implements), and whatever
///          validate() throws; each message gives origin, key, expected and found.
ModelConfig parse_config(std::string_view json, std::string_view origin, ConfigNotes* notes = nullptr);

}  // namespace dsv41::runtime

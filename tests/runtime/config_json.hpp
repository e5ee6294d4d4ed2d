// SPDX-License-Identifier: MIT
//
// Configs for the tests of their reader and rules: those of the goldens, as JSON to be changed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "../support/failure.hpp"
#include "../support/temp_folder.hpp"
#include "dsv41/runtime/config_file.hpp"

namespace dsv41::test {

inline const std::filesystem::path kGolden = DSV41_GOLDEN_DIR;

inline std::string golden_config(const std::string& name = "01-all-mechanisms") {
  return read_file(kGolden / name / "config.json");
}

inline nlohmann::json golden_json() {
  return nlohmann::json::parse(golden_config());
}

inline ModelConfig parse(const nlohmann::json& j) {
  return runtime::parse_config(j.dump(), "test.json");
}

}  // namespace dsv41::test

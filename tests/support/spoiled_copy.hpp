// SPDX-License-Identifier: MIT
//
// A golden's folder, copied to be spoiled: config and tensors as plain data, written and opened again.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/runtime/checkpoint.hpp"
#include "failure.hpp"
#include "raw_safetensors.hpp"
#include "temp_folder.hpp"

namespace dsv41::test {

inline const std::filesystem::path kGoldenFolder = DSV41_GOLDEN_DIR;
inline const std::string kModelFile = "model.safetensors";

struct SpoiledCopy {
  TempFolder folder;
  nlohmann::json config;
  std::vector<RawTensor> tensors;

  explicit SpoiledCopy(const std::string& name = "13-deployed")
      : config(nlohmann::json::parse(read_file(kGoldenFolder / name / "config.json"))),
        tensors(read_raw(kGoldenFolder / name / kModelFile)) {}

  runtime::Checkpoint open() const {
    folder.write("config.json", config.dump());
    folder.write(kModelFile, raw_file(tensors));
    return runtime::Checkpoint::open(folder.path());
  }

  Failure failure() const {
    return failure_of([&] { open(); });
  }
};

inline void check_refused(const SpoiledCopy& copy, const std::vector<std::string>& words, Errc code = Errc::format) {
  const Failure failure = copy.failure();
  INFO(failure.message);
  CHECK(failure.code == code);
  for (const std::string& word : words) {
    INFO("must say: " << word);
    CHECK(failure.says(word));
  }
}

inline std::string bytes_of(const Matrix& m) {
  return std::string(reinterpret_cast<const char*>(m.data), static_cast<std::size_t>(m.rows * m.row_bytes()));
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// A second, unchecked reader and writer of safetensors for tests: it shares no code with the library and writes
// nonsense on request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "temp_folder.hpp"

namespace dsv41::test {

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// Length prefix, header as given, payload.
inline std::string raw_file(const std::string& header, const std::string& payload) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + payload;
}

inline std::string raw_file(const std::vector<RawTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string payload;
  for (const RawTensor& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {payload.size(), payload.size() + t.bytes.size()}}};
    payload += t.bytes;
  }
  return raw_file(header.dump(), payload);
}

inline std::vector<RawTensor> read_raw(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  std::vector<RawTensor> out;
  const auto header = nlohmann::ordered_json::parse(file.substr(8, length));
  for (const auto& [name, t] : header.items()) {
    const std::uint64_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
    out.push_back({name, t["dtype"], t["shape"], file.substr(8 + length + begin, end - begin)});
  }
  return out;
}

/// The tensor of this name in a list.
inline RawTensor& named(std::vector<RawTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const RawTensor& t) { return t.name == name; });
  if (at == tensors.end()) throw std::runtime_error("no tensor " + name);
  return *at;
}

inline void erase(std::vector<RawTensor>& tensors, const std::string& name) {
  tensors.erase(tensors.begin() + (&named(tensors, name) - tensors.data()));
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// kit_values CASE_FOLDER OUT.safetensors [--chunk N]: what RefBackend computes for a case of the conformance kit, in the form that
// tests/golden/compare.py reads. An example of what another engine writes.
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <list>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsv41/ref/ref_backend.hpp"
#include "support/kit.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

template <class T>
std::vector<std::byte> stored(const std::vector<double>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T v = static_cast<T>(values[i]);
    std::memcpy(out.data() + i * sizeof(T), &v, sizeof(T));
  }
  return out;
}

/// Decimal digits and nothing else.
bool parse(std::string_view text, std::size_t& out) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && at == end;
}

void write(const KitCase& c, const SeamValues& values, const std::filesystem::path& path) {
  std::vector<runtime::TensorSource> tensors;
  std::list<std::vector<std::byte>> bytes;
  for (const runtime::TensorInfo& t : c.expected.tensors()) {
    const auto found = values.find(t.name);
    if (found == values.end()) continue;
    const std::vector<double>& v = found->second;
    bytes.push_back(t.dtype == runtime::DType::i64       ? stored<std::int64_t>(v)
                    : t.dtype == runtime::DType::boolean ? stored<std::uint8_t>(v)
                                                         : stored<float>(v));
    tensors.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .data = bytes.back()});
  }
  runtime::write_safetensors(path, tensors);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t chunk = 0;
  if (argc != 3 && !(argc == 5 && std::string_view(argv[3]) == "--chunk" && parse(argv[4], chunk))) {
    std::cerr << "usage: kit_values CASE_FOLDER OUT.safetensors [--chunk N]\nN: rows of a step, 0 for one step\n";
    return 2;
  }
  try {
    const KitCase c(argv[1]);
    write(c, run_case<RefBackend>(c, Numeric::exact, chunk), argv[2]);
  } catch (const std::exception& e) {
    std::cerr << "kit_values: " << e.what() << "\n";
    return 1;
  }
}

// SPDX-License-Identifier: MIT
//
// The one-call forms of the file writer.
#include "dsv41/runtime/files.hpp"

#include "files/file_bytes.hpp"

namespace dsv41::runtime {

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  files::FileWriter out(path);
  out.write(bytes);
  out.commit();
}

void write_file_atomically(const std::filesystem::path& path, FunctionRef<void(const WriteBytes&)> fill) {
  files::FileWriter out(path);
  fill([&](std::span<const std::byte> bytes) { out.write(bytes); });
  out.commit();
}

void probe_writable(const std::filesystem::path& path) {
  const files::FileWriter never_committed(path);
}

}  // namespace dsv41::runtime

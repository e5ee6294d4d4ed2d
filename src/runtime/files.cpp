// SPDX-License-Identifier: MIT
//
// The one-call form of the file writer.
#include "dsv41/runtime/files.hpp"

#include "files/file_bytes.hpp"

namespace dsv41::runtime {

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  files::FileWriter out(path);
  out.write(bytes);
  out.commit();
}

}  // namespace dsv41::runtime

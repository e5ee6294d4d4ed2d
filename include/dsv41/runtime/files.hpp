// SPDX-License-Identifier: MIT
//
// Result files of programs: whole or untouched, as the checkpoints that write_safetensors leaves.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "dsv41/runtime/state_io.hpp"

namespace dsv41::runtime {

/// Replaces a file's contents, or creates it.
///
/// Rules:  writes a temporary of a new name in the same folder, flushes it to the disk and renames it over `path`: a
///         reader, a crash or a full disk finds the old file or the whole new one. A link at `path` is replaced, not
///         followed.
/// Errors: io, with the path and the system's reason; the old file is then as it was and no temporary is left.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// The same for contents that come in pieces: `fill` gives them, in order, to the function it is called with.
/// Errors: io, and what `fill` throws; likewise.
void write_file_atomically(const std::filesystem::path& path, FunctionRef<void(const WriteBytes&)> fill);

/// Creates such a temporary and removes it, to learn early that write_file_atomically and write_safetensors will find
/// their folder there and writable and the name not too long. Errors: io, as write_file_atomically.
void probe_writable(const std::filesystem::path& path);

}  // namespace dsv41::runtime

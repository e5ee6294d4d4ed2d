// SPDX-License-Identifier: MIT
//
// The container around the header: length prefix, lookup by name, and the writer.
#include "dsv41/runtime/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "dsv41/core/error.hpp"
#include "files/file_bytes.hpp"
#include "safetensors_header.hpp"

namespace dsv41::runtime {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's reference reader
constexpr std::size_t kHeaderAlign = 8;
constexpr std::uint64_t kMaxPayload = std::numeric_limits<std::int64_t>::max();

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian; tensors are used in place");

/// Splits a file into header text and payload. `length` alone is compared, never length + something (case B80).
std::pair<std::string_view, std::span<const std::byte>> split(std::span<const std::byte> file,
                                                              const std::string& origin) {
  if (file.size() < kLengthBytes) {
    throw Error(Errc::io,
                origin + ": has " + std::to_string(file.size()) + " bytes, expected a length of 8 bytes and a header");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeader) {
    throw Error(Errc::format, origin + ": header length is " + std::to_string(length) + ", expected at most " +
                                  std::to_string(kMaxHeader));
  }
  const std::span<const std::byte> rest = file.subspan(kLengthBytes);
  if (length > rest.size()) {
    throw Error(Errc::io, origin + ": header length is " + std::to_string(length) + ", but only " +
                              std::to_string(rest.size()) + " bytes follow");
  }
  const auto header = rest.first(static_cast<std::size_t>(length));
  return {{reinterpret_cast<const char*>(header.data()), header.size()}, rest.subspan(header.size())};
}

}  // namespace

struct SafetensorsFile::Impl {
  std::string origin;
  std::optional<files::FileBytes> file;  // absent over a caller's bytes
  std::vector<TensorInfo> tensors;
  std::vector<const TensorInfo*> by_name;

  void parse(std::span<const std::byte> bytes) {
    const auto [header, payload] = split(bytes, origin);
    tensors = parse_header(header, payload, origin);
    by_name.reserve(tensors.size());
    for (const TensorInfo& t : tensors) by_name.push_back(&t);
    std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  }
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, Access access) {
  try {
    auto impl = std::make_unique<Impl>();
    impl->origin = path.string();
    impl->file.emplace(files::FileBytes::open(path, access == Access::map));
    impl->parse(impl->file->bytes());
    return SafetensorsFile(std::move(impl));
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, path.string() + ": no memory for its header");
  }
}

SafetensorsFile SafetensorsFile::over(std::span<const std::byte> file, std::string origin) {
  auto impl = std::make_unique<Impl>();
  impl->origin = std::move(origin);
  impl->parse(file);
  return SafetensorsFile(std::move(impl));
}

const std::string& SafetensorsFile::origin() const noexcept {
  return impl_->origin;
}

const files::FileBytes* SafetensorsFile::file() const noexcept {
  return impl_->file ? &*impl_->file : nullptr;
}

std::span<const TensorInfo> SafetensorsFile::tensors() const noexcept {
  return impl_->tensors;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto& list = impl_->by_name;
  const auto at =
      std::lower_bound(list.begin(), list.end(), name, [](auto* t, std::string_view n) { return t->name < n; });
  return at != list.end() && (*at)->name == name ? *at : nullptr;
}

namespace {

/// "[1,2]".
template <class List>
std::string json_list(const List& list) {
  std::string text = "[";
  for (const auto value : list) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

}  // namespace

std::string safetensors_header(std::span<const TensorInfo> tensors) {
  auto refuse = [](const TensorInfo& t, const std::string& what) {
    const std::string name = nlohmann::json(t.name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    throw Error(Errc::invalid_argument, "safetensors_header: tensor " + name + ": " + what);
  };
  std::set<std::string_view> names{"__metadata__"};
  std::string text = "{";
  std::uint64_t offset = 0;
  for (const TensorInfo& t : tensors) {
    std::uint64_t bytes = 0;
    if (t.dtype == DType::unknown) refuse(t, "has an unknown dtype");
    if (!shape_bytes(t.shape, dtype_bytes(t.dtype), bytes) || bytes != t.bytes) {
      refuse(t, "has " + std::to_string(t.bytes) + " bytes, which is not shape times dtype");
    }
    if (bytes > kMaxPayload - offset) refuse(t, "ends beyond 2^63 - 1 bytes");
    if (!names.insert(t.name).second) refuse(t, "the name is taken");
    try {
      text += (text.size() > 1 ? "," : "") + nlohmann::json(t.name).dump();
    } catch (const nlohmann::json::exception&) {
      refuse(t, "the name is not UTF-8");
    }
    text += ":{\"dtype\":\"" + std::string(dtype_name(t.dtype)) + "\",\"shape\":" + json_list(t.shape) +
            ",\"data_offsets\":" + json_list(std::array{offset, offset + bytes}) + "}";
    if (text.size() >= kMaxHeader) refuse(t, "the header exceeds the format's limit");
    offset += bytes;
  }
  text += "}";
  text.append((kHeaderAlign - text.size() % kHeaderAlign) % kHeaderAlign, ' ');
  return text;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors) {
  std::vector<TensorInfo> infos;
  for (const TensorSource& t : tensors) {
    TensorInfo& info = infos.emplace_back();
    info.name = t.name;
    info.dtype = t.dtype;
    info.shape = t.shape;
    info.bytes = t.data.size();
  }
  const std::string header = safetensors_header(infos);
  const std::uint64_t length = header.size();
  files::FileWriter out(path);
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(std::as_bytes(std::span(header)));
  for (const TensorSource& t : tensors) out.write(t.data);
  out.commit();
}

}  // namespace dsv41::runtime

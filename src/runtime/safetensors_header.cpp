// SPDX-License-Identifier: MIT
//
// Reads a header as a stream of events: memory stays proportional to the tensors, nesting is bounded by the grammar
// itself {name: {"dtype": text, "shape": [integers], "data_offsets": [begin, end]}, "__metadata__": {text: text}}, and
// numbers stay exact.
#include "safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "dsv41/core/error.hpp"
#include "dsv41/ops/shape.hpp"
#include "files/strict_json.hpp"

namespace dsv41::runtime {
namespace {

using files::shown;
using nlohmann::json;

constexpr std::size_t kMaxRank = 16;
constexpr std::size_t kNameLength = 120;  // of a name in a message
constexpr std::uint64_t kMaxInt64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

struct DTypeRow {
  std::string_view name;
  std::int64_t bytes;
};

// In the order of the enum.
constexpr std::array<DTypeRow, 16> kDTypes{{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"U16", 2},
                                            {"I16", 2},
                                            {"U32", 4},
                                            {"I32", 4},
                                            {"U64", 8},
                                            {"I64", 8},
                                            {"F8_E4M3", 1},
                                            {"F8_E5M2", 1},
                                            {"F8_E8M0", 1},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"F32", 4},
                                            {"F64", 8}}};
static_assert(kDTypes.size() == static_cast<std::size_t>(DType::unknown));

struct Entry {
  TensorInfo info;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

class HeaderEvents final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(std::string_view origin) : origin_(origin) {}

  std::vector<Entry> take() { return std::move(entries_); }

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_integer(number_integer_t) override { refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { refuse("a number that is no 64-bit integer"); }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > kMaxInt64 || entries_.back().info.shape.size() == kMaxRank) refuse("a shape out of range");
      entries_.back().info.shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::offsets) {
      if (entries_.back().offsets.size() == 2) refuse("more than two offsets");
      entries_.back().offsets.push_back(value);
    } else {
      refuse("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) return true;
    if (state_ != State::dtype) refuse("a text");
    entries_.back().info.dtype = parse_dtype(value);
    entries_.back().info.dtype_text = std::move(value);
    state_ = State::tensor;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::outside: state_ = State::file; return true;
      case State::tensor_value: state_ = State::tensor; return true;
      case State::metadata_value: state_ = State::metadata; return true;
      default: refuse("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::tensor) finish_tensor();
    state_ = state_ == State::file ? State::outside : State::file;
    return true;
  }

  bool key(string_t& name) override {
    if (state_ == State::file) {
      tensor_or_metadata(name);
    } else if (state_ == State::tensor) {
      field(name);
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape_value) {
      state_ = State::shape;
    } else if (state_ == State::offsets_value) {
      state_ = State::offsets;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw Error(Errc::format, origin_ + ": header is not JSON near its byte " + std::to_string(position));
  }

 private:
  enum class State {
    outside,
    file,
    metadata_value,
    metadata,
    tensor_value,
    tensor,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets
  };

  [[noreturn]] void refuse(const std::string& found) const {
    std::string where = "header";
    if (!entries_.empty()) where += ", tensor " + shown(entries_.back().info.name.substr(0, kNameLength));
    throw Error(Errc::format,
                origin_ + ": " + where + ": unexpected " + found + "; expected {name: {dtype, shape, data_offsets}}");
  }

  void tensor_or_metadata(string_t& name) {
    if (name == "__metadata__") {
      if (has_metadata_) refuse("second __metadata__");
      has_metadata_ = true;
      state_ = State::metadata_value;
      return;
    }
    entries_.emplace_back().info.name = std::move(name);
    state_ = State::tensor_value;
  }

  void field(const string_t& name) {
    Entry& e = entries_.back();
    bool* seen = name == "dtype"          ? &e.has_dtype
                 : name == "shape"        ? &e.has_shape
                 : name == "data_offsets" ? &e.has_offsets
                                          : nullptr;
    if (seen == nullptr) refuse("field " + shown(name.substr(0, kNameLength)));
    if (std::exchange(*seen, true)) refuse("second " + name);
    state_ = name == "dtype" ? State::dtype : name == "shape" ? State::shape_value : State::offsets_value;
  }

  void finish_tensor() const {
    const Entry& e = entries_.back();
    if (!e.has_dtype || !e.has_shape || !e.has_offsets) refuse("end of an entry without dtype, shape or data_offsets");
    if (e.offsets.size() != 2) refuse("number of data_offsets");
  }

  std::string origin_;
  std::vector<Entry> entries_;
  State state_ = State::outside;
  bool has_metadata_ = false;
};

[[noreturn]] void refuse(std::string_view origin, const TensorInfo& t, const std::string& what,
                         Errc code = Errc::format) {
  throw Error(code, std::string(origin) + ": tensor " + shown(t.name) + ": " + what);
}

std::string interval(const Entry& e) {
  return "[" + std::to_string(e.offsets[0]) + ", " + std::to_string(e.offsets[1]) + "]";
}

/// Offsets first: they are checked for every tensor, also where the dtype is unknown.
void check_entry(const Entry& e, std::uint64_t payload, std::string_view origin) {
  const std::uint64_t begin = e.offsets[0], end = e.offsets[1];
  if (begin > end) refuse(origin, e.info, "data_offsets " + interval(e) + " run backwards");
  if (end > payload) {
    refuse(origin, e.info,
           "data_offsets " + interval(e) + " end beyond the " + std::to_string(payload) + " payload bytes of the file",
           Errc::io);
  }
  std::uint64_t expected = 0;
  const std::int64_t element = std::max<std::int64_t>(dtype_bytes(e.info.dtype), 1);
  if (!shape_bytes(e.info.shape, element, expected)) refuse(origin, e.info, "the size of its shape overflows");
  if (e.info.dtype != DType::unknown && end - begin != expected) {
    refuse(origin, e.info,
           "data_offsets " + interval(e) + " hold " + std::to_string(end - begin) + " bytes, expected " +
               std::to_string(expected) + " for " + describe(e.info));
  }
}

void check_names(const std::vector<Entry>& entries, std::string_view origin) {
  std::vector<const TensorInfo*> sorted;
  for (const Entry& e : entries) sorted.push_back(&e.info);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  const auto same = [](auto* a, auto* b) { return a->name == b->name; };
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(), same);
  if (twice != sorted.end()) refuse(origin, **twice, "occurs twice");
}

}  // namespace

std::string_view dtype_name(DType type) noexcept {
  return type == DType::unknown ? "unknown" : kDTypes[static_cast<std::size_t>(type)].name;
}

std::int64_t dtype_bytes(DType type) noexcept {
  return type == DType::unknown ? 0 : kDTypes[static_cast<std::size_t>(type)].bytes;
}

DType parse_dtype(std::string_view text) noexcept {
  const auto at = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& row) { return row.name == text; });
  return static_cast<DType>(at - kDTypes.begin());
}

bool shape_bytes(std::span<const std::int64_t> shape, std::int64_t element_bytes, std::uint64_t& bytes) noexcept {
  // A zero extent makes the product 0, but the other extents must still be sane: strides are computed from them.
  std::uint64_t product = static_cast<std::uint64_t>(element_bytes);
  bool empty = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) return false;
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (product > kMaxInt64 / static_cast<std::uint64_t>(extent)) return false;
    product *= static_cast<std::uint64_t>(extent);
  }
  bytes = empty ? 0 : product;
  return true;
}

std::string describe(const TensorInfo& tensor) {
  std::string s =
      tensor.dtype == DType::unknown ? "dtype " + shown(tensor.dtype_text) : std::string(dtype_name(tensor.dtype));
  return s + " " + ops::extents_text(tensor.shape);
}

std::vector<TensorInfo> parse_header(std::string_view text, std::span<const std::byte> payload,
                                     std::string_view origin) {
  files::refuse_nul(text, origin);
  if (text.empty() || text[0] != '{') throw Error(Errc::format, std::string(origin) + ": header does not start with {");
  HeaderEvents events{origin};
  json::sax_parse(text.begin(), text.end(), &events);
  std::vector<Entry> entries = events.take();
  for (const Entry& e : entries) check_entry(e, payload.size(), origin);
  check_names(entries, origin);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  std::uint64_t end = 0;
  for (Entry& e : entries) {
    if (e.offsets[0] != end) {
      refuse(origin, e.info,
             "data_offsets " + interval(e) + (e.offsets[0] < end ? " overlap" : " leave a hole after") +
                 " the tensor before, which ends at " + std::to_string(end));
    }
    end = e.offsets[1];
    e.info.data = payload.data() + e.offsets[0];
    e.info.bytes = e.offsets[1] - e.offsets[0];
    tensors.push_back(std::move(e.info));
  }
  if (end != payload.size()) {
    throw Error(Errc::format, std::string(origin) + ": " + std::to_string(payload.size() - end) +
                                  " bytes after the last tensor, expected none");
  }
  return tensors;
}

}  // namespace dsv41::runtime

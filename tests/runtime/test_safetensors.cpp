// SPDX-License-Identifier: MIT
//
// The container: what a good file reads as, and that no malformed one gets past the header.
#include <sys/resource.h>

#include <cstring>
#include <functional>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "../support/raw_safetensors.hpp"
#include "../support/temp_folder.hpp"
#include "dsv41/runtime/safetensors.hpp"

using namespace dsv41::runtime;
using dsv41::Errc;
using dsv41::test::failure_of;
using dsv41::test::raw_file;
using dsv41::test::RawTensor;
using dsv41::test::read_file;
using dsv41::test::TempFolder;

namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s));
}

SafetensorsFile over(const std::string& file) {
  return SafetensorsFile::over(bytes_of(file), "memory");
}

/// The most memory that this process has held so far.
long peak_kib() {
  ::rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

std::string data_of(const TensorInfo& t) {
  return std::string(reinterpret_cast<const char*>(t.data), t.bytes);
}

/// Eight bytes of length, then the rest.
std::string with_length(std::uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

void check_refused(const std::string& why, const std::string& file, Errc code, const std::string& words = {}) {
  INFO(why);
  const auto failure = failure_of([&] { over(file); });
  INFO(failure.message);
  CHECK(failure.code == code);
  CHECK(failure.says("memory"));
  CHECK(failure.says(words));
  CHECK(failure.message.size() < 1000);
}

/// A header of one U8 tensor "w" with these fields.
std::string header(const std::string& shape, const std::string& offsets, const std::string& dtype = "\"U8\"") {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

}  // namespace

TEST_CASE("what is written is read back, in place and aligned as the release has it") {
  const TempFolder folder;
  const std::string a("\x01\x02\x03", 3), b("\x00\x00\x80\x3f\x00\x00\x00\x40", 8);
  const std::vector<TensorSource> tensors{{"odd \"name\"", DType::u8, {3}, bytes_of(a)},
                                          {"empty", DType::f32, {0, 5}, {}},
                                          {"scalar", DType::f64, {}, bytes_of(b)},
                                          {"f", DType::f32, {2, 1}, bytes_of(b)}};
  write_safetensors(folder / "x.safetensors", tensors);
  std::uint64_t length = 0;
  const std::string raw = read_file(folder / "x.safetensors");
  std::memcpy(&length, raw.data(), 8);
  CHECK(length % 8 == 0);
  CHECK(raw.size() == 8 + length + 3 + 8 + 8);
  for (Access access : {Access::map, Access::read}) {
    const auto file = SafetensorsFile::open(folder / "x.safetensors", access);
    REQUIRE(file.tensors().size() == 4);
    CHECK(file.origin() == (folder / "x.safetensors").string());
    for (const TensorSource& t : tensors) {
      const TensorInfo* found = file.find(t.name);
      REQUIRE(found != nullptr);
      CHECK(found->dtype == t.dtype);
      CHECK(found->shape == t.shape);
      CHECK(data_of(*found) == std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size()));
    }
    CHECK(file.find("absent") == nullptr);
    CHECK(describe(*file.find("f")) == "F32 [2, 1]");
  }
}

TEST_CASE("a header needs no data, and its text is the release's: compact, padded with spaces") {
  const auto info = [](const char* name, DType dtype, std::vector<std::int64_t> shape, std::uint64_t bytes) {
    TensorInfo out;
    out.name = name;
    out.dtype = dtype;
    out.shape = std::move(shape);
    out.bytes = bytes;
    return out;
  };
  const std::vector<TensorInfo> two{info("a", DType::bf16, {2, 3}, 12), info("b", DType::u8, {}, 1)};
  CHECK(safetensors_header(two) == R"({"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                                   R"("b":{"dtype":"U8","shape":[],"data_offsets":[12,13]}} )");
  CHECK(safetensors_header({}) == "{}      ");
  const std::int64_t half = std::int64_t{1} << 62;
  const auto large = info("a", DType::u8, {half}, std::uint64_t{1} << 62);
  const auto more = info("b", DType::u8, {half}, std::uint64_t{1} << 62);
  CHECK(failure_of([&] { safetensors_header(std::vector{large, more}); }).says("2^63 - 1"));
  const std::string long_name(100'000'000, 'x');
  CHECK(failure_of([&] { safetensors_header(std::vector{info(long_name.c_str(), DType::u8, {1}, 1)}); }).code ==
        Errc::invalid_argument);
}

TEST_CASE("a file that cannot be finished leaves nothing behind and the old one as it was") {
  const TempFolder folder;
  const std::string bytes = "abc";
  folder.write("x", "old");
  const auto entries = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator());
  };
  const std::vector<std::vector<TensorSource>> bad{
      {{"w", DType::u8, {4}, bytes_of(bytes)}},
      {{"w", DType::unknown, {3}, bytes_of(bytes)}},
      {{"w", DType::u8, {-3}, bytes_of(bytes)}},
      {{"\xff", DType::u8, {3}, bytes_of(bytes)}},
      {{"__metadata__", DType::u8, {3}, bytes_of(bytes)}},
      {{"w", DType::u8, {3}, bytes_of(bytes)}, {"w", DType::u8, {3}, bytes_of(bytes)}}};
  for (const auto& tensors : bad)
    CHECK(failure_of([&] { write_safetensors(folder / "x", tensors); }).code == Errc::invalid_argument);
  CHECK(read_file(folder / "x") == "old");
  std::filesystem::create_directory(folder / "taken");
  const std::vector<TensorSource> good{{"w", DType::u8, {3}, bytes_of(bytes)}};
  CHECK(failure_of([&] { write_safetensors(folder / "taken", good); }).code == Errc::io);
  CHECK(failure_of([&] { write_safetensors(folder / "none" / "x", good); }).code == Errc::io);
  CHECK(entries() == 2);
  write_safetensors(folder / "x", good);
  CHECK(data_of(*SafetensorsFile::open(folder / "x").find("w")) == "abc");
  CHECK(entries() == 2);
}

TEST_CASE("B84: every golden reads the same mapped, copied, and by an independent reader") {
  for (const char* name : {"01-all-mechanisms", "03-source-at-layer-0", "09-odd-sizes"}) {
    const auto path = std::filesystem::path(DSV41_GOLDEN_DIR) / name / "model.safetensors";
    const auto raw = dsv41::test::read_raw(path);
    for (Access access : {Access::map, Access::read}) {
      const auto file = SafetensorsFile::open(path, access);
      CHECK(file.tensors().size() == raw.size());
      for (const RawTensor& t : raw) {
        const TensorInfo* found = file.find(t.name);
        REQUIRE(found != nullptr);
        REQUIRE(dtype_name(found->dtype) == t.dtype);
        REQUIRE(found->shape == t.shape);
        REQUIRE(data_of(*found) == t.bytes);
      }
    }
  }
}

TEST_CASE("B80: header lengths that the file does not have are refused, without memory taken for them") {
  const long before = peak_kib();
  const std::string good = raw_file({{"w", "U8", {2}, "ab"}});
  for (std::size_t size = 0; size < 8; ++size) check_refused("short file", good.substr(0, size), Errc::io);
  check_refused("2^64-1", with_length(~std::uint64_t{0}, "{}"), Errc::format, "18446744073709551615");
  check_refused("2^64-4", with_length(~std::uint64_t{0} - 3, "{}"), Errc::format);
  check_refused("2^63", with_length(std::uint64_t{1} << 63, "{}"), Errc::format);
  check_refused("over the limit", with_length(100'000'001, "{}"), Errc::format);
  check_refused("longer than the file", with_length(100'000'000, "{}"), Errc::io);
  check_refused("one too long", with_length(3, "{}"), Errc::io);
  check_refused("zero", with_length(0, "{}"), Errc::format);
  check_refused("one too short", with_length(1, "{}"), Errc::format);
  check_refused("nothing after the length", with_length(0, ""), Errc::format);
  CHECK(peak_kib() - before < 200'000'000 / 1024);
}

TEST_CASE("a file cut anywhere is refused") {
  const std::string good = raw_file({{"a", "F32", {2}, "12345678"}, {"b", "U8", {3}, "abc"}});
  CHECK_NOTHROW(over(good));
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK(failure_of([&] { over(good.substr(0, size)); }).code != Errc::ok);
}

TEST_CASE("B80: a header that is not the format's JSON is refused") {
  const std::vector<std::pair<std::string, std::string>> headers{
      {"not JSON", "hello"},
      {"an array", "[]"},
      {"a space first", " {}"},
      {"cut", R"({"w":{"dtype":"U8")"},
      {"text after the object", "{} x"},
      {"second object", "{}{}"},
      {"NUL bytes", std::string("{}\0\0", 4)},
      {"entry is no object", R"({"w":3})"},
      {"entry is null", R"({"w":null})"},
      {"entry is an array", R"({"w":[1]})"},
      {"unknown field", R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}})"},
      {"no dtype", R"({"w":{"shape":[0],"data_offsets":[0,0]}})"},
      {"no shape", R"({"w":{"dtype":"U8","data_offsets":[0,0]}})"},
      {"no offsets", R"({"w":{"dtype":"U8","shape":[0]}})"},
      {"dtype is a number", header("[0]", "[0,0]", "8")},
      {"shape is a text", header("\"0\"", "[0,0]")},
      {"negative extent", header("[-1]", "[0,0]")},
      {"fraction", header("[1.0]", "[0,0]")},
      {"nested shape", header("[[0]]", "[0,0]")},
      {"extent of 2^63", header("[9223372036854775808]", "[0,0]")},
      {"extent beyond 64 bits", header("[18446744073709551616]", "[0,0]")},
      {"one offset", header("[0]", "[0]")},
      {"three offsets", header("[0]", "[0,0,0]")},
      {"offsets an object", header("[0]", "{}")},
      {"field twice", R"({"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"},
      {"metadata that is no object", R"({"__metadata__":3})"},
      {"metadata with a number", R"({"__metadata__":{"a":3}})"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})"},
      {"not UTF-8", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"},
      {"17 extents", header("[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]", "[0,0]")},
  };
  for (const auto& [why, text] : headers) check_refused(why, raw_file(text, ""), Errc::format);
}

TEST_CASE("B80: nesting ten thousand deep is refused without a crash") {
  const long before = peak_kib();
  std::string arrays = "{\"w\":", objects;
  for (int i = 0; i < 10000; ++i) arrays += "[", objects += "{\"a\":";
  check_refused("arrays", raw_file(arrays, ""), Errc::format);
  check_refused("objects", raw_file(objects, ""), Errc::format);
  check_refused("in metadata", raw_file("{\"__metadata__\":" + objects, ""), Errc::format);
  CHECK(peak_kib() - before < 200'000'000 / 1024);
}

TEST_CASE("B80: duplicate names are refused") {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  check_refused("plain", raw_file("{\"w\":" + entry + ",\"v\":" + entry + ",\"w\":" + entry + "}", ""), Errc::format,
                "twice");
  check_refused("escaped", raw_file("{\"w\":" + entry + ",\"\\u0077\":" + entry + "}", ""), Errc::format, "twice");
}

TEST_CASE("metadata is allowed and ignored") {
  CHECK(
      over(raw_file(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )", "x"))
          .tensors()
          .size() == 1);
  CHECK(over(raw_file("{}", "")).tensors().empty());
}

TEST_CASE("offsets that disagree with the shape, the payload or each other are refused") {
  check_refused("backwards", raw_file(header("[1]", "[1,0]"), "x"), Errc::format, "backwards");
  check_refused("beyond the payload", raw_file(header("[2]", "[0,2]"), "x"), Errc::io, "beyond");
  check_refused("far beyond", raw_file(header("[1]", "[18446744073709551614,18446744073709551615]"), "x"), Errc::io);
  check_refused("too few bytes", raw_file(header("[2]", "[0,1]"), "x"), Errc::format, "expected 2");
  check_refused("too many bytes", raw_file(header("[1]", "[0,2]"), "xy"), Errc::format, "expected 1");
  check_refused("trailing bytes", raw_file(header("[1]", "[0,1]"), "xy"), Errc::format, "1 bytes after");
  check_refused("hole at the start", raw_file(header("[1]", "[1,2]"), "xy"), Errc::format, "hole");
  check_refused("product of 2^64", raw_file(header("[4294967296,4294967296]", "[0,0]"), ""), Errc::format, "overflow");
  check_refused("product behind a zero", raw_file(header("[0,4294967296,4294967296]", "[0,0]"), ""), Errc::format,
                "overflow");
  check_refused("bytes of 2^63", raw_file(header("[1152921504606846976]", "[0,0]", "\"F64\""), ""), Errc::format,
                "overflow");
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  CHECK_NOTHROW(over(raw_file(two("[2,4]", "[0,2]"), "wxyz")));
  check_refused("overlap", raw_file(two("[0,2]", "[1,3]"), "xyz"), Errc::format, "overlap");
  check_refused("same bytes", raw_file(two("[0,2]", "[0,2]"), "xy"), Errc::format, "overlap");
  check_refused("hole", raw_file(two("[0,2]", "[3,5]"), "vwxyz"), Errc::format, "hole");
}

TEST_CASE("B81: an unknown dtype does not switch the checks of its offsets off") {
  const auto file = over(raw_file(header("[8]", "[0,4]", "\"F4\""), "abcd"));
  CHECK(file.find("w")->dtype == DType::unknown);
  CHECK(file.find("w")->dtype_text == "F4");
  check_refused("far beyond", raw_file(header("[1]", "[9223372036854775808,9223372036854775812]", "\"Q9\""), "abcd"),
                Errc::io);
  check_refused("backwards", raw_file(header("[1]", "[4,0]", "\"Q9\""), "abcd"), Errc::format);
  check_refused("hole", raw_file(header("[1]", "[1,4]", "\"Q9\""), "abcd"), Errc::format);
  check_refused("overflow", raw_file(header("[4294967296,4294967296]", "[0,4]", "\"Q9\""), "abcd"), Errc::format);
  CHECK(over(raw_file(header("[4]", "[0,4]", "\"F8_E8M0\""), "abcd")).find("w")->dtype == DType::f8_e8m0);
  CHECK(over(raw_file(header("[4]", "[0,4]", "\"F8_E4M3\""), "abcd")).find("w")->dtype == DType::f8_e4m3);
}

TEST_CASE("B86: data may start at any address") {
  for (int pad = 0; pad < 8; ++pad) {
    const std::string text =
        R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" + std::string(static_cast<std::size_t>(pad), ' ');
    const std::string bytes = raw_file(text, "abcd");
    CHECK(data_of(*over(bytes).find("w")) == "abcd");
  }
}

TEST_CASE("what is no readable file is refused") {
  const TempFolder folder;
  for (Access access : {Access::map, Access::read}) {
    CHECK(failure_of([&] { SafetensorsFile::open(folder / "absent", access); }).code == Errc::io);
    CHECK(failure_of([&] { SafetensorsFile::open(folder.path(), access); }).code == Errc::io);
    CHECK(failure_of([&] { SafetensorsFile::open(folder.write("empty", ""), access); }).code == Errc::io);
  }
}

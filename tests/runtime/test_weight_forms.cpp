// SPDX-License-Identifier: MIT
//
// How a weight may be stored: every legal form opens, every other pair of dtype, shape and scale is refused by name.
#include <cmath>
#include <cstring>

#include "../support/catch.hpp"
#include "../support/spoiled_copy.hpp"
#include "dsv41/numerics/stored.hpp"

using dsv41::Format;
using namespace dsv41::test;

TEST_CASE("every tensor of a wrong shape or dtype is refused by name") {
  const std::size_t count = SpoiledCopy().tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (bool shape : {true, false}) {
      SpoiledCopy copy;
      RawTensor& t = copy.tensors[i];
      if (shape) {
        t.shape[0] += 1;
        t.bytes.append(t.bytes.size() / static_cast<std::size_t>(t.shape[0] - 1), '\0');
      } else {
        t.dtype = t.dtype == "F32" ? "I32" : t.dtype == "BF16" ? "I16" : "F8_E5M2";
      }
      std::string owner = t.name;
      if (owner.ends_with(".scale") && shape) owner = owner.substr(0, owner.size() - 5) + "weight";
      check_refused(copy, {owner, kModelFile, "expected"});
    }
  }
}

TEST_CASE("a short block has a scale of its own") {
  for (const auto& [n, blocks] : {std::pair{0, 0}, {1, 1}, {32, 1}, {33, 2}, {64, 2}}) {
    CHECK(dsv41::scale_blocks(n) == blocks);
  }
}

TEST_CASE("B81: an unknown dtype is refused where it is used and ignored where it is not") {
  SpoiledCopy copy;
  copy.tensors.push_back({"vision.x", "Q9", {3}, "abcde"});
  CHECK_NOTHROW(copy.open());
  named(copy.tensors, "norm.weight").dtype = "Q9";
  check_refused(copy, {"norm.weight", "Q9"});
}

TEST_CASE("a NaN scale is refused with its place") {
  SpoiledCopy copy;
  named(copy.tensors, "layers.1.ffn.experts.3.w2.scale").bytes[7] = '\xff';
  check_refused(copy, {"layers.1.ffn.experts.3.w2.scale", "NaN", "[3, 1]"});
}

TEST_CASE("a vector that is not finite is refused with its place") {
  for (const char* bits : {"\xc0\x7f", "\x80\x7f", "\x80\xff"}) {
    SpoiledCopy copy;
    std::memcpy(named(copy.tensors, "norm.weight").bytes.data() + 6, bits, 2);
    check_refused(copy, {"norm.weight", "[3]"});
  }
}

TEST_CASE("B37: quantised weights without their scale are refused, naming the weight") {
  for (const char* name : {"layers.0.attn.wq_a", "layers.0.ffn.experts.0.w1", "layers.1.engram.embed"}) {
    SpoiledCopy copy;
    erase(copy.tensors, std::string(name) + ".scale");
    check_refused(copy, {std::string(name) + ".weight", std::string("without ") + name + ".scale"});
  }
}

TEST_CASE("B37: the scale of another block size is refused") {
  SpoiledCopy copy;  // wq_b is [256, 32]: tiles [8, 1]; of 128 x 128 it would have [2, 1]
  RawTensor& scale = named(copy.tensors, "layers.0.attn.wq_b.scale");
  scale.shape = {scale.shape[0] / 4, 1};
  scale.bytes.resize(static_cast<std::size_t>(scale.shape[0]));
  check_refused(copy, {"layers.0.attn.wq_b.weight", "expected"});
}

TEST_CASE("B37: a weight of 40 x 70 has 2 x 3 tile scales, and each short block its own") {
  const std::string name = "layers.0.ffn.experts.0.w2";  // [dim, ff], 40 x 70 once ff is changed
  SpoiledCopy copy("09-odd-sizes");
  copy.config["text_config"]["moe_intermediate_size"] = 70;
  for (RawTensor& t : copy.tensors) {
    if (t.name.find("experts") == std::string::npos) continue;
    t.shape[t.name.find(".w2.") != std::string::npos ? 1 : 0] = 70;
    t.bytes.resize(static_cast<std::size_t>(2 * t.shape[0] * t.shape[1]));
  }
  named(copy.tensors, name + ".weight") = {
      name + ".weight", "F8_E4M3", {40, 70}, std::string(40 * 70, '\x38')};  // ones
  check_refused(copy, {name + ".weight", "without " + name + ".scale"});
  copy.tensors.push_back({name + ".scale", "F8_E8M0", {1, 1}, "\x7f"});  // as blocks of 128 would have it
  check_refused(copy, {name + ".weight", "F8_E8M0 [1, 1], expected [40, 70] with a scale [2, 3] for [40, 70]"});
  named(copy.tensors, name + ".scale") = {name + ".scale", "F8_E8M0", {2, 3}, "\x7f\x80\x81\x82\x83\x84"};
  const dsv41::runtime::Checkpoint checkpoint = copy.open();
  const dsv41::Matrix w = checkpoint.weights().layers[0].moe.experts[0].w2;
  CHECK(w.format == Format::fp8_tile);
  for (const std::int64_t row : {0, 31, 32, 39}) {
    float values[70];
    dsv41::numerics::decode_row(w, row, 0, 70, values);
    for (std::int64_t c = 0; c < 70; ++c)
      CHECK(values[c] == std::ldexp(row < 32 ? 1.0f : 8.0f, static_cast<int>(c / 32)));
  }
}

TEST_CASE("a table's row scales are no tile scales, and a linear's tile scales no row scales") {
  SpoiledCopy copy;
  RawTensor& scale = named(copy.tensors, "layers.1.engram.embed.scale");
  scale.shape[0] = (scale.shape[0] + 31) / 32;
  scale.bytes.resize(static_cast<std::size_t>(scale.shape[0] * scale.shape[1]));
  check_refused(copy, {"layers.1.engram.embed.weight"});
  SpoiledCopy other;
  RawTensor& tiles = named(other.tensors, "layers.0.attn.wq_a.scale");
  tiles.shape[0] *= 32;
  tiles.bytes.resize(tiles.bytes.size() * 32, '\x7f');
  check_refused(other, {"layers.0.attn.wq_a.weight"});
}

TEST_CASE("a scale beside a float weight is refused") {
  SpoiledCopy copy;
  copy.tensors.push_back({"embed.scale", "F8_E8M0", {10, 1}, std::string(10, '\x7f')});
  check_refused(copy, {"embed.weight", "beside a scale"});
}

TEST_CASE("a scale may be U8, and packed FP4 may be U8") {
  SpoiledCopy copy;
  for (RawTensor& t : copy.tensors) {
    if (t.dtype == "F8_E8M0" || t.dtype == "I8") t.dtype = "U8";
  }
  CHECK(copy.open().weights().layers[0].moe.experts[0].w1.format == Format::fp4_row);
  RawTensor& scale = named(copy.tensors, "layers.0.attn.wq_a.scale");
  scale.dtype = "I8";
  check_refused(copy, {"layers.0.attn.wq_a.scale", "F8_E8M0"});
}

TEST_CASE("B39: packed FP4 is told by the pair of shapes, and odd leftovers are refused") {
  // An expert's w2 as FP4 of 40 rows and so many columns and scales, in a folder whose config asks for them.
  const auto outcome = [](std::int64_t columns, std::int64_t scale_columns) {
    SpoiledCopy copy("09-odd-sizes");  // its experts are BF16, so their width may change without scales
    const std::string w2 = "layers.0.ffn.experts.0.w2";
    copy.config["text_config"]["moe_intermediate_size"] = columns;
    for (RawTensor& t : copy.tensors) {
      if (t.name.find("experts") == std::string::npos) continue;
      t.shape[t.name.find(".w2.") != std::string::npos ? 1 : 0] = columns;
      t.bytes.resize(static_cast<std::size_t>(2 * t.shape[0] * t.shape[1]));
    }
    const std::int64_t rows = 40, bytes = columns / 2;
    named(copy.tensors, w2 + ".weight") = {
        w2 + ".weight", "I8", {rows, bytes}, std::string(static_cast<std::size_t>(rows * bytes), '\x11')};
    copy.tensors.push_back({w2 + ".scale",
                            "F8_E8M0",
                            {rows, scale_columns},
                            std::string(static_cast<std::size_t>(rows * scale_columns), '\x7f')});
    const Failure failure = copy.failure();
    if (failure.code == dsv41::Errc::ok) {
      const dsv41::Matrix w = copy.open().weights().layers[0].moe.experts[0].w2;
      CHECK(w.format == Format::fp4_row);
      CHECK(w.cols == columns);
    } else {
      CHECK(failure.code == dsv41::Errc::format);
      CHECK(failure.says("tensor " + w2 + ".weight is I8 [40, " + std::to_string(bytes) + "]"));
    }
    return failure;
  };
  CHECK(outcome(32, 1).code == dsv41::Errc::ok);  // 16 bytes and one scale a row: 32 columns
  CHECK(outcome(32, 2).says("F8_E8M0 [40, 2], expected [40, 16] with a scale [40, 1] for [40, 32]"));
  for (const std::int64_t scales : {1, 2})
    CHECK(outcome(48, scales).says("the columns of a row are no multiple of 32"));  // 24 bytes
  CHECK(outcome(34, 2).says("no multiple of 32"));
}

TEST_CASE("any matrix may be stored in any form, Engram tables included") {
  const std::string name = "layers.1.engram.embed";
  const auto with = [&](const std::string& dtype, std::int64_t columns, std::size_t element, bool scaled) {
    SpoiledCopy copy;
    RawTensor& t = named(copy.tensors, name + ".weight");
    t.dtype = dtype;
    t.shape[1] = columns;
    t.bytes.assign(static_cast<std::size_t>(t.shape[0] * columns) * element, '\0');
    if (!scaled) erase(copy.tensors, name + ".scale");
    return copy.open().weights().layers[1].engram.table.format;
  };
  CHECK(with("F8_E4M3", 32, 1, true) == Format::fp8_row);
  CHECK(with("I8", 16, 1, true) == Format::fp4_row);
  CHECK(with("BF16", 32, 2, false) == Format::bf16);
  CHECK(with("F16", 32, 2, false) == Format::f16);
  CHECK(with("F32", 32, 4, false) == Format::f32);
  SpoiledCopy copy;
  RawTensor& sink = named(copy.tensors, "layers.0.attn.attn_sink");
  sink = {sink.name, "F16", sink.shape, std::string(static_cast<std::size_t>(2 * sink.shape[0]), '\x3c')};
  CHECK(copy.open().weights().layers[0].attn.sink[0] == Approx(1.0586).epsilon(1e-3));
}

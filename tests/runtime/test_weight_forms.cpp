// SPDX-License-Identifier: MIT
//
// How a weight may be stored: every legal form opens, every other pair of dtype, shape and scale is refused by name.
#include <cstring>

#include "../support/catch.hpp"
#include "../support/spoiled_copy.hpp"

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

TEST_CASE("an unknown dtype is refused where it is used and ignored where it is not (B81)") {
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

TEST_CASE("quantised weights without their scale are refused, naming the weight (B37)") {
  for (const char* name : {"layers.0.attn.wq_a", "layers.0.ffn.experts.0.w1", "layers.1.engram.embed"}) {
    SpoiledCopy copy;
    erase(copy.tensors, std::string(name) + ".scale");
    check_refused(copy, {std::string(name) + ".weight", std::string("without ") + name + ".scale"});
  }
}

TEST_CASE("the scale of another block size is refused (B37)") {
  SpoiledCopy copy;  // wq_b is [256, 32]: tiles [8, 1]; of 128 x 128 it would have [2, 1]
  RawTensor& scale = named(copy.tensors, "layers.0.attn.wq_b.scale");
  scale.shape = {scale.shape[0] / 4, 1};
  scale.bytes.resize(static_cast<std::size_t>(scale.shape[0]));
  check_refused(copy, {"layers.0.attn.wq_b.weight", "expected"});
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

TEST_CASE("packed FP4 is told by the pair of shapes, and odd leftovers are refused (B39)") {
  // ff is a multiple of 32 in the goldens; w2 is [dim, ff].
  const std::string name = "layers.0.ffn.experts.0.w2";
  SpoiledCopy copy;
  RawTensor& scale = named(copy.tensors, name + ".scale");
  scale.shape = {scale.shape[0], scale.shape[1] * 2};
  scale.bytes.resize(scale.bytes.size() * 2, '\x7f');
  check_refused(copy, {name + ".weight", "expected [32, 32] with a scale [32, 2] for [32, 64]"});
  SpoiledCopy odd("09-odd-sizes");  // dim 40, ff 36: rows of w1 have 40 columns, which need two scales
  const std::string w1 = "layers.0.ffn.experts.0.w1";
  RawTensor& weight = named(odd.tensors, w1 + ".weight");
  weight = {w1 + ".weight", "I8", {36, 20}, std::string(36 * 20, '\x11')};
  odd.tensors.push_back({w1 + ".scale", "F8_E8M0", {36, 1}, std::string(36, '\x7f')});
  check_refused(odd, {w1, "I8 [36, 20]", "F8_E8M0 [36, 1]", "[36, 2]"});
  named(odd.tensors, w1 + ".scale") = {w1 + ".scale", "F8_E8M0", {36, 2}, std::string(72, '\x7f')};
  CHECK(odd.open().weights().layers[0].moe.experts[0].w1.format == Format::fp4_row);
}

TEST_CASE("FP4 with an odd number of columns is refused (B39)") {
  SpoiledCopy copy("09-odd-sizes");
  copy.config["text_config"]["moe_intermediate_size"] = 35;
  for (RawTensor& t : copy.tensors) {
    if (t.name.find("experts") == std::string::npos) continue;
    const bool down = t.name.find(".w2.") != std::string::npos;
    t.shape[down ? 1 : 0] = 35;
    t.bytes.resize(static_cast<std::size_t>(2 * t.shape[0] * t.shape[1]));
  }
  CHECK_NOTHROW(copy.open());
  const std::string name = "layers.0.ffn.experts.0.w2.weight";
  named(copy.tensors, name) = {name, "I8", {40, 18}, std::string(40 * 18, '\0')};
  check_refused(copy, {name, "odd"});
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

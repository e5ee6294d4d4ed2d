// SPDX-License-Identifier: MIT
//
// ops::Embed: copies into every stream, image rows in their places, a one-hot mix.
#include "dsv41/ops/embed.hpp"

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, hc, dim;
  Format format;
  std::int64_t image_rows;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 4, 8, Format::bf16, 0, 1},      {1, 1, 1, Format::f32, 0, 2},     {1, 8, 7, Format::f16, 1, 3},
    {13, 4, 64, Format::bf16, 0, 4},    {17, 3, 33, Format::f32, 5, 5},   {9, 2, 40, Format::bf16, 3, 6},
    {5, 4, 64, Format::fp8_tile, 2, 7}, {6, 4, 5120, Format::bf16, 6, 8},
};

struct Inputs {
  Array<std::int32_t, 1> ids;
  Array<std::uint8_t, 1> image;
  Array<float, 2> image_rows;
  Stored table;
};

constexpr std::int64_t kVocab = 40;

Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{Array<std::int32_t, 1>({c.tokens}), Array<std::uint8_t, 1>({c.tokens}),
            random_array<2>(random, {c.image_rows, c.dim}), random_matrix(random, c.format, kVocab, c.dim)};
  for (std::int32_t& id : in.ids.values) id = static_cast<std::int32_t>(random.below(kVocab));
  for (std::int64_t i = 0; i < c.image_rows && i < c.tokens; ++i)
    in.image.values[static_cast<std::size_t>(c.tokens - 1 - i)] = 7;
  return in;
}

template <class B>
void run_case(const Case& c) {
  B backend;
  Memory<B> memory(backend);
  const Inputs in = make(c);
  const auto streams = memory.put(Array<float, 3>({c.tokens, c.hc, c.dim}, -1.0f));
  const auto mix = memory.put(Array<float, 2>({c.tokens, (2 + c.hc) * c.hc}, -1.0f));
  const ops::Embed op{.ids = memory.put(in.ids),
                      .image = memory.put(in.image),
                      .image_rows = memory.put(in.image_rows),
                      .table = memory.put(in.table, 1),
                      .streams = streams,
                      .mix = mix};
  op.check();
  backend.run(op);
  std::vector<float> want, want_mix;
  std::size_t next_image = 0;
  for (std::size_t t = 0; t < in.ids.values.size(); ++t) {
    std::vector<float> row;
    for (std::int64_t i = 0; i < c.dim; ++i) {
      const bool image = in.image.values[t] != 0;
      const auto at = next_image * static_cast<std::size_t>(c.dim) + static_cast<std::size_t>(i);
      row.push_back(image ? in.image_rows.values[at] : static_cast<float>(in.table.value(in.ids.values[t], i)));
    }
    next_image += in.image.values[t] != 0;
    for (std::int64_t j = 0; j < c.hc; ++j) want.insert(want.end(), row.begin(), row.end());
    for (std::int64_t j = 0; j < (2 + c.hc) * c.hc; ++j) want_mix.push_back(j == 0 ? 1.0f : j < c.hc ? 0.0f : -1.0f);
  }
  CHECK(memory.get(streams) == want);
  CHECK(memory.get(mix) == want_mix);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("embed copies a token's row, or the next image row, into every stream", "[embed]", Backends) {
  for (const Case& c : kCases) {
    INFO("seed " << c.seed);
    run_case<TestType>(c);
  }
}

TEMPLATE_LIST_TEST_CASE("B07: an id outside the vocabulary is an error, not a read beside the table", "[embed]",
                        Backends) {
  for (const std::int32_t id : {-1, static_cast<std::int32_t>(kVocab), 0x7FFFFFFF}) {
    TestType backend;
    Memory<TestType> memory(backend);
    const Inputs in = make({2, 2, 8, Format::bf16, 0, 9});
    const Out<float, 3> streams = memory.put(Array<float, 3>({2, 2, 8}, 5.0f));
    backend.run(ops::Embed{.ids = memory.put(std::vector<std::int32_t>{3, id}),
                           .image = memory.put(in.image),
                           .image_rows = {},
                           .table = memory.put(in.table),
                           .streams = streams,
                           .mix = memory.put(Array<float, 2>({2, 8}))});
    const Failure failure = failure_of([&] { backend.sync(); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message ==
          "embed: ids holds " + std::to_string(id) + ", expected at least 0 and less than " + std::to_string(kVocab));
    CHECK(memory.get(streams) == std::vector<float>(32, 5.0f));
  }
}

TEST_CASE("embed: check() names the field, what it expects and what it got") {
  const ops::Embed good{.ids = shaped<const std::int32_t, 1>({3}),
                        .image = shaped<const std::uint8_t, 1>({3}),
                        .image_rows = shaped<const float, 2>({2, 8}),
                        .table = {.rows = 5, .cols = 8},
                        .streams = shaped<float, 3>({3, 2, 8}),
                        .mix = shaped<float, 2>({3, 8})};
  check_refuses(good, "image is [4], expected [3]", [](auto& op) { op.image = shaped<const std::uint8_t, 1>({4}); });
  check_refuses(good, "streams is [3, 2, 7], expected [3, 2, 8]", [](auto& op) {
    op.streams = shaped<float, 3>({3, 2, 7});
  });
  check_refuses(good, "mix is [3, 9], expected [3, 8]", [](auto& op) { op.mix = shaped<float, 2>({3, 9}); });
  check_refuses(good, "image_rows is [2, 9], expected [2, 8]", [](auto& op) {
    op.image_rows = shaped<const float, 2>({2, 9});
  });
}

// SPDX-License-Identifier: MIT
//
// ops::Markov: the worked example of dspark.md 8.1, random matrices in every storage format, and rows that lie apart.
#include "dsv41/ops/markov.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Inputs {
  std::vector<std::int32_t> tokens;
  Stored embed, head, confidence;  // without rows: none
  Array<float, 2> base, hidden;
};

struct Outputs {
  std::vector<float> logits, z;
};

template <class B>
Outputs run_on(B& backend, const Inputs& in, bool in_place = false) {
  Memory<B> memory(backend);
  const Out<float, 2> base = memory.put(in.base);
  const bool judges = in.confidence.rows > 0;
  ops::Markov op{.tokens = memory.put(in.tokens),
                 .embed = memory.put(in.embed),
                 .head = memory.put(in.head),
                 .confidence = {},
                 .base = base,
                 .hidden = memory.put(in.hidden),
                 .logits = in_place ? base : memory.put(Array<float, 2>(in.base.extents, -1.0f)),
                 .z = memory.put(std::vector<float>(judges ? in.tokens.size() : 0))};
  if (judges) op.confidence = memory.put(in.confidence);
  op.check();
  backend.run(op);
  Outputs out{memory.get(op.logits), memory.get(op.z)};
  if (!in_place) CHECK(memory.get(base) == in.base.values);
  return out;
}

template <class B>
Outputs run(const Inputs& in, bool in_place = false) {
  B backend;
  return run_on(backend, in, in_place);
}

Inputs random_inputs(Format format, std::int64_t rows, std::int64_t vocab, std::int64_t rank, std::int64_t dim) {
  Random random(7);
  std::vector<std::int32_t> tokens;
  for (std::int64_t t = 0; t < rows; ++t) tokens.push_back(static_cast<std::int32_t>(random.below(vocab)));
  return {tokens,
          random_matrix(random, format, vocab, rank),
          random_matrix(random, format, vocab, rank),
          random_matrix(random, format, 1, dim + rank),
          random_array<2>(random, {rows, vocab}),
          random_array<2>(random, {rows, dim})};
}

/// 1 / (1 + exp(-z)) to six digits, as the table prints it.
double sure(float z) {
  return std::round(1e6 / (1 + std::exp(-static_cast<double>(z)))) / 1e6;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("dspark.md 8.1, example 9: three drafts from an anchor, and how sure they are", "[markov]",
                        Backends) {
  const Stored w1 = float_matrix(4, 2, {1, 0, 0, 1, -1, 0.5f, 0.5f, 0.5f}),
               w2 = float_matrix(4, 2, {0, 1, 0.5f, -1, 2, 0, -0.5f, 0.25f}),
               confidence = float_matrix(1, 4, {1, -2, 0.5f, 0.25f});
  const std::vector<std::vector<float>> u = {{1, 0.5f, 0, -1}, {0.2f, 0.1f, 0.3f, 0}, {0, 0, 0, 0.4f}},
                                        h = {{0.2f, -0.1f}, {0.4f, 0.3f}, {-0.5f, 0.1f}},
                                        want = {
                                            {2, -0.5f, 0, -0.75f}, {0.2f, 0.6f, 2.3f, -0.5f}, {0.5f, -1, -2, 1.025f}};
  const std::int32_t tokens[] = {1, 0, 2, 3};
  const double z[] = {0.65, 0.3, -1.075}, c[] = {0.657010, 0.574443, 0.254453};
  for (std::size_t k = 0; k < 3; ++k) {
    const Outputs got = run<TestType>({{tokens[k]}, w1, w2, confidence, {{1, 4}, u[k]}, {{1, 2}, h[k]}});
    for (std::size_t v = 0; v < 4; ++v) CHECK(got.logits[v] == Approx(want[k][v]).margin(1e-6));
    CHECK(static_cast<double>(got.z[0]) == Approx(z[k]).epsilon(1e-6));
    CHECK(sure(got.z[0]) == Approx(c[k]).epsilon(1e-9));
    CHECK(std::max_element(got.logits.begin(), got.logits.end()) - got.logits.begin() == tokens[k + 1]);
  }
}

TEMPLATE_LIST_TEST_CASE("markov equals the formula in every storage format; each row for itself; in place too",
                        "[markov]", Backends) {
  for (const Format format : kFormats) {
    INFO(format_name(format));
    const Inputs in = random_inputs(format, 3, 37, 64, 40);
    const Outputs got = run<TestType>(in);
    for (std::int64_t t = 0; t < 3; ++t) {
      Doubles e, joined = slice(in.hidden.values, t * 40, 40);
      const std::int32_t token = in.tokens[static_cast<std::size_t>(t)];
      for (std::int64_t i = 0; i < 64; ++i) e.push_back(in.embed.value(token, i));
      joined.insert(joined.end(), e.begin(), e.end());
      Doubles logits = product(in.head, e);
      for (std::size_t v = 0; v < logits.size(); ++v)
        logits[v] += static_cast<double>(in.base.values[static_cast<std::size_t>(t) * logits.size() + v]);
      const std::vector<float> row(got.logits.begin() + t * 37, got.logits.begin() + (t + 1) * 37);
      CHECK(norm_error(row, logits) <= kNorm);
      CHECK(norm_error({got.z[static_cast<std::size_t>(t)]}, product(in.confidence, joined)) <= 1e-5);  // one sum
      const Outputs alone =
          run<TestType>({{token}, in.embed, in.head, in.confidence, in.base.rows(t, 1), in.hidden.rows(t, 1)});
      CHECK(same_bits(alone.logits, row));
      CHECK(same_bits(alone.z, {got.z[static_cast<std::size_t>(t)]}));
    }
    const Outputs in_place = run<TestType>(in, true);
    CHECK(same_bits(in_place.logits, got.logits));
    CHECK(same_bits(in_place.z, got.z));
  }
}

TEMPLATE_LIST_TEST_CASE("markov is a float32 linear and an addition, bit for bit", "[markov]", Backends) {
  Inputs in = random_inputs(Format::bf16, 4, 50, 33, 20);
  std::fill(in.base.values.begin(), in.base.values.end(), 0.0f);
  TestType backend;
  Memory<TestType> memory(backend);
  Array<float, 2> e({4, 33});
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t i = 0; i < 33; ++i)
      e.values[static_cast<std::size_t>(t * 33 + i)] =
          static_cast<float>(in.embed.value(in.tokens[static_cast<std::size_t>(t)], i));
  }
  const auto y = memory.put(Array<float, 2>({4, 50}));
  backend.run(ops::Linear{.x = memory.put(e), .w = memory.put(in.head), .y = y, .role = ops::LinearRole::float32});
  CHECK(run<TestType>(in).logits == memory.get(y));
}

TEMPLATE_LIST_TEST_CASE("B77: without a confidence head the logits are the same, and there is no z", "[markov]",
                        Backends) {
  Inputs in = random_inputs(Format::bf16, 3, 37, 8, 16);
  const Outputs judged = run<TestType>(in);
  in.confidence = {};
  const Outputs got = run<TestType>(in);
  CHECK(same_bits(got.logits, judged.logits));
  CHECK(got.z.empty());
}

TEMPLATE_LIST_TEST_CASE("B07: a token behind the table is an error that names it", "[markov]", Backends) {
  Inputs in = random_inputs(Format::bf16, 3, 37, 8, 16);
  in.tokens[1] = 37;
  const Failure failure = failure_of([&] { run<TestType>(in); });
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.says("markov: tokens holds 37, expected at least -1 and less than 37"));
}

TEMPLATE_LIST_TEST_CASE("B07: a negative token is none: a row without it, and nothing to the rows beside it",
                        "[markov]", Backends) {
  for (const Format format : kFormats) {
    INFO(format_name(format));
    for (const std::int32_t none : {-1, std::numeric_limits<std::int32_t>::min()}) {
      Inputs in = random_inputs(format, 3, 37, 64, 40);
      TestType backend;
      const Outputs whole = run_on(backend, in);  // whose row the backend's workspace may still hold
      in.tokens[1] = none;
      const Outputs got = run_on(backend, in);
      std::vector<float> want = whole.logits;
      std::copy_n(in.base.values.begin() + 37, 37, want.begin() + 37);
      CHECK(same_bits(got.logits, want));
      CHECK(got.z[0] == whole.z[0]);
      CHECK(got.z[2] == whole.z[2]);
      Doubles joined = slice(in.hidden.values, 40, 40);
      joined.resize(104);
      CHECK(norm_error({got.z[1]}, product(in.confidence, joined)) <= 1e-5);
    }
  }
}

TEST_CASE("markov: check() names the field, what it expects and what it got") {
  const std::byte some{};
  const ops::Markov good{.tokens = shaped<const std::int32_t, 1>({3}),
                         .embed = {.rows = 9, .cols = 4, .data = &some},
                         .head = {.rows = 9, .cols = 4, .data = &some},
                         .confidence = {.rows = 1, .cols = 12, .data = &some},
                         .base = shaped<const float, 2>({3, 9}),
                         .hidden = shaped<const float, 2>({3, 8}),
                         .logits = shaped<float, 2>({3, 9}),
                         .z = shaped<float, 1>({3})};
  check_refuses(good, "head is [9, 5], expected [9, 4]", [](auto& op) { op.head.cols = 5; });
  check_refuses(good, "base is [2, 9], expected [3, 9]", [](auto& op) { op.base = shaped<const float, 2>({2, 9}); });
  check_refuses(good, "logits is [3, 8], expected [3, 9]", [](auto& op) { op.logits = shaped<float, 2>({3, 8}); });
  check_refuses(good, "z is [2], expected [3]", [](auto& op) { op.z = shaped<float, 1>({2}); });
  check_refuses(good, "z is [3], expected [0]", [](auto& op) { op.confidence = {}; });
  check_refuses(good, "hidden is [2, 8], expected [3, 8]", [](auto& op) {
    op.hidden = shaped<const float, 2>({2, 8});
  });
  check_refuses(good, "confidence is [1, 11], expected [1, 12]", [](auto& op) { op.confidence.cols = 11; });
}

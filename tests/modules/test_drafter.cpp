// SPDX-License-Identifier: MIT
//
// The drafter over caller-owned memory: which keys a block sees, where its rows stand, what its context remembers, and how its stages
// hang together. Its values are those of tests/model/test_drafter_goldens.cpp.
#include "dsv41/modules/dspark/drafter.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "dsv41/backend/checked.hpp"
#include "support/random_drafter.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kBlock = 5;

/// A backend that keeps the inputs that seams hand to their sublayers, in order.
template <class B>
class SeamInputs : public B {
 public:
  template <class Op>
  void run(const Op& op) noexcept {
    B::run(op);
    if constexpr (std::is_same_v<Op, ops::MhcSeam>) {
      inputs.emplace_back(op.input.data(), op.input.data() + op.input.size());
    }
  }
  std::vector<std::vector<float>> inputs;
};

template <class B>
bool sees_row(RandomDrafter<B>& random, Drafting<B>& drafting, const DraftState& state, std::int64_t position) {
  const std::int64_t slot = position % state.rings[0].rows;
  std::vector<std::vector<std::uint8_t>> kept;
  DraftState spoiled = state;
  for (CacheRows& ring : spoiled.rings) {
    std::vector<float> rows = random.memory.get(ring);
    std::fill_n(rows.begin() + slot * ring.width, ring.width, std::numeric_limits<float>::quiet_NaN());
    ring = random.memory.put(CacheFormat::window, Array<float, 2>({ring.rows, ring.width}, rows));
  }
  return std::isnan(drafting.draft({&spoiled, 3}, kBlock).base[0]);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE(
    "dspark.md 8.1, example 10: a block at 201 sees positions 73 to 200 and itself, one at 6 sees 0 to 5", "[drafter]",
    Backends) {
  ModelConfig config = tiny_draft_config();
  config.window = 128, config.draft.stages = 1;
  RandomDrafter<TestType> random(config);
  Drafting<TestType> drafting = random.drafting(Numeric::exact, 256);
  for (const std::int64_t p : {std::int64_t{201}, std::int64_t{6}}) {
    DraftState state = drafting.open(210);  // so that older rows are still there to be seen
    const DraftRequest request{&drafting.remember(state, random.taps(p)), 3};
    std::vector<std::int64_t> seen, want;
    for (std::int64_t at = 0; at < p; ++at) {
      if (sees_row(random, drafting, state, at)) seen.push_back(at);
    }
    for (std::int64_t at = p == 201 ? 73 : 0; at < p; ++at) want.push_back(at);
    CHECK(seen == want);
    const Drafts plain = drafting.draft(request, kBlock);
    for (std::size_t row = 1; row < static_cast<std::size_t>(kBlock); ++row) {  // each row sees each: not causal
      DraftRequest changed = request;
      changed.changes = {{row, 17}};
      const Drafts other = drafting.draft(changed, kBlock);
      for (std::int64_t r = 0; r < kBlock; ++r)
        CHECK(plain.base[static_cast<std::size_t>(r * config.vocab)] !=
              other.base[static_cast<std::size_t>(r * config.vocab)]);
    }
    std::vector<std::int32_t> ids(5);
    std::vector<std::int64_t> positions(5);
    draft_block(config, 3, state, ids, positions);
    CHECK(ids == std::vector<std::int32_t>{3, 49, 49, 49, 49});
    CHECK(positions == std::vector<std::int64_t>{p, p + 1, p + 2, p + 3, p + 4});
  }
}

TEMPLATE_LIST_TEST_CASE("B69: moving context and block together by 1000 positions changes nothing but roundings",
                        "[drafter]", Backends) {
  ModelConfig config = tiny_draft_config();
  config.head_dim = 20;  // unquantised in the window: with FP8 after the rotation the window would carry the position
  RandomDrafter<TestType> random(config);
  Drafting<TestType> drafting = random.drafting();
  for (const std::int64_t rows : {1, 5, 8, 13}) {
    DraftState here = drafting.open(8), there = drafting.open(8);
    there.restart(1000);
    const Drafts want = drafting.draft({&drafting.remember(here, random.taps(rows)), 3}, kBlock);
    const Drafts got = drafting.draft({&drafting.remember(there, random.taps(rows)), 3}, kBlock);
    CHECK(norm_error(got.base, doubles_of(want.base)) < 1e-4);
    CHECK(norm_error(got.hidden, doubles_of(want.hidden)) < 1e-4);
    there.position = 1000 + rows + 1;  // a block one position late: no longer the same
    CHECK(norm_error(drafting.draft({&there, 3}, kBlock).base, doubles_of(want.base)) > 1e-3);
  }
}

TEMPLATE_LIST_TEST_CASE("a position behind the model's last is clamped", "[drafter]", Backends) {
  ModelConfig config = tiny_draft_config();
  std::vector<std::int32_t> ids(4);
  std::vector<std::int64_t> positions(4);
  DraftState state;
  state.restart(config.max_positions - 2);
  draft_block(config, 1, state, ids, positions);
  const std::int64_t last = config.max_positions - 1;
  CHECK(positions == std::vector<std::int64_t>{last - 1, last, last, last});
}

TEMPLATE_LIST_TEST_CASE("B71: after 200 rounds of other acceptance the context is exactly the committed tokens'",
                        "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  Drafting<TestType> drafting = random.drafting();
  const Array<float, 2> taps = random.taps(2000), rejected = random.taps(kBlock, 10);
  const std::int64_t width = taps.extents[1], step_rows = kBlock + 1;
  Random choices(11);
  DraftState states[2] = {drafting.open(8), drafting.open(9)};
  const DraftState* const pointers[2] = {&states[0], &states[1]};
  for (int round = 0; round < 200; ++round) {
    Array<float, 2> step({2 * step_rows, width}, 1e30f);  // two sequences' rows, accepted ones first
    DraftContext committed[2];
    for (std::int64_t r = 0; r < 2; ++r) {
      DraftState& state = states[r];
      committed[r] = {pointers[r], r * step_rows, round < 50 ? step_rows : 1 + choices.below(step_rows)};
      std::copy_n(taps.values.begin() + state.position * width, committed[r].rows * width,
                  step.values.begin() + committed[r].first_row * width);
    }
    drafting.drafter().remember(random.backend(), random.memory.put(step), committed, drafting.views());
    for (std::int64_t r = 0; r < 2; ++r) states[r].advance(committed[r].rows);
    if (round % 40 != 39) continue;
    for (DraftState& state : states) {
      const std::int64_t slots = state.rings[0].rows, last = std::min<std::int64_t>(slots, state.position);
      CHECK(state.first == state.position - last);
      DraftState fresh = drafting.open(slots);
      fresh.restart(state.first);
      drafting.remember(fresh, taps.rows(state.first, last));
      CHECK(drafting.ring_bytes(state) == drafting.ring_bytes(fresh));
      CHECK(drafting.draft({&state, 5}, kBlock) == drafting.draft({&fresh, 5}, kBlock));
    }
  }
  CHECK(states[0].position != states[1].position);
}

TEMPLATE_LIST_TEST_CASE("a request whose rows are NaN drafts nothing, and its batch mate what it drafts alone",
                        "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  Drafting<TestType> drafting = random.drafting();
  DraftState sound = drafting.open(8), spoiled = drafting.open(8);
  drafting.remember(sound, random.taps(12));
  spoiled.restart(12), spoiled.first = 4;
  for (CacheRows& ring : spoiled.rings)
    ring = random.memory.put(CacheFormat::window, Array<float, 2>({ring.rows, ring.width}, std::nanf("")));
  const Drafts alone = drafting.draft({&sound, 4}, kBlock);
  CHECK(std::none_of(alone.tokens.begin(), alone.tokens.end(), [](std::int32_t id) { return id < 0; }));
  for (const std::size_t at : {0, 1}) {
    std::vector<DraftRequest> requests(2, {&spoiled, 3});
    requests[at] = {&sound, 4};
    const std::vector<Drafts> got = drafting.draft(requests, kBlock);
    CHECK(got[at] == alone);
    CHECK(got[1 - at].tokens == std::vector<std::int32_t>(kBlock, -1));
    CHECK_NOTHROW(random.backend().sync());
  }
}

TEMPLATE_LIST_TEST_CASE("a block leaves the rings as they are, of any number of rows", "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  for (const Numeric numeric : kNumerics) {
    Drafting<TestType> drafting = random.drafting(numeric);
    DraftState state = drafting.open(8, {3, 5});
    drafting.remember(state, random.taps(21));
    const auto before = drafting.ring_bytes(state);
    const Drafts first = drafting.draft({&state, 4}, 1);
    for (const std::int64_t block : {1, 2, 5, 9, 24}) drafting.draft({&state, 4}, block);
    CHECK(drafting.ring_bytes(state) == before);
    CHECK(drafting.draft({&state, 4}, 1) == first);
  }
}

TEMPLATE_LIST_TEST_CASE("a long prompt in one call leaves what its last rows leave", "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  Drafting<TestType> drafting = random.drafting();
  const Array<float, 2> taps = random.taps(61);
  DraftState whole = drafting.open(8), last = drafting.open(8);
  drafting.remember(whole, taps);
  last.restart(53);
  drafting.remember(last, taps.rows(53, 8));
  CHECK(drafting.ring_bytes(whole) == drafting.ring_bytes(last));
  CHECK(whole.first == 53);
  CHECK(drafting.draft({&whole, 4}, kBlock) == drafting.draft({&last, 4}, kBlock));
}

TEMPLATE_LIST_TEST_CASE("going back hides the rows that newer ones had overwritten, and with room nothing is lost",
                        "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  Drafting<TestType> drafting = random.drafting();
  const Array<float, 2> taps = random.taps(30);
  DraftState straight = drafting.open(8);
  drafting.remember(straight, taps.rows(0, 20));
  const Drafts want = drafting.draft({&straight, 4}, kBlock);

  DraftState roomy = drafting.open(11), tight = drafting.open(8);
  for (DraftState* state : {&roomy, &tight}) {
    drafting.remember(*state, taps.rows(0, 23));
    state->rewind(20);
    CHECK(state->position == 20);
  }
  CHECK(roomy.first == 12);
  CHECK(drafting.draft({&roomy, 4}, kBlock) == want);
  CHECK(tight.first == 15);
  straight.first = 15;
  CHECK(drafting.draft({&tight, 4}, kBlock) == drafting.draft({&straight, 4}, kBlock));
  CHECK(drafting.draft({&tight, 4}, kBlock).base != want.base);
  tight.rewind(3);
  CHECK(tight.first == 3);  // nothing is left
  DraftState empty = drafting.open(8);
  empty.restart(3);
  CHECK(drafting.draft({&tight, 4}, kBlock) == drafting.draft({&empty, 4}, kBlock));
}

TEMPLATE_LIST_TEST_CASE(
    "B44: a sublayer of the stages collapses with its predecessor's pre, the head with the last one's", "[drafter]",
    Backends) {
  RandomDrafter<SeamInputs<TestType>> random;
  const auto inputs = [&](Drafts* drafts) {
    Drafting<SeamInputs<TestType>> drafting = random.drafting();
    DraftState state = drafting.open(8);
    drafting.remember(state, random.taps(12));
    random.backend().inputs.clear();
    *drafts = drafting.draft({&state, 4}, kBlock);
    return random.backend().inputs;
  };
  Drafts plain, other;
  const auto want = inputs(&plain);
  REQUIRE(want.size() == 6);

  // The chain starts again at one-hot: the first input is the normed embedding of the anchor, then of noise.
  const SeamWeights& first = random.weights.draft.stages[0].attn_seam;
  const std::vector<float> norm = random.memory.get(first.norm);
  for (const std::int64_t row : {0, 1}) {
    const std::int64_t dim = random.config.dim, id = row == 0 ? 4 : 49;
    std::vector<float> embedding(static_cast<std::size_t>(dim));
    numerics::decode_row(random.weights.embed, id, 0, dim, embedding.data());
    Doubles x = doubles_of(embedding);
    const double rms = root_mean_square(x, 1e-20);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<double>(norm[i]) / rms;
    const std::vector<float> got(want[0].begin() + row * dim, want[0].begin() + (row + 1) * dim);
    CHECK(norm_error(got, x) <= kNorm);
  }

  for (std::size_t seam = 0; seam < 6; ++seam) {
    LayerWeights& stage = random.weights.draft.stages[seam / 2];
    SeamWeights& w = seam % 2 == 0 ? stage.attn_seam : stage.ffn_seam;
    const SeamWeights kept = w;
    std::vector<float> base = random.memory.get(w.base);
    for (std::size_t i = 0; i < 4; ++i) base[i] += static_cast<float>(i) - 1.5f;  // pre
    w.base = random.memory.put(base);
    const auto got = inputs(&other);
    for (std::size_t i = 0; i <= seam; ++i) CHECK(got[i] == want[i]);
    if (seam < 5) CHECK(got[seam + 1] != want[seam + 1]);
    CHECK(other.hidden != plain.hidden);
    w = kept;
  }
}

TEMPLATE_LIST_TEST_CASE("every op of a round keeps its contract; no requests and no rows change nothing", "[drafter]",
                        Backends) {
  using B = Checked<TestType>;
  RandomDrafter<B> random;
  for (const Numeric numeric : kNumerics) {
    Drafting<B> drafting = random.drafting(numeric);
    DraftState state = drafting.open(8);
    CHECK_NOTHROW(drafting.remember(state, random.taps(0)));
    CHECK_NOTHROW(drafting.draft({&state, 4}, kBlock));  // an anchor at position 0 sees its block only
    drafting.remember(state, random.taps(11));
    const Drafts want = drafting.draft({&state, 4}, kBlock);
    CHECK_NOTHROW(drafting.draft(std::vector<DraftRequest>{}, kBlock));
    drafting.remember(state, random.taps(0));
    CHECK(drafting.draft({&state, 4}, kBlock) == want);
    CHECK_NOTHROW(random.backend().sync());
  }
}

TEMPLATE_LIST_TEST_CASE("the text bias routes draft rows whatever a checkpoint says of images", "[drafter]", Backends) {
  RandomDrafter<TestType> random;
  const auto base = [&] {
    Drafting<TestType> drafting = random.drafting();
    DraftState state = drafting.open(8);
    return drafting.draft({&drafting.remember(state, random.taps(9)), 4}, kBlock).base;
  };
  const std::vector<float> want = base();
  for (LayerWeights& stage : random.weights.draft.stages) {
    const std::vector<float> other = {9, -9, 5, -5, 0};
    stage.moe.bias_vl = random.memory.put(other);
  }
  CHECK(same_bits(base(), want));
}

TEST_CASE("B77: a drafter without a part is refused by the part's name, or drafts without its confidence") {
  RandomDrafter<RefBackend> random;
  const auto refusal = [&](const auto& spoil) {
    ModelConfig config = random.config;
    ModelWeights weights = random.weights;
    spoil(config, weights.draft);
    const Failure failure = failure_of([&] { Drafter(config, weights, {}, Numeric::exact); });
    CHECK(failure.code == Errc::shape_mismatch);
    return failure.message;
  };
  CHECK(refusal([](auto& c, auto&) { c.draft = {}; }) == "drafter: number of draft stages is 0, expected at least 1");
  CHECK(refusal([](auto&, auto& w) { w.stages.pop_back(); }) ==
        "drafter: number of stages in the weights is 2, expected 3");
  CHECK(refusal([](auto&, auto& w) { w.stages[1].moe.experts.pop_back(); }) ==
        "drafter: number of experts in stage 1 is 4, expected 5");
  CHECK(refusal([](auto&, auto& w) { w.main_proj = {}; }) == "drafter: main_proj is [0, 0], expected [48, 144]");
  CHECK(refusal([](auto&, auto& w) { w.main_norm = {}; }) == "drafter: main_norm is [0], expected [48]");
  CHECK(refusal([](auto&, auto& w) { w.norm = {}; }) == "drafter: norm is [0], expected [48]");
  CHECK(refusal([](auto&, auto& w) { w.markov_embed = {}; }) == "drafter: markov_embed is [0, 0], expected [50, 8]");
  CHECK(refusal([](auto&, auto& w) { w.markov_head = {}; }) == "drafter: markov_head is [0, 0], expected [50, 8]");
  CHECK(refusal([](auto&, auto& w) { w.confidence.cols = 48; }) == "drafter: confidence is [1, 48], expected [1, 56]");

  const auto draft = [&] {
    Drafting<RefBackend> drafting = random.drafting();
    DraftState state = drafting.open(8);
    const Drafts got = drafting.draft({&drafting.remember(state, random.taps(9)), 4}, kBlock);
    CHECK(drafting.drafter().has_confidence() == !got.z.empty());
    return got;
  };
  const Drafts judged = draft();
  CHECK(judged.z.size() == 5);
  random.weights.draft.confidence = {};
  const Drafts got = draft();
  CHECK(got.z.empty());
  CHECK(got.tokens == judged.tokens);
  CHECK(same_bits(got.logits, judged.logits));
}

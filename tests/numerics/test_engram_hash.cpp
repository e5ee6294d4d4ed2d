// SPDX-License-Identifier: MIT
//
// The engram hash against numpy itself (values written by numpy 2.4), the released model's constants, and the look-back
// rules at chunk borders.
#include "dsv41/numerics/engram_hash.hpp"

#include <array>
#include <numeric>
#include <span>

#include "support/catch.hpp"

namespace {

using dsv41::Errc;
using dsv41::Error;
using namespace dsv41::numerics;
using dsv41::kMaxNgram;

constexpr std::int32_t kPad = 2;

struct IntegersCase {
  std::uint64_t seed;
  std::int64_t bound;
  std::array<std::int64_t, 7> values;
};

// numpy.random.default_rng(seed).integers(0, bound, size=7, dtype=numpy.int64)
const IntegersCase kIntegersCases[] = {
    {0ull, 10, {8, 6, 5, 2, 3, 0, 0}},
    {1ull, 1, {0, 0, 0, 0, 0, 0, 0}},
    {12345ull, 4294967296, {3003105693, 976400781, 3387213022, 1360466709, 876933081, 3424658562, 2760304912}},
    {12345ull, 4294967295, {3003105692, 976400780, 3387213021, 1360466708, 876933080, 3424658561, 2760304911}},
    {12345ull, 4294967297, {976400781, 1360466710, 3424658563, 2904491695, 1679802729, 1429424936, 2569716530}},
    {7ull, 3, {2, 1, 2, 2, 1, 2, 2}},
    {18446744073709551615ull, 1000003, {547965, 680028, 950078, 845314, 358442, 7403, 100131}},
    {9223372036854775808ull,
     9223372036854775807,
     {7483331053097795197, 5501304568828377307, 8008276491635824381, 3921093426403540997, 2301211832116662546,
      2105426629304765446, 4226687135479717336}},
    {30021ull,
     4611686018427387905,
     {1363851555314680009, 4045888766225458823, 538957978815580111, 2161005939215985623, 4085739557415112185,
      2754852203245721396, 4412069773355569199}},
    {99ull, 3221225472, {3086494194, 1630038897, 2440565981, 1820287557, 572789383, 1648996728, 3034138780}},
    {5ull, 2147483649, {1440510676, 1728730615, 48647418, 1353417275, 596836679, 823278402, 1226609122}},
    {4294967296ull,
     1099511627793,
     {978278146708, 612579764487, 880607754331, 1051698064458, 64448050149, 259925313300, 866208672077}},
    {424242ull,
     6917529027641081857,
     {3283037516830466495, 1993724075923370566, 1664004301243007855, 4925759794945779484, 880983191501536354,
      6662911069410442018, 2233966937773843508}},
    {3ull, 1, {0, 0, 0, 0, 0, 0, 0}},
    {8ull, 2, {1, 0, 0, 1, 0, 0, 1}},
};

EngramParameters v41() {
  return {{1, 14}, 4, 16000000, 8, 99092};
}

/// All rows of all layers of the token at `position`, from a history that starts at `first`.
std::vector<std::int64_t> rows_at(const EngramLayout& layout, std::span<const std::int32_t> ids, std::size_t position,
                                  std::size_t first = 0) {
  std::vector<std::int64_t> all;
  for (const EngramLayerLayout& layer : layout.layers) {
    const EngramHashView hash = view_of(layer);
    std::array<std::int64_t, kMaxNgram> look{};
    engram_look_back(ids.data() + first, static_cast<std::int64_t>(position - first + 1), kPad, hash.max_ngram,
                     look.data());
    std::vector<std::int64_t> rows(layer.primes.size());
    engram_rows(hash, look.data(), rows.data());
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

std::uint64_t fnv(std::uint64_t hash, std::int64_t value) {
  for (int i = 0; i < 8; ++i) {
    hash = (hash ^ ((static_cast<std::uint64_t>(value) >> (8 * i)) & 255)) * 0x100000001B3u;
  }
  return hash;
}

}  // namespace

TEST_CASE("numpy's bounded integers are reproduced on every path") {
  for (const IntegersCase& c : kIntegersCases) {
    NumpyRng rng(c.seed);
    for (const std::int64_t expected : c.values) {
      INFO("seed " << c.seed << ", bound " << c.bound);
      CHECK(rng.below(c.bound) == expected);
    }
  }
}

TEST_CASE("ten thousand numpy draws over 2000 seeds and bounds of 1 to 63 bits have the expected digest") {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::uint64_t k = 0; k < 2000; ++k) {
    const std::uint64_t seed = k % 2 ? k * 0x9E3779B97F4A7C15u : k;
    const uint128 wide = static_cast<uint128>(k * k * k) * 0x123456789ABCDu;
    const auto bound = static_cast<std::int64_t>(1 + wide % (static_cast<uint128>(1) << (1 + k % 63)));
    NumpyRng rng(seed);
    for (int i = 0; i < 5; ++i) hash = fnv(hash, rng.below(bound));
  }
  CHECK(hash == 0xBB078F903F7934EDu);
}

TEST_CASE("raw draws of the released seeds are the published ones") {
  NumpyRng one(10007), fourteen(140098);
  for (const std::uint64_t raw : {0xD2C3F84026661E33u, 0x0D4FB6969EB57435u, 0x62E6E1C58C3BD72Bu, 0xCB7DD1A94CA96343u}) {
    CHECK(one.next_u64() == raw);
  }
  for (const std::uint64_t raw : {0xBA3ECC29CF07C111u, 0x8DAC4BBE10610B7Cu, 0x550B7148777FF213u, 0xE33B7455BC98449Eu}) {
    CHECK(fourteen.next_u64() == raw);
  }
}

TEST_CASE("primality agrees with trial division below 20000 and on known large cases") {
  for (std::uint64_t n = 0; n < 20000; ++n) {
    bool prime = n >= 2;
    for (std::uint64_t d = 2; prime && d * d <= n; ++d) prime = n % d != 0;
    REQUIRE(is_prime(n) == prime);
  }
  CHECK(is_prime(18446744073709551557u));  // the largest below 2^64
  CHECK_FALSE(is_prime(18446744073709551615u));
  CHECK_FALSE(is_prime(3825123056546413051u));  // strong pseudoprime to the bases 2 to 23
  CHECK_FALSE(is_prime(4294967291u * 4294967279u));
  CHECK(next_prime(-5) == 2);
  CHECK(next_prime(2) == 3);
  CHECK(next_prime(15999999) == 16000057);
  CHECK_THROWS_AS(next_prime(9223372036854775783), Error);
}

TEST_CASE("the released layout has the published primes, offsets, multipliers and row counts") {
  const EngramLayout layout = engram_layout(v41());
  REQUIRE(layout.layers.size() == 2);
  const std::vector<std::int64_t> first = {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                                           277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463};
  const std::vector<std::int64_t> second = {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                                            711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889};
  const std::vector<std::int64_t>* suffixes[] = {&first, &second};
  const std::int64_t rows[] = {384006168, 384016682};
  const std::vector<std::int64_t> multipliers[] = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                                   {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
  for (int l = 0; l < 2; ++l) {
    const EngramLayerLayout& layer = layout.layers[l];
    CHECK(layer.layer == v41().layer_ids[l]);
    CHECK(layer.rows == rows[l]);
    CHECK(layer.multipliers == multipliers[l]);
    std::int64_t offset = 0;
    for (std::size_t c = 0; c < 24; ++c) {
      CHECK(layer.primes[c] == 16000000 + (*suffixes[l])[c]);
      CHECK(layer.offsets[c] == offset);
      offset += layer.primes[c];
    }
  }
}

TEST_CASE("published hash vectors are reproduced") {
  const EngramLayout layout = engram_layout(v41());
  const std::vector<std::int32_t> text = {0, 237, 242, 35, 16}, dead = {5, kEngramDead, 7, 9},
                                  top = {0, 99091, 99091, 99091};
  const auto check = [&](std::span<const std::int32_t> ids, std::size_t position, std::size_t layer, std::int64_t a,
                         std::int64_t b, std::int64_t c) {
    const auto rows = rows_at(layout, ids, position);
    CHECK(rows[24 * layer] == a);
    CHECK(rows[24 * layer + 8] == b);
    CHECK(rows[24 * layer + 23] == c);
  };
  check(text, 0, 0, 5702652, 131476717, 380066193);
  check(text, 4, 0, 3467290, 131478326, 372252162);
  check(text, 4, 1, 5101121, 136823645, 376393843);
  check(dead, 3, 0, 625092, 129015320, 383485759);
  check(top, 3, 1, 11374428, 139959227, 376171711);
  const std::vector<std::int64_t> all = {3467290,   19278842,  43989352,  49673980,  74206059,  93051518,
                                         110474568, 120275114, 131478326, 148655903, 163142483, 187305535,
                                         194301342, 221812105, 239093386, 241880405, 265458630, 284976301,
                                         302007554, 318527703, 334876206, 351401165, 354790195, 372252162};
  auto rows = rows_at(layout, text, 4);
  rows.resize(24);
  CHECK(rows == all);
}

TEST_CASE("rows stay inside their column's range for every n-gram depth") {
  for (int depth = 2; depth <= kMaxNgram; ++depth) {
    const EngramLayout layout = engram_layout({{0, 3, 7}, depth, 61, 3, 269});
    std::vector<std::int32_t> ids(40);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i * 31 % 269);
    for (std::size_t l = 0; l < 3; ++l) {
      const EngramLayerLayout& layer = layout.layers[l];
      const std::size_t columns = layer.primes.size();
      REQUIRE(columns == static_cast<std::size_t>(depth - 1) * 3);
      for (std::size_t p = 0; p < ids.size(); ++p) {
        const auto rows = rows_at(layout, ids, p);
        for (std::size_t c = 0; c < columns; ++c) {
          const std::int64_t local = rows[l * columns + c] - layer.offsets[c];
          REQUIRE((local >= 0 && local < layer.primes[c]));
        }
      }
    }
  }
}

TEST_CASE("the toy layout of the golden cases has the row counts of its config") {
  const EngramLayout layout = engram_layout({{1, 3}, 4, 61, 2, 269});
  CHECK(layout.layers[0].rows == 434);
  CHECK(layout.layers[1].rows == 606);
}

TEST_CASE("a huge compressed vocabulary leaves multipliers of one") {
  const EngramLayout layout = engram_layout({{2}, 3, 11, 1, std::numeric_limits<std::int64_t>::max()});
  CHECK(layout.layers[0].multipliers == std::vector<std::int64_t>{1, 1, 1});
}

TEST_CASE("a dead slot blocks itself and everything older") {
  const std::vector<std::int32_t> ids = {4, 5, kEngramDead, 6, 7};
  std::array<std::int64_t, 4> look{};
  engram_look_back(ids.data(), 5, kPad, 4, look.data());
  CHECK(look == std::array<std::int64_t, 4>{7, 6, kPad, kPad});
  engram_look_back(ids.data(), 3, kPad, 4, look.data());
  CHECK(look == std::array<std::int64_t, 4>{kPad, kPad, kPad, kPad});
  engram_look_back(ids.data(), 2, kPad, 4, look.data());
  CHECK(look == std::array<std::int64_t, 4>{5, 4, kPad, kPad});
  engram_look_back(ids.data(), 0, kPad, 4, look.data());
  CHECK(look == std::array<std::int64_t, 4>{kPad, kPad, kPad, kPad});
}

TEST_CASE("B08: rows are the same for every split into chunks, interleaving and fork") {
  const EngramLayout layout = engram_layout(v41());
  const std::vector<std::int32_t> a = {0, 17, 99091, 5, kEngramDead, 35, 237, 237, 11}, b = {0, 3, 3, 3, 9, 1, 4, 1, 5};
  std::vector<std::vector<std::int64_t>> one_shot;
  for (std::size_t p = 0; p < a.size(); ++p) one_shot.push_back(rows_at(layout, a, p));
  for (std::size_t split = 1; split < a.size(); ++split) {
    const std::size_t carried = split < 3 ? 0 : split - 3;  // three older ids travel with the sequence
    for (std::size_t p = split; p < a.size(); ++p) CHECK(rows_at(layout, a, p, carried) == one_shot[p]);
  }
  for (std::size_t p = 0; p < a.size(); ++p) CHECK(rows_at(layout, a, p, p < 3 ? 0 : p - 3) == one_shot[p]);
  std::vector<std::int32_t> history_a, history_b;
  for (std::size_t p = 0; p < a.size(); ++p) {
    history_a.push_back(a[p]);
    history_b.push_back(b[p]);
    CHECK(rows_at(layout, history_a, p) == one_shot[p]);
    CHECK(rows_at(layout, history_b, p) == rows_at(layout, b, p));
  }
  std::vector<std::int32_t> fork(a.begin(), a.begin() + 5);
  fork.push_back(a[5]);
  CHECK(rows_at(layout, fork, 5) == one_shot[5]);
}

TEST_CASE("a history is the last ids, dead before the start") {
  const std::vector<std::int32_t> ids{7, kEngramDead, 9, 11};
  const auto history = [&](std::int64_t count) {
    std::array<std::int32_t, 3> out{5, 5, 5};
    engram_history(ids.data(), count, 3, out.data());
    return out;
  };
  CHECK(history(0) == std::array<std::int32_t, 3>{-1, -1, -1});
  CHECK(history(1) == std::array<std::int32_t, 3>{-1, -1, 7});
  CHECK(history(3) == std::array<std::int32_t, 3>{7, -1, 9});
  CHECK(history(4) == std::array<std::int32_t, 3>{-1, 9, 11});
}

TEST_CASE("B06: liveness is a property of the position, so a longer buffer changes nothing") {
  const EngramLayout layout = engram_layout(v41());
  for (const std::size_t capacity : {31u, 128u, 4096u}) {
    std::vector<std::int32_t> buffer(capacity, kEngramDead);
    for (int i = 0; i < 31; ++i) buffer[i] = i * 7;
    std::vector<std::int32_t> exact(buffer.begin(), buffer.begin() + 31);
    for (std::size_t p = 0; p < 31; ++p) CHECK(rows_at(layout, buffer, p) == rows_at(layout, exact, p));
  }
}

TEST_CASE("B10: ragged verify widths give the rows of separate calls") {
  const EngramLayout layout = engram_layout(v41());
  const std::vector<std::int32_t> prompt = {0, 8, 9, 10}, drafts = {20, 21, 22, 23, 24, 25};
  for (const std::size_t width : {1u, 6u, 3u}) {
    std::vector<std::int32_t> ids = prompt;
    for (std::size_t i = 0; i < width; ++i) {
      ids.push_back(drafts[i]);
      std::vector<std::int32_t> longest = prompt;
      longest.insert(longest.end(), drafts.begin(), drafts.end());
      CHECK(rows_at(layout, ids, ids.size() - 1) == rows_at(layout, longest, ids.size() - 1));
    }
  }
}

TEST_CASE("B12: output sizes follow from the parameters alone") {
  const EngramLayout layout = engram_layout(v41());
  for (const EngramLayerLayout& layer : layout.layers) {
    CHECK(layer.primes.size() == 24);
    CHECK(view_of(layer).heads == 8);
    CHECK(view_of(layer).max_ngram == 4);
  }
}

TEST_CASE("impossible parameters are refused by name") {
  const auto code = [](EngramParameters p) {
    try {
      engram_layout(p);
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::ok;
  };
  auto p = v41();
  p.max_ngram = 1;
  CHECK(code(p) == Errc::invalid_argument);
  p.max_ngram = 9;
  CHECK(code(p) == Errc::invalid_argument);
  p = v41(), p.heads = 0;
  CHECK(code(p) == Errc::invalid_argument);
  p = v41(), p.vocab_size = 0;
  CHECK(code(p) == Errc::invalid_argument);
  p = v41(), p.compressed_vocab = 0;
  CHECK(code(p) == Errc::invalid_argument);
  p = v41(), p.layer_ids = {-1};
  CHECK(code(p) == Errc::invalid_argument);
  p = v41(), p.vocab_size = std::numeric_limits<std::int64_t>::max() - 1;
  CHECK(code(p) == Errc::unsupported);
}

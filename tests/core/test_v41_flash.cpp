// SPDX-License-Identifier: MIT
//
// The released config as data against the released config.json, whose SHA-256 is published.
#include "dsv41/core/v41_flash.hpp"

#include "../support/catch.hpp"
#include "../support/temp_folder.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/numerics/engram_hash.hpp"
#include "dsv41/numerics/rope.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "files/sha256.hpp"

TEST_CASE("v41_flash() is the released config, field by field") {
  const std::string text = dsv41::test::read_file(std::filesystem::path(DSV41_GOLDEN_DIR) / "release" / "config.json");
  CHECK(dsv41::files::sha256_hex(text) == "8be45ce0476004a3f529fd896115a4a2e800a129ad2d3ec05b16050f52e21879");
  const dsv41::ModelConfig c = dsv41::v41_flash();
  CHECK_NOTHROW(validate(c));
  CHECK(c == dsv41::runtime::parse_config(text, "config.json"));
}

TEST_CASE("v41_flash() has the tables that tests/numerics holds against the published ones") {
  // test_engram_hash.cpp: primes, offsets, multipliers; test_rope.cpp: frequencies. Here: the config is what they come from.
  const dsv41::ModelConfig c = dsv41::v41_flash();
  const auto layout = dsv41::numerics::engram_layout({.layer_ids = {c.engram.layers.begin(), c.engram.layers.end()},
                                                      .max_ngram = c.engram.max_ngram,
                                                      .vocab_size = c.engram.vocab,
                                                      .heads = c.engram.heads,
                                                      .compressed_vocab = c.engram.compressed_vocab});
  REQUIRE(layout.layers.size() == 2);
  CHECK(layout.layers[0].rows == c.engram.rows[0]);
  CHECK(layout.layers[1].rows == c.engram.rows[1]);
  CHECK(layout.layers[0].multipliers[0] == 76632096046245);
  CHECK(layout.layers[1].multipliers[3] == 82619226485591);
  std::vector<float> f(static_cast<std::size_t>(c.rope_dim / 2));
  REQUIRE(f.size() == 32);
  dsv41::numerics::rope_frequencies(c.compress_theta, c.rope_dim, &c.yarn, f.data());
  CHECK(static_cast<double>(f[16]) == Approx(2.265625e-3).epsilon(1e-6));
  CHECK(static_cast<double>(f[31]) == Approx(5.680529036909976e-7).epsilon(1e-6));
}

TEST_CASE("configs that differ in one field of any part are not equal") {
  const dsv41::ModelConfig c = dsv41::v41_flash();
  dsv41::ModelConfig other = c;
  other.vision.patch = 16;
  CHECK_FALSE(other == c);
  other = c;
  other.yarn.beta_slow = 2;
  CHECK_FALSE(other == c);
  other = c;
  other.ratios[7] = 1;
  CHECK_FALSE(other == c);
}

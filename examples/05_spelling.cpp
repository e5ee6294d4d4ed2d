// SPDX-License-Identifier: MIT
//
// Spellings and Engram: texts that differ in case only have other token ids but the same compressed ids, so they read the same rows of
// the n-gram tables; a text whose tokens split otherwise does not. Uses the demo checkpoint's tokenizer and hash (or argv[1]'s).
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/text/compressed_map.hpp"

namespace {

struct Spelled {
  std::vector<std::int32_t> ids, compressed = {};
  std::vector<std::int64_t> rows = {};  // of the last token in the first Engram layer: 2-grams first, a column a head
};

class Speller {
 public:
  explicit Speller(const char* folder) : model_(dsv41::runtime::ModelFolder::open(folder)) {
    const dsv41::EngramConfig& e = model_.checkpoint.config().engram;
    if (e.layers.empty()) throw dsv41::Error(dsv41::Errc::unsupported, std::string(folder) + ": has no Engram layers");
    layout_ = dsv41::numerics::engram_layout({.layer_ids = {e.layers[0]},
                                              .max_ngram = e.max_ngram,
                                              .vocab_size = e.vocab,
                                              .heads = e.heads,
                                              .compressed_vocab = e.compressed_vocab});
  }

  Spelled spell(const char* text) const {
    const dsv41::EngramConfig& e = model_.checkpoint.config().engram;
    Spelled out{.ids = model_.tokenizer->encode(text)};
    for (const std::int32_t id : out.ids) out.compressed.push_back(dsv41::text::compressed_id(model_.token_map, id));
    const auto tokens = std::ssize(out.ids);
    const std::vector<std::uint8_t> image(out.ids.size(), 0);
    const std::vector<std::int32_t> history(static_cast<std::size_t>(e.max_ngram - 1), dsv41::numerics::kEngramDead);
    const auto view = dsv41::numerics::view_of(layout_.layers[0]);
    out.rows.resize(out.ids.size() * static_cast<std::size_t>(e.columns()));
    dsv41::ops::EngramHash op{.ids = {out.ids.data(), {tokens}}, .image = {image.data(), {tokens}}};
    op.token_map = {model_.token_map.data(), {std::ssize(model_.token_map)}};
    op.layers = {&view, 1};
    op.pad = dsv41::text::compressed_id(model_.token_map, e.pad);
    op.history = {history.data(), {std::ssize(history)}};
    op.table_rows = {out.rows.data(), {1, tokens, e.columns()}};
    op.check();
    dsv41::RefBackend().run(op);
    out.rows.erase(out.rows.begin(), out.rows.end() - e.columns());
    return out;
  }

 private:
  dsv41::runtime::ModelFolder model_;
  dsv41::numerics::EngramLayout layout_;
};

void print(const char* title, const auto& values) {
  std::cout << "  " << title;
  for (const auto value : values) std::cout << ' ' << value;
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) try {
  const Speller speller(argc > 1 ? argv[1] : DSV41_DEMO_DIR);
  for (const char* text : {"And the LORD God said", "And the Lord God said", "and the lord god said",
                           "AND THE LORD GOD SAID", "And the LORD  God said", "cafe", "Caf\u00e9"}) {
    const Spelled s = speller.spell(text);
    std::cout << '"' << text << "\", normal form \"" << dsv41::text::normalized_text(text) << "\"\n";
    print("tokens    ", s.ids), print("compressed", s.compressed), print("rows      ", s.rows);
  }
  return std::cout.flush() ? 0 : 1;
} catch (const dsv41::Error& e) {
  std::cerr << "05_spelling: " << e.what() << '\n';
  return 1;
}

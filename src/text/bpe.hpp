// SPDX-License-Identifier: MIT
//
// Byte pair merging of one piece of text. Knows ids and merge ranks only; the vocabulary's strings stay with its owner.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dsv41::text {

/// A merge of two ids: the smaller rank goes first.
struct Merge {
  std::uint32_t rank = 0;
  std::int32_t id = -1;
};

/// Open-addressed map from a pair of ids to its merge. Read-only once filled.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges);

  /// A later merge of the same pair replaces the earlier one, as in the reference.
  void put(std::int32_t left, std::int32_t right, Merge merge) noexcept;

  /// nullptr when the pair does not merge.
  const Merge* find(std::int32_t left, std::int32_t right) const noexcept;

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  std::size_t slot_of(std::uint64_t key) const noexcept;
  std::vector<Slot> slots_;
  std::uint64_t mask_;
};

/// A piece that an ignore_merges model takes whole.
struct WholeWord {
  std::int32_t id = -1;
  bool added = false;
};

/// The model part of a tokenizer.
class Bpe {
 public:
  /// byte_ids: id of each single byte, or -1 where the vocabulary has none: such bytes vanish, as in the reference
  /// without an unk token. words: pieces that skip merging (ignore_merges), keyed by their bytes; may be empty.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, MergeTable merges,
      std::unordered_map<std::string_view, WholeWord> words)
      : byte_ids_(byte_ids), merges_(std::move(merges)), words_(std::move(words)) {}

  /// Symbol lists and the queue, reused from piece to piece; one per encode call.
  struct Scratch {
    struct Symbol {
      std::int32_t id, previous, next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t position, id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  /// Appends the ids of one piece.
  ///
  /// Rules:  repeatedly merges the pair of smallest rank, the leftmost among equals. `added_words`: whether an
  ///         ignore_merges model may take an added token for a whole piece.
  /// Cost:   n log n in the piece's bytes.
  void encode(std::string_view piece, bool added_words, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  void merge_all(Scratch& scratch) const;
  void enqueue(Scratch& scratch, std::int32_t position) const;

  std::array<std::int32_t, 256> byte_ids_;
  MergeTable merges_;
  std::unordered_map<std::string_view, WholeWord> words_;
};

}  // namespace dsv41::text

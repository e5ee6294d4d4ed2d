// SPDX-License-Identifier: MIT
//
// A linked list of symbols and a heap of candidate merges; stale candidates are recognised when they surface.
#include "text/bpe.hpp"

#include <algorithm>
#include <bit>

namespace dsv41::text {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // no id is negative
constexpr std::int32_t kRemoved = -1, kEnd = -1;

std::uint64_t key_of(std::int32_t left, std::int32_t right) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

/// Orders std heaps so that the smallest rank, then the leftmost position, comes out first.
constexpr auto kLater = [](const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) noexcept {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
};

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 1), Slot{kEmpty, {}}), mask_(slots_.size() - 1) {}

std::size_t MergeTable::slot_of(std::uint64_t key) const noexcept {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  std::uint64_t slot = key * kMultiplier;
  for (slot = (slot ^ slot >> 32) & mask_; slots_[slot].key != kEmpty && slots_[slot].key != key;)
    slot = (slot + 1) & mask_;
  return slot;
}

void MergeTable::put(std::int32_t left, std::int32_t right, Merge merge) noexcept {
  const std::uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, merge};
}

const Merge* MergeTable::find(std::int32_t left, std::int32_t right) const noexcept {
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kEmpty ? nullptr : &slot.merge;
}

void Bpe::encode(std::string_view piece, bool added_words, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (!words_.empty()) {
    const auto word = words_.find(piece);
    if (word != words_.end() && (added_words || !word->second.added)) {
      ids.push_back(word->second.id);
      return;
    }
  }
  scratch.symbols.clear();
  for (const char c : piece) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    const auto position = static_cast<std::int32_t>(scratch.symbols.size());
    scratch.symbols.push_back({id, position - 1, position + 1});
  }
  if (scratch.symbols.empty()) return;
  scratch.symbols.back().next = kEnd;
  if (scratch.symbols.size() > 1) merge_all(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id != kRemoved) ids.push_back(symbol.id);
  }
}

void Bpe::enqueue(Scratch& scratch, std::int32_t position) const {
  const Scratch::Symbol& left = scratch.symbols[static_cast<std::size_t>(position)];
  if (left.next == kEnd) return;
  if (const Merge* merge = merges_.find(left.id, scratch.symbols[static_cast<std::size_t>(left.next)].id)) {
    scratch.queue.push_back({merge->rank, position, merge->id});
  }
}

void Bpe::merge_all(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  const auto at = [&symbols](std::int32_t i) -> Scratch::Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto push = [&](std::int32_t position) {
    const std::size_t before = queue.size();
    enqueue(scratch, position);
    if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), kLater);
  };
  queue.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) enqueue(scratch, static_cast<std::int32_t>(i));
  std::make_heap(queue.begin(), queue.end(), kLater);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), kLater);
    const Scratch::Candidate top = queue.back();
    queue.pop_back();
    Scratch::Symbol& left = at(top.position);
    if (left.id == kRemoved || left.next == kEnd) continue;
    Scratch::Symbol& right = at(left.next);
    // Stale when the pair has changed. The reference compares results, not pairs: another pair with the same result
    // goes.
    const Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.id = kRemoved;
    if (left.next != kEnd) at(left.next).previous = top.position;
    if (left.previous >= 0) push(left.previous);
    push(top.position);
  }
}

}  // namespace dsv41::text

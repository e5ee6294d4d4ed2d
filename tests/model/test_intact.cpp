// SPDX-License-Identifier: MIT
//
// What rings and open groups still hold: State's few numbers against arrays that say whose row lies in which slot, under anything that an
// engine does to a sequence. Saying "intact" where a row is missing would be a wrong result; the opposite only costs a replay.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dsv41/model/state.hpp"
#include "model/counted_memory.hpp"
#include "support/cache_config.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Pool = CachePool<CountedMemory>;
using Sequence = State<CountedMemory>;

/// Slots by the row in them. A row is a token that was fed once: another token at the same position is another row.
class Slots {
 public:
  explicit Slots(const CacheLayout& layout) : layout_(&layout) {
    ring_.resize(static_cast<std::size_t>(layout.ring_slots), kGarbage);
    for (const BlockCarry& carry : layout.carries)
      carries_.emplace_back(static_cast<std::size_t>(carry.slots), kGarbage);
  }

  std::int64_t position() const { return std::ssize(rows_); }
  void rewind(std::int64_t position) { rows_.resize(static_cast<std::size_t>(position)); }

  void advance(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      rows_.push_back(next_++);
      put_ring(position() - 1, rows_.back());
      put_carries(position() - 1, rows_.back());
    }
  }
  /// A step that did not come to its end.
  void spoil(std::int64_t end) {
    for (std::int64_t p = position(); p < end; ++p) {
      put_ring(p, kGarbage);
      put_carries(p, kGarbage);
    }
  }
  void spoil_all() {
    std::fill(ring_.begin(), ring_.end(), kGarbage);
    for (auto& carry : carries_) std::fill(carry.begin(), carry.end(), kGarbage);
  }
  void replay(std::int64_t first) {
    spoil_all();
    for (std::int64_t p = first; p < position(); ++p) put_ring(p, row(p));
    for (std::size_t i = 0; i < carries_.size(); ++i) {
      const std::int64_t open = position() % layout_->sources[i].ratio;
      for (std::int64_t p = position() - open; p < position(); ++p) put_carry(i, p, row(p));
    }
  }

  bool holds_rows(std::int64_t first) const {
    for (std::int64_t p = first; p < position(); ++p) {
      if (ring_[static_cast<std::size_t>(p % std::ssize(ring_))] != row(p)) return false;
    }
    return true;
  }

  /// Whether a sequence that ends at `position` finds all its rows.
  bool holds(std::int64_t position, std::int64_t window) const {
    for (std::int64_t p = std::max<std::int64_t>(0, position - window + 1); p < position; ++p) {
      if (ring_[static_cast<std::size_t>(p % std::ssize(ring_))] != row(p)) return false;
    }
    for (std::size_t i = 0; i < carries_.size(); ++i) {
      const std::int64_t open = position % layout_->sources[i].ratio;
      for (std::int64_t p = position - open; p < position; ++p) {
        if (carries_[i][static_cast<std::size_t>(p % std::ssize(carries_[i]))] != row(p)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGarbage = -1;

  std::int64_t row(std::int64_t position) const { return rows_[static_cast<std::size_t>(position)]; }
  void put_ring(std::int64_t p, std::int64_t row) { ring_[static_cast<std::size_t>(p % std::ssize(ring_))] = row; }
  void put_carry(std::size_t i, std::int64_t p, std::int64_t row) {
    carries_[i][static_cast<std::size_t>(p % std::ssize(carries_[i]))] = row;
  }
  void put_carries(std::int64_t p, std::int64_t row) {
    for (std::size_t i = 0; i < carries_.size(); ++i) {
      if (!carries_[i].empty()) put_carry(i, p, row);
    }
  }

  const CacheLayout* layout_;
  std::int64_t next_ = 0;
  std::vector<std::int64_t> rows_, ring_;
  std::vector<std::vector<std::int64_t>> carries_;
};

}  // namespace

TEST_CASE("after plain steps a sequence can go back as far as its slots reach, and room + 1 positions at least") {
  for (const std::int64_t window : {2, 3, 5}) {
    for (const std::vector<std::int32_t>& ratios :
         std::vector<std::vector<std::int32_t>>{{}, {1}, {2, 1}, {3, 4}, {9}}) {
      for (const std::int64_t room : {0, 1, 2, 5, 8}) {
        CountedMemory memory;
        const ModelConfig c = cache_config(window, ratios);
        Pool pool(memory, c, room);
        Random random(static_cast<std::uint64_t>(window * 100 + room));
        Sequence state(pool, 200);
        Slots slots(pool.layout);
        while (state.position() < 150) {
          const std::int64_t count = 1 + random.below(random.below(4) == 0 ? 30 : 3);
          state.advance(count);
          slots.advance(count);
          for (std::int64_t m = 0; m <= state.position(); ++m) {
            INFO("window " << window << ", room " << room << ", at " << state.position() << ", back to " << m);
            CHECK(state.intact(m) == slots.holds(m, window));
            CHECK(state.holds_rows(m) == slots.holds_rows(m));
            if (m >= state.position() - room - 1) CHECK(state.intact(m));
          }
        }
      }
    }
  }
}

TEST_CASE("whatever is done to a sequence, it is never called intact where a row is missing") {
  std::int64_t intact = 0, missing = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    std::vector<std::int32_t> ratios;
    for (std::int64_t i = random.below(4); i > 0; --i) ratios.push_back(1 + static_cast<std::int32_t>(random.below(6)));
    const ModelConfig c = cache_config(1 + random.below(6), ratios);
    const std::int64_t room = random.below(6);
    CountedMemory memory;
    Pool pool(memory, c, room);
    Sequence state(pool, 400);
    Slots slots(pool.layout);
    for (int step = 0; step < 120; ++step) {
      const std::int64_t position = state.position(), what = random.below(12);
      if (position < 300 && what < 6) {
        const std::int64_t count = 1 + random.below(what == 0 ? 40 : 4);
        state.advance(count);
        slots.advance(count);
      } else if (what < 8) {
        const std::int64_t to =
            std::max<std::int64_t>(0, position - random.below(random.below(3) == 0 ? 60 : room + 3));
        state.rewind(to);
        slots.rewind(to);
      } else if (what == 8) {
        const std::int64_t end = position + 1 + random.below(20);
        state.overwrote(end);
        slots.spoil(end);
        state.rewind(position);
      } else if (what == 9) {
        state.spoiled();
        slots.spoil_all();
        state.rewind(position);
      } else if (what == 10) {
        const std::int64_t first = std::max<std::int64_t>(0, position - c.window + 1 - random.below(2 * room + 2));
        state.replayed(first);
        slots.replay(first);
      } else {
        Sequence fork = state.fork();
        state = std::move(fork);
      }
      REQUIRE(state.position() == slots.position());
      for (std::int64_t m = 0; m <= state.position(); ++m) {
        const bool said = state.intact(m), is = slots.holds(m, c.window);
        intact += said, missing += !is;
        if (state.holds_rows(m) && !slots.holds_rows(m))
          FAIL("seed " << seed << ", step " << step << ": rows from " << m);
        if (said && !is) FAIL("seed " << seed << ", step " << step << ": at " << state.position() << ", back to " << m);
      }
      if (what == 10) CHECK(state.intact(state.position()));
    }
  }
  CHECK(intact > 10000);
  CHECK(missing > 10000);
}

// SPDX-License-Identifier: MIT
//
// Who is in memory, who goes, and the threads that read. A slot is chosen before a read begins; no expert that is pinned or being read
// loses its own.
#include "expert_cache.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <system_error>

#include "dsv41/core/error.hpp"

namespace dsv41::runtime {

namespace {

constexpr double kCold = -std::numeric_limits<double>::infinity();
constexpr std::int32_t kElsewhere = -1, kGiven = -2;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

files::Digest digest_of(const ExpertWeights& e) {
  files::Sha256 sum;
  for (const Matrix* m : {&e.w1, &e.w2, &e.w3}) {
    sum.update({m->data, static_cast<std::size_t>(m->rows * m->row_bytes())});
    sum.update(
        {reinterpret_cast<const std::byte*>(m->scales), static_cast<std::size_t>(m->scale_rows() * m->scale_cols())});
  }
  return sum.digest();
}

}  // namespace

ExpertCache::ExpertCache(ExpertFiles experts, const ExpertLists& lists, std::int64_t slots, bool checked)
    : files_(std::move(experts)),
      slot_bytes_(static_cast<std::int64_t>(files_.slot_bytes())),
      checked_(checked),
      experts_(static_cast<std::size_t>(files_.size())),
      slots_(static_cast<std::size_t>(slots)) {
  const std::size_t bytes = slots_.size() * files_.slot_bytes();
  memory_.reset(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{files::DirectFile::kBlock}, std::nothrow)));
  if (!memory_)
    throw Error(Errc::out_of_memory, "engine: cannot allocate " + std::to_string(bytes) + " bytes for experts");
  std::int32_t first = 0;
  std::size_t most = 1;  // a shared expert comes with a layer's own
  for (const std::span<const ExpertWeights> list : lists) {
    const auto count = static_cast<std::int32_t>(list.size()), layer = static_cast<std::int32_t>(layers_.size());
    layers_.push_back({list.data(), first, count});
    for (std::int32_t e = first; e < first + count; ++e) at(e).layer = layer, at(e).heat = kCold;
    first += count;
    most = std::max(most, list.size() + 1);
  }
  for (std::vector<std::int32_t>* v : {&wanted_, &queue_, &ahead_, &likely_, &numbers_, &given_}) v->reserve(most);
  queue_.reserve(experts_.size());
  ahead_.reserve(experts_.size());
  resident_.reserve(most);
  digests_.resize(checked ? experts_.size() : 0);
  digested_.resize(digests_.size());
  counts_.slots = slots;
  counts_.slot_bytes = slot_bytes_;
  counts_.experts = files_.size();
  try {
    for (int i = 0; i < kReaders; ++i) readers_.emplace_back([this] { serve(); });
  } catch (const std::system_error& e) {
    stop();
    throw Error(Errc::out_of_memory,
                std::string("engine: the system gives no thread to read experts with: ") + e.what());
  }
}

ExpertCache::~ExpertCache() {
  stop();
}

void ExpertCache::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  for (std::thread& t : readers_) t.join();
}

/// An expert's number, or kElsewhere.
std::int32_t ExpertCache::number(const ExpertWeights* views) const noexcept {
  for (const Layer& l : layers_) {
    if (!std::less<>()(views, l.first) && std::less<>()(views, l.first + l.count))
      return l.expert + static_cast<std::int32_t>(views - l.first);
  }
  return kElsewhere;
}

void ExpertCache::begin(std::span<const ExpertWeights* const> experts) noexcept {
  const std::lock_guard lock(mutex_);
  request_ = experts;
  numbers_.clear();
  failed_ = false;
  ++ops_;
  std::int32_t layer = -1;
  std::size_t kept = 0;
  for (const ExpertWeights* views : experts) {
    const std::int32_t n = number(views);
    numbers_.push_back(n);
    if (n == kElsewhere) continue;
    Expert& e = at(n);
    layer = e.layer;
    ++kept;
    warm(e);
    e.pinned = true;
    if (e.state == State::absent) {
      e.state = State::wanted;
      wanted_.push_back(n);
    }
    if (e.state == State::queued && e.ahead) {  // not ahead any more
      e.ahead = false;
      std::erase(ahead_, n);
      queue_.push_back(n);
      work_.notify_one();
    }
    if (e.ahead) judge(e, true);
    ++(e.state == State::resident || e.state == State::reading ? counts_.hits : counts_.misses);
  }
  assign();
  if (reads_ahead_ && layer >= 0) read_ahead((layer + 1) % static_cast<std::int32_t>(layers_.size()), kept);
}

std::span<const ExpertTier::Resident> ExpertCache::take() noexcept {
  std::unique_lock lock(mutex_);
  unpin_given();
  assign();
  resident_.clear();
  double waited = 0;
  while (!failed_) {
    // Half of the slots at most while others are to come: these are read into the other half meanwhile.
    const bool more = !wanted_.empty() || !queue_.empty();
    const std::size_t most = more ? std::max<std::size_t>(1, slots_.size() / 2) : slots_.size();
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const std::int32_t n = numbers_[i];
      const ExpertWeights* weights = request_[i];
      if (n == kGiven) continue;
      if (n != kElsewhere) {
        if (at(n).state != State::resident || given_.size() == most) continue;
        if (!is_sound(n)) break;
        weights = &slots_[static_cast<std::size_t>(at(n).slot)].weights;
        given_.push_back(n);
      }
      numbers_[i] = kGiven;
      resident_.push_back({.index = static_cast<std::int64_t>(i), .weights = weights});
    }
    if (failed_ || !resident_.empty()) break;
    const double start = seconds();
    done_.wait(lock);
    waited += seconds() - start;
  }
  counts_.stall_seconds += waited;
  if (failed_) resident_.clear();
  return resident_;
}

void ExpertCache::end() noexcept {
  const std::lock_guard lock(mutex_);
  unpin_given();
  for (const std::int32_t n : wanted_) at(n).state = State::absent;
  wanted_.clear();
  for (const std::int32_t n : numbers_) {
    if (n >= 0) at(n).pinned = false;
  }
  numbers_.clear();
}

void ExpertCache::unpin_given() noexcept {
  for (const std::int32_t n : given_) at(n).pinned = false;
  given_.clear();
}

/// One more use, now.
void ExpertCache::warm(Expert& e) noexcept {
  e.heat = now() + std::log2(1.0 + std::exp2(e.heat - now()));
}

/// The slot to be had: an empty one, or else that of the coldest expert that nobody holds and that is not of `spared_layer`; -1: none.
std::int32_t ExpertCache::coldest(std::int32_t spared_layer) const noexcept {
  std::int32_t best = -1;
  double heat = 0;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const std::int32_t n = slots_[s].expert;
    if (n < 0) return static_cast<std::int32_t>(s);
    const Expert& e = experts_[static_cast<std::size_t>(n)];
    if (e.pinned || e.state != State::resident || e.layer == spared_layer) continue;
    if (best < 0 || e.heat < heat) best = static_cast<std::int32_t>(s), heat = e.heat;
  }
  return best;
}

void ExpertCache::vacate(std::int32_t slot) noexcept {
  const std::int32_t n = std::exchange(slots_[static_cast<std::size_t>(slot)].expert, -1);
  if (n < 0) return;
  if (at(n).ahead) judge(at(n), false);
  at(n).state = State::absent;
  at(n).slot = -1;
}

void ExpertCache::queue(std::int32_t expert, std::int32_t slot, bool ahead) noexcept {
  vacate(slot);
  slots_[static_cast<std::size_t>(slot)].expert = expert;
  Expert& e = at(expert);
  e.slot = slot;
  e.state = State::queued;
  e.ahead = ahead;
  (ahead ? ahead_ : queue_).push_back(expert);
}

/// Slots for what the op wants, as far as there are any. What waits to be read ahead makes room too.
void ExpertCache::assign() noexcept {
  std::size_t done = 0;
  for (; done < wanted_.size(); ++done) {
    std::int32_t slot = coldest(-1);
    if (slot < 0 && !ahead_.empty()) {
      slot = at(ahead_.back()).slot;
      at(ahead_.back()).ahead = false;
      ahead_.pop_back();
    }
    if (slot < 0) break;
    queue(wanted_[done], slot, false);
  }
  wanted_.erase(wanted_.begin(), wanted_.begin() + static_cast<std::ptrdiff_t>(done));
  if (done > 0) work_.notify_all();
}

/// Queues up to `most` of a layer's hottest experts that are not there, while they are hotter than what makes room. An eighth of the slots
/// at most.
void ExpertCache::read_ahead(std::int32_t layer, std::size_t most) noexcept {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  most = std::min(most, slots_.size() / 8);
  likely_.clear();
  for (std::int32_t n = l.expert; n < l.expert + l.count; ++n) {
    if (at(n).state == State::absent && at(n).heat > kCold) likely_.push_back(n);
  }
  most = std::min(most, likely_.size());
  std::partial_sort(likely_.begin(), likely_.begin() + static_cast<std::ptrdiff_t>(most), likely_.end(),
                    [&](std::int32_t a, std::int32_t b) { return at(a).heat > at(b).heat; });
  for (std::size_t i = 0; i < most && ahead_.size() < most; ++i) {
    const std::int32_t slot = coldest(layer);
    if (slot < 0) break;
    const std::int32_t out = slots_[static_cast<std::size_t>(slot)].expert;
    if (out >= 0 && at(out).heat >= at(likely_[i]).heat) break;
    queue(likely_[i], slot, true);
  }
  if (!ahead_.empty()) work_.notify_all();
}

/// What became of a read ahead.
void ExpertCache::judge(Expert& e, bool used) noexcept {
  e.ahead = false;
  ++judged_;
  if (used) ++useful_, counts_.ahead_used_bytes += files_.bytes(static_cast<std::int32_t>(&e - experts_.data()));
  if (judged_ < kJudged) return;
  if (2 * useful_ < judged_) reads_ahead_ = false;
  judged_ = useful_ = 0;
}

/// Whether a resident expert is what is mapped, where that is checked.
bool ExpertCache::is_sound(std::int32_t expert) noexcept {
  if (!checked_) return true;
  const auto i = static_cast<std::size_t>(expert);
  if (!digested_[i]) digests_[i] = digest_of(files_.mapped(expert));
  digested_[i] = true;
  if (digest_of(slots_[static_cast<std::size_t>(at(expert).slot)].weights) == digests_[i]) return true;
  if (changed_ < 0) changed_ = expert;
  failed_ = true;
  return false;
}

void ExpertCache::sync() {
  const std::lock_guard lock(mutex_);
  const ExpertFiles::Failure failure = std::exchange(failure_, {});
  const std::int32_t changed = std::exchange(changed_, -1);
  if (failure) throw Error(Errc::io, files_.text(failure));
  if (changed >= 0) {
    throw Error(Errc::internal, files_.name(changed) + ": the expert's bytes in memory are not those of its file");
  }
}

void ExpertCache::serve() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ending_ || !queue_.empty() || !ahead_.empty(); });
    if (ending_) return;
    std::vector<std::int32_t>& from = queue_.empty() ? ahead_ : queue_;
    const std::int32_t n = from.front();
    from.erase(from.begin());
    at(n).state = State::reading;
    (at(n).ahead ? counts_.ahead_bytes : counts_.bytes_read) += files_.bytes(n);
    std::byte* const slot = memory_.get() + at(n).slot * slot_bytes_;
    lock.unlock();
    const ExpertFiles::Failure failure = files_.read(n, slot);
    lock.lock();
    finish(n, failure);
  }
}

void ExpertCache::finish(std::int32_t expert, const ExpertFiles::Failure& failure) noexcept {
  Expert& e = at(expert);
  if (!failure) {
    e.state = State::resident;
    slots_[static_cast<std::size_t>(e.slot)].weights = files_.in_slot(expert, memory_.get() + e.slot * slot_bytes_);
  } else {
    vacate(e.slot);
    if (e.pinned) {  // of others nobody asks yet, and when somebody does, they are read again
      if (!failure_) failure_ = failure;
      failed_ = true;
    }
  }
  assign();
  done_.notify_all();
}

void ExpertCache::report(WeightTier& out) const noexcept {
  const std::lock_guard lock(mutex_);
  out.slots = counts_.slots, out.slot_bytes = counts_.slot_bytes, out.experts = counts_.experts;
  out.hits = counts_.hits, out.misses = counts_.misses, out.stall_seconds = counts_.stall_seconds;
  out.bytes_read = counts_.bytes_read, out.ahead_bytes = counts_.ahead_bytes;
  out.ahead_used_bytes = counts_.ahead_used_bytes;
  out.reads_ahead = reads_ahead_;
  out.direct = files_.is_direct();
}

}  // namespace dsv41::runtime

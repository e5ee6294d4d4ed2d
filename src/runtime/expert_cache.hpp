// SPDX-License-Identifier: MIT
//
// ExpertCache: as many experts of a model in memory as a budget holds; the others wait in their files. Private to src/runtime.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "dsv41/backend/cpu.hpp"
#include "dsv41/runtime/engine.hpp"
#include "expert_files.hpp"
#include "files/sha256.hpp"

namespace dsv41::runtime {

/// Slots of one size, allocated once, each for one expert. An op's experts are read by threads of the cache, past the page cache, while the
/// op computes with those that are there.
///
/// Policy:  the coldest expert makes room. An expert is the hotter the more of its layer's last steps used it; each counts half as much as
///          one kHalfLife steps later. Share of hits with slots for 10, 25, 33, 50 and 75 % of all experts, one token a step, on traces of
///          the demo (1,500 tokens of held-out text; 6 layers of 16, top 3) and of a random model (200 tokens, sampled; 12 of 64, top 6):
///            least recently used   0.00 0.28 0.41 0.58 0.83    0.14 0.34 0.42 0.62 0.84
///            half-life 4           0.13 0.36 0.45 0.62 0.85    0.15 0.35 0.46 0.64 0.85
///            half-life 16          0.15 0.39 0.49 0.66 0.87    0.20 0.42 0.52 0.69 0.86
///            half-life 64 (here)   0.16 0.40 0.50 0.67 0.87    0.21 0.44 0.54 0.71 0.87
///            half-life 256         0.15 0.39 0.50 0.67 0.87    0.21 0.44 0.54 0.71 0.87
///            knowing the future    0.29 0.60 0.69 0.83 0.94    0.41 0.65 0.73 0.84 0.92
///          To count in how many layers come before an expert's next turn brought half a point at most, and is left out.
/// Ahead:   when an op begins, the next layer's hottest experts are read behind its own, as far as they are hotter than what they push
///          out. On those traces one in five (demo) and one in seven of such reads was used before it had to go again; of reads of all that
///          the last token used there, one in four and one in nine. A read in vain delays others, so reading ahead ends for good when
///          fewer than half of kJudged reads were of use.
/// Rules:   what is given is what is in the files: bytes are taken by offset from the very files that the model was opened from. A read
///          that fails gives nothing. Checked: an expert's SHA-256 is taken of its mapped bytes, and compared each time before it is given.
class ExpertCache final : public ExpertTier {
 public:
  /// `lists` are those of `experts`; `slots` is at least 1. Errors: out_of_memory.
  ExpertCache(ExpertFiles experts, const ExpertLists& lists, std::int64_t slots, bool checked);
  ~ExpertCache() override;

  void begin(std::span<const ExpertWeights* const> experts) noexcept override;
  std::span<const Resident> take() noexcept override;
  void end() noexcept override;
  void sync() override;  ///< Errors: io, with file and tensor; internal, when a checked expert is not what it was

  /// What slots there are and what they were used for; the rest of WeightTier is left alone.
  void report(WeightTier& out) const noexcept;

 private:
  static constexpr double kHalfLife = 64;
  static constexpr std::int64_t kJudged = 64;
  static constexpr int kReaders = 2;

  enum class State : std::uint8_t { absent, wanted, queued, reading, resident };  // all but the first two have a slot

  struct Expert {
    std::int32_t layer = 0, slot = -1;
    State state = State::absent;
    bool pinned = false;  // the op under way has not done with it
    bool ahead = false;   // read ahead, and not used since
    double heat = 0;      // log2 of its uses, each weighted as seen from op 0
  };
  struct Slot {
    std::int32_t expert = -1;
    ExpertWeights weights;
  };
  struct Layer {
    const ExpertWeights* first = nullptr;
    std::int32_t expert = 0, count = 0;
  };
  struct AlignedDelete {
    void operator()(std::byte* p) const noexcept { ::operator delete (p, std::align_val_t{files::DirectFile::kBlock}); }
  };

  Expert& at(std::int32_t expert) noexcept { return experts_[static_cast<std::size_t>(expert)]; }
  std::int32_t number(const ExpertWeights* views) const noexcept;
  double now() const noexcept { return static_cast<double>(ops_) / (kHalfLife * static_cast<double>(layers_.size())); }
  void warm(Expert& e) noexcept;
  std::int32_t coldest(std::int32_t spared_layer) const noexcept;
  void vacate(std::int32_t slot) noexcept;
  void queue(std::int32_t expert, std::int32_t slot, bool ahead) noexcept;
  void assign() noexcept;
  void read_ahead(std::int32_t layer, std::size_t most) noexcept;
  void judge(Expert& e, bool used) noexcept;
  void unpin_given() noexcept;
  bool is_sound(std::int32_t expert) noexcept;
  void finish(std::int32_t expert, const ExpertFiles::Failure& failure) noexcept;
  void serve() noexcept;
  void stop() noexcept;

  const ExpertFiles files_;
  std::vector<Layer> layers_;
  const std::int64_t slot_bytes_;
  const bool checked_;
  std::unique_ptr<std::byte, AlignedDelete> memory_;

  mutable std::mutex mutex_;  // of everything below
  std::condition_variable work_, done_;
  std::vector<Expert> experts_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> wanted_;         // by the op under way, without a slot
  std::vector<std::int32_t> queue_, ahead_;  // with one, to be read: for the op, and for later ones
  std::vector<std::int32_t> likely_;
  std::int64_t ops_ = 0;

  std::span<const ExpertWeights* const> request_;  // of the op under way
  std::vector<std::int32_t> numbers_;              // of its experts; -1: kept elsewhere; kGiven
  std::vector<std::int32_t> given_;                // by the last take()
  std::vector<Resident> resident_;
  std::vector<files::Digest> digests_;  // checked: of each expert
  std::vector<bool> digested_;

  ExpertFiles::Failure failure_;  // the first one since sync()
  std::int32_t changed_ = -1;     // an expert that is not what it was
  bool failed_ = false;           // the op under way cannot go on
  bool ending_ = false, reads_ahead_ = true;
  std::int64_t judged_ = 0, useful_ = 0;  // reads ahead
  WeightTier counts_;
  std::vector<std::thread> readers_;
};

}  // namespace dsv41::runtime

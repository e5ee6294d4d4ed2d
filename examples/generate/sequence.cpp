// SPDX-License-Identifier: MIT
//
// Prefill, then one token at a time. A prompt is one call, for prefill modes that skip rows; with a recorder, which needs the logits of
// every row, it is one call a step.
#include "sequence.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/files.hpp"
#include "files.hpp"
#include "numbers.hpp"

namespace generate {

using dsv41::runtime::Feed;
using dsv41::runtime::kAllRows;
using dsv41::runtime::StepControl;

namespace {

/// Ids to choose from: the first ones of the vocabulary, for tokenizers number without holes.
std::int64_t choices(const dsv41::runtime::ModelFolder& folder, const Options& options) {
  return writes_text(folder, options) ? folder.tokenizer->vocab_size() : folder.checkpoint.config().vocab;
}

/// Shows how far a prompt of `count` tokens is, of which `before` are through already.
class ShownPrefill final : public dsv41::runtime::StepListener {
 public:
  ShownPrefill(Progress& progress, std::int64_t before, std::int64_t count)
      : progress_(progress), before_(before), count_(count) {
    step_done(0);
  }
  void step_done(std::int64_t tokens) override { progress_.count("prefill: token", before_ + tokens, count_); }

 private:
  Progress& progress_;
  std::int64_t before_, count_;
};

/// Runs `work`, which the cancel token may end. Returns whether it came to its own end.
template <class F>
bool until_interrupted(F&& work) {
  try {
    work();
    return true;
  } catch (const dsv41::Error& e) {
    if (e.code() != dsv41::Errc::cancelled) throw;
    return false;
  }
}

}  // namespace

bool writes_text(const dsv41::runtime::ModelFolder& folder, const Options& options) {
  return folder.tokenizer && !options.tokens;
}

Sequence::Sequence(const dsv41::runtime::ModelFolder& folder, const Options& options, Recorder* recorder,
                   Progress& progress, const dsv41::CancelToken& cancel)
    : sampler_(options.sampler, choices(folder, options)),
      engine_(folder, {.backend = options.backend,
                       .numeric = options.numeric,
                       .max_context = folder.checkpoint.config().max_positions,
                       .max_rows = options.chunk,
                       .prefill = options.prefill}),
      session_(engine_.open_session()),
      recorder_(recorder),
      progress_(progress),
      cancel_(cancel),
      feeds_last_(recorder != nullptr || options.save) {
  figures_.numeric_class = engine_.numeric_class();
  figures_.prefill = dsv41::prefill_name(engine_.prefill());
  figures_.prefill_note = engine_.prefill_note();
  figures_.rows_per_layer.resize(static_cast<std::size_t>(engine_.config().layers));
}

void Sequence::restore(const std::string& path) {
  read_pieces("--restore", path, [&](const dsv41::runtime::ReadBytes& read) { session_.restore(read); });
  figures_.restored_tokens = session_.position();
}

void Sequence::prefill(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image) {
  const std::int64_t count = std::ssize(ids), most = engine_.config().max_positions;
  if (count > most) {
    refuse("prompt: has " + std::to_string(count) +
           " tokens, expected at most max_position_embeddings = " + std::to_string(most));
  }
  const auto held = session_.tokens();
  const std::int64_t common = std::mismatch(held.begin(), held.end(), ids.begin(), ids.end()).first - held.begin();
  const double start = now();
  const std::int64_t reused_before = figures_.reused_tokens;
  if (!until_interrupted([&] { sync(ids, image, std::min(common, count - 1)); })) count_rows();
  progress_.clear();
  figures_.prompt_tokens += session_.position() - (figures_.reused_tokens - reused_before);
  figures_.prefill_s += figures_.first_token_s = now() - start;
}

/// `held`: tokens of it that the session holds, to judge by the ids alone.
void Sequence::sync(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image, std::int64_t held) {
  const std::int64_t count = std::ssize(ids);
  const std::int64_t piece = recorder_ != nullptr ? engine_.options().max_rows : count;
  const auto part = [&](std::int64_t first, std::int64_t end) {
    const auto from = static_cast<std::size_t>(first), n = static_cast<std::size_t>(end - first);
    return Feed{.ids = ids.subspan(from, n), .image = image.empty() ? image : image.subspan(from, n)};
  };
  std::int64_t end = std::min(count, held + piece);
  {
    Feed beginning = part(0, end);
    if (recorder_ != nullptr) beginning.logit_rows = end - held;
    ShownPrefill shown(progress_, held, count);
    const auto report = session_.sync_to(beginning, {.cancel = &cancel_, .listener = &shown});
    figures_.reused_tokens += report.reused;
    figures_.recomputed_tokens += report.recomputed;
    count_rows();
    if (recorder_ != nullptr && report.fed > end - held) {  // ids are equal further than image marks
      figures_.recomputed_tokens += report.fed;
      session_.rewind(end = report.reused);
    } else {
      take_logits();
    }
  }
  while (end < count) {
    const std::int64_t first = end;
    end = std::min(count, first + piece);
    Feed next = part(first, end);
    next.logit_rows = kAllRows;
    ShownPrefill shown(progress_, first, count);
    session_.append(next, {.cancel = &cancel_, .listener = &shown});
    count_rows();
    take_logits();
  }
}

void Sequence::resume(std::int64_t dropped) {
  if (session_.position() == 0) refuse("--restore: the saved session has no tokens, expected at least one or a prompt");
  rewind(dropped);
  figures_.reused_tokens = session_.position();
}

void Sequence::rewind(std::int64_t dropped) {
  if (interrupted()) return;
  const std::int64_t position = session_.position();
  if (dropped >= position) {
    refuse("--rewind: drops " + std::to_string(dropped) + " tokens, expected fewer than the " +
           std::to_string(position) + " there are");
  }
  const double start = now();
  session_.rewind(position - dropped);
  if (recorder_ != nullptr) recorder_->drop(dropped + 1);
  until_interrupted([&] {
    session_.rerun_last({.cancel = &cancel_});
    take_logits();
  });
  figures_.recomputed_tokens += session_.replayed_rows();
  const double took = now() - start;
  figures_.prefill_s += took;
  figures_.first_token_s += took;
}

void Sequence::decode(std::int64_t new_tokens, const std::function<void(std::int32_t)>& sink) {
  const std::int64_t room = engine_.config().max_positions - session_.position(), limit = std::min(new_tokens, room);
  figures_.stop = new_tokens == 0 ? "prompt" : room < new_tokens ? "context" : "length";
  const double start = now();
  double first = start, last = start;
  std::optional<std::int32_t> unfed;
  const auto feed_last = [&](const StepControl& control) {
    session_.append({.ids = {&*unfed, 1}}, control);
    unfed.reset();
    take_logits();
  };
  until_interrupted([&] {
    for (std::int64_t made = 0; made < limit && !interrupted(); ++made) {
      if (unfed) feed_last({.cancel = &cancel_});
      const auto logits = session_.logits();
      const dsv41::In<float, 1> choice(logits.row(logits.extent(0) - 1).data(), {sampler_.vocab()});
      const std::int32_t id = sampler_.sample(choice, session_.position());
      last = now();
      if (made == 0) {
        first = last;
        ++figures_.replies;
      }
      ++figures_.generated_tokens;
      unfed = id;
      sink(id);
      if (id == engine_.config().eos) {
        figures_.stop = "eos";
        break;
      }
    }
  });
  if (unfed && feeds_last_) feed_last({});
  if (interrupted()) figures_.stop = "interrupted";
  figures_.first_token_s += first - start;
  figures_.decode_s += last - first;
}

void Sequence::save(const std::string& path) const {
  naming("--save", [&] {
    dsv41::runtime::write_file_atomically(path, [&](const dsv41::runtime::WriteBytes& write) { session_.save(write); });
  });
}

Figures Sequence::figures() const {
  Figures out = figures_;
  out.positions = session_.position();
  out.memory = session_.memory();
  return out;
}

/// Checks the last call's logits, and records them.
void Sequence::take_logits() {
  const auto logits = session_.logits();
  const std::int64_t rows = logits.extent(0), before = session_.position() - rows;
  for (std::int64_t row = 0; row < rows; ++row) dsv41::runtime::check_logits(logits.row(row), before + row);
  if (recorder_ != nullptr) recorder_->add(session_.tokens().last(static_cast<std::size_t>(rows)), logits);
}

void Sequence::count_rows() {
  const auto rows = session_.rows_per_layer();
  for (std::size_t l = 0; l < rows.size(); ++l) figures_.rows_per_layer[l] += rows[l];
}

}  // namespace generate

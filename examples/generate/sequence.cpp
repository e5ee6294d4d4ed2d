// SPDX-License-Identifier: MIT
//
// Prefill, then one token at a time. A prompt is one call, for prefill modes that skip rows; with a recorder, which needs the logits of
// every row, it is one call a step.
#include "sequence.hpp"

#include <algorithm>
#include <string>

#include "numbers.hpp"

namespace generate {

using dsv41::runtime::LogitRows;

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

}  // namespace

bool writes_text(const dsv41::runtime::ModelFolder& folder, const Options& options) {
  return folder.tokenizer && !options.tokens;
}

Sequence::Sequence(const dsv41::runtime::ModelFolder& folder, const Options& options, Recorder* recorder,
                   Progress& progress)
    : folder_(folder),
      engine_options_{.backend = options.backend,
                      .numeric = options.numeric,
                      .max_context = 0,
                      .max_rows = options.chunk,
                      .prefill = options.prefill},
      sampler_(options.sampler, choices(folder, options)),
      recorder_(recorder),
      progress_(progress) {
  figures_.numeric_class = dsv41::numeric_name(options.numeric);
  figures_.prefill = dsv41::prefill_name(options.prefill);
  figures_.rows_per_layer.resize(static_cast<std::size_t>(folder.checkpoint.config().layers));
}

/// Sessions allocate their caches up front, so a longer sequence is a new engine; doubling keeps conversations cheap.
void Sequence::reserve(std::int64_t positions) {
  if (engine_ && positions <= engine_options_.max_context) return;
  const std::int64_t most = folder_.checkpoint.config().max_positions;
  engine_options_.max_context = std::min(most, std::max(positions, 2 * engine_options_.max_context));
  const double start = now();
  session_.reset();
  engine_.emplace(folder_, engine_options_);
  session_.emplace(engine_->open_session());
  fed_.clear();
  figures_.numeric_class = engine_->numeric_class();
  figures_.prefill = dsv41::prefill_name(engine_->prefill());
  figures_.prefill_note = engine_->prefill_note();
  figures_.load_s += now() - start;
}

void Sequence::prefill(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image,
                       std::int64_t new_tokens) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t most = folder_.checkpoint.config().max_positions;
  if (count > most) {
    refuse("prompt: has " + std::to_string(count) +
           " tokens, expected at most max_position_embeddings = " + std::to_string(most));
  }
  reserve(count + std::min(new_tokens, most - count));

  // What is fed cannot be taken back, and the last token must be fed now: its logits are the answer.
  const bool extends = fed_.size() < ids.size() && std::equal(fed_.begin(), fed_.end(), ids.begin());
  if (!extends) {
    session_->reset();
    fed_.clear();
  }
  const std::size_t old = fed_.size();
  const double start = now();
  const std::size_t piece = recorder_ != nullptr ? static_cast<std::size_t>(engine_options_.max_rows) : ids.size();
  for (std::size_t first = old; first < ids.size(); first += piece) {
    const std::size_t n = std::min(piece, ids.size() - first);
    ShownPrefill shown(progress_, static_cast<std::int64_t>(first), count);
    feed(ids.subspan(first, n), image.empty() ? image : image.subspan(first, n), &shown);
    const auto rows = session_->rows_per_layer();
    for (std::size_t l = 0; l < rows.size(); ++l) figures_.rows_per_layer[l] += rows[l];
  }
  progress_.clear();
  figures_.prefill_s += figures_.first_token_s = now() - start;
  figures_.prompt_tokens += count - static_cast<std::int64_t>(old);
  figures_.positions = session_->position();
}

void Sequence::decode(std::int64_t new_tokens, const std::function<void(std::int32_t)>& sink) {
  const dsv41::ModelConfig& config = folder_.checkpoint.config();
  const std::int64_t room = config.max_positions - session_->position(), limit = std::min(new_tokens, room);
  figures_.stop = new_tokens == 0 ? "prompt" : room < new_tokens ? "context" : "length";
  const double start = now();
  double first = start, last = start;
  for (std::int64_t made = 0; made < limit; ++made) {
    const auto logits = session_->logits();
    const dsv41::In<float, 1> choice(logits.row(logits.extent(0) - 1).data(), {sampler_.vocab()});
    const std::int32_t id = sampler_.sample(choice, session_->position());
    last = now();
    if (made == 0) {
      first = last;
      ++figures_.replies;
    }
    ++figures_.generated_tokens;
    sink(id);
    const bool ends = id == config.eos;
    if (recorder_ != nullptr || !(ends || made + 1 == limit)) feed({&id, 1}, {});
    if (ends) {
      figures_.stop = "eos";
      break;
    }
  }
  figures_.first_token_s += first - start;
  figures_.decode_s += last - first;
  figures_.positions = session_->position();
}

void Sequence::feed(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image,
                    dsv41::runtime::StepListener* listener) {
  session_->append(ids, recorder_ != nullptr ? LogitRows::all : LogitRows::last, image, {}, listener);
  fed_.insert(fed_.end(), ids.begin(), ids.end());
  const auto logits = session_->logits();
  const std::int64_t rows = logits.extent(0), before = session_->position() - rows;
  for (std::int64_t row = 0; row < rows; ++row) dsv41::runtime::check_logits(logits.row(row), before + row);
  if (recorder_ != nullptr) recorder_->add(ids, logits);
}

}  // namespace generate

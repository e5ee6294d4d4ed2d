// SPDX-License-Identifier: MIT
//
// Prefill, then steps of the generator. A prompt is one call, for prefill modes that skip rows; with a recorder, which needs the logits of
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

using dsv41::runtime::Emission;
using dsv41::runtime::Feed;
using dsv41::runtime::Finish;
using dsv41::runtime::kAllRows;
using dsv41::runtime::Session;

namespace {

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

std::string_view stop_name(Finish finish) {
  switch (finish) {
    case Finish::stop: return "eos";
    case Finish::length: return "length";
    default: return "context";
  }
}

}  // namespace

bool writes_text(const dsv41::runtime::ModelFolder& folder, const Options& options) {
  return folder.tokenizer && !options.tokens;
}

std::int64_t choices(const dsv41::runtime::ModelFolder& folder, const Options& options) {
  return writes_text(folder, options) ? folder.tokenizer->vocab_size() : folder.checkpoint.config().vocab;
}

Sequence::Sequence(dsv41::runtime::Engine& engine, const Options& options, Speculation& speculation, Recorder* recorder,
                   Progress& progress, const dsv41::CancelToken& cancel)
    : engine_(engine),
      options_(options),
      speculation_(speculation),
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

/// One request from its first token to its last, or to an interruption; gives its session back.
template <class Take>
Session Sequence::decode_by(Decoding& decoding, Session&& session, const Take& take) {
  const std::int64_t id = decoding.add(std::move(session), request_options(options_, engine_.config()));
  until_interrupted([&] {
    for (Finish finish = Finish::none; finish == Finish::none && !interrupted();) {
      for (const Emission& emission : decoding.step()) {
        finish = emission.finish;
        if (finish == Finish::failed) refuse(std::string(emission.error));
        take(emission, decoding.session(id));
      }
    }
  });
  return decoding.remove(id);
}

void Sequence::decode(const std::function<void(std::int32_t)>& sink) {
  const std::int64_t room = engine_.config().max_positions - session_.position();
  figures_.stop = options_.max_tokens == 0 ? "prompt" : "context";
  // A later turn of a conversation may have more room.
  const std::int64_t most = options_.converses() ? options_.max_tokens : std::min(options_.max_tokens, room);
  if (room > 0 && !interrupted()) until_interrupted([&] { speculation_.prepare(most); });
  progress_.clear();
  bool whole = false;
  const double start = now();
  double first = start, last = start;
  if (options_.max_tokens > 0 && room > 0 && !interrupted()) {
    std::vector<std::int32_t> ids;
    std::optional<Session> twin;
    if (speculation_.plain() != nullptr) twin = session_.fork();
    const auto take = [&](const Emission& emission, const Session& session) {
      if (recorder_ != nullptr && speculation_.decoding().ran_rows()) record(session);
      last = now();
      if (ids.empty()) first = last;
      figures_.generated_tokens += std::ssize(emission.tokens);
      if (emission.finish != Finish::none) {
        figures_.stop = stop_name(emission.finish);
        whole = true;
      }
      for (const std::int32_t id : emission.tokens) {
        ids.push_back(id);
        sink(id);
      }
    };
    session_ = decode_by(speculation_.decoding(), std::move(session_), take);
    figures_.replies += ids.empty() ? 0 : 1;
    if (!ids.empty() && feeds_last_) {
      session_.append({.ids = {&ids.back(), 1}});
      take_logits();
    }
    if (twin && !interrupted()) decode_plainly(std::move(*twin), ids);
    if (interrupted()) speculation_.cut_comparison();
  }
  if (interrupted() && !whole) figures_.stop = "interrupted";
  figures_.first_token_s += first - start;
  figures_.decode_s += last - first;
}

void Sequence::decode_plainly(Session&& session, std::span<const std::int32_t> ids) {
  progress_.show("comparing with plain decoding");
  std::vector<std::int32_t> plain;
  decode_by(*speculation_.plain(), std::move(session), [&](const Emission& emission, const Session&) {
    plain.insert(plain.end(), emission.tokens.begin(), emission.tokens.end());
  });
  progress_.clear();
  if (!interrupted()) check_same_text("--compare", options_.sampler, ids, plain);
}

void Sequence::save(const std::string& path) const {
  naming("--save", [&] {
    dsv41::runtime::write_file_atomically(path, [&](const dsv41::runtime::WriteBytes& write) { session_.save(write); });
  });
}

Figures Sequence::figures() const {
  Figures out = figures_;
  out.drafting = speculation_.drafting();
  out.positions = session_.position();
  out.memory = session_.memory();
  out.weights = engine_.weight_tier();
  return out;
}

/// Checks the last call's logits, and records them.
void Sequence::take_logits() {
  const auto logits = session_.logits();
  const std::int64_t rows = logits.extent(0), before = session_.position() - rows;
  for (std::int64_t row = 0; row < rows; ++row) dsv41::runtime::check_logits(logits.row(row), before + row);
  if (recorder_ != nullptr) record(session_);
}

void Sequence::record(const Session& session) {
  const auto logits = session.logits();
  recorder_->add(session.tokens().last(static_cast<std::size_t>(logits.extent(0))), logits);
}

void Sequence::count_rows() {
  const auto rows = session_.rows_per_layer();
  for (std::size_t l = 0; l < rows.size(); ++l) figures_.rows_per_layer[l] += rows[l];
}

}  // namespace generate

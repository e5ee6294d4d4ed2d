// SPDX-License-Identifier: MIT
//
// Requests in and out of the generator, and what each of them has said.
#include "batch.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "files.hpp"
#include "numbers.hpp"

namespace generate {

using dsv41::runtime::Emission;
using dsv41::runtime::Engine;
using dsv41::runtime::Finish;

namespace {

using Requests = std::vector<BatchRequest>;

std::string_view finish_name(Finish finish) {
  switch (finish) {
    case Finish::stop: return "stop";
    case Finish::length: return "length";
    case Finish::context: return "context";
    case Finish::failed: return "failed";
    case Finish::none: break;
  }
  return "interrupted";
}

std::string list(std::span<const std::int32_t> ids) {
  std::string out;
  for (const std::int32_t id : ids) out += (out.empty() ? "" : ", ") + std::to_string(id);
  return "[" + out + "]";
}

/// What one request has given so far.
struct Said {
  std::vector<std::int32_t> ids;
  std::optional<dsv41::text::StreamingDetokenizer> stream;  ///< of a text, once it has begun
  std::string text;
  bool ended = false;
};

/// Writes what requests say.
class Speaker {
 public:
  Speaker(const dsv41::runtime::ModelFolder& folder, const Requests& requests)
      : folder_(folder), requests_(requests), said_(requests.size()) {}

  void say(const Emission& emission) {
    const auto i = static_cast<std::size_t>(emission.request);
    Said& said = said_[i];
    said.ids.insert(said.ids.end(), emission.tokens.begin(), emission.tokens.end());
    if (requests_[i].text) {
      if (!said.stream) said.stream.emplace(*folder_.tokenizer, true);
      std::string piece;
      for (const std::int32_t id : emission.tokens) piece += said.stream->push(id);
      if (emission.finish != Finish::none) piece += said.stream->finish();
      said.text += piece;
      if (!piece.empty()) line(i, "\"text\": " + json_string(piece));
    } else if (!emission.tokens.empty()) {
      line(i, "\"tokens\": " + list(emission.tokens));
    }
    if (emission.finish != Finish::none) end(i, emission.finish, emission.error);
  }

  /// Ends those that have not ended.
  void interrupt() {
    for (std::size_t i = 0; i < said_.size(); ++i) {
      if (said_[i].ended) continue;
      if (said_[i].stream) said_[i].text += said_[i].stream->finish();
      end(i, Finish::none, {});
    }
  }

  const std::vector<Said>& said() const { return said_; }

 private:
  void line(std::size_t i, const std::string& members) const {
    write_out("{\"id\": " + requests_[i].id + ", " + members + "}\n");
  }

  void end(std::size_t i, Finish finish, std::string_view error) {
    Said& said = said_[i];
    said.ended = true;
    line(i, "\"finish\": " + json_string(finish_name(finish)) + ", \"count\": " + std::to_string(said.ids.size()) +
                (requests_[i].text ? ", \"text\": " + json_string(said.text) : ", \"tokens\": " + list(said.ids)) +
                (finish == Finish::failed ? ", \"error\": " + json_string(error) : ""));
  }

  const dsv41::runtime::ModelFolder& folder_;
  const Requests& requests_;
  std::vector<Said> said_;
};

/// Decodes all requests, whose numbers in the generator are their places in the list, for it counts from 0; take(emission).
/// Returns how many joined before it ended or was interrupted.
template <class Take>
std::int64_t decode_all(Engine& engine, Decoding& decoding, const Requests& requests, std::int64_t parallel,
                        const dsv41::CancelToken& cancel, const Take& take) {
  const std::int64_t count = std::ssize(requests);
  std::int64_t joined = 0, ended = 0;
  until_interrupted([&] {
    while (ended < count && !cancel.requested()) {
      for (; joined < count && joined - ended < parallel; ++joined) {
        const BatchRequest& next = requests[static_cast<std::size_t>(joined)];
        decoding.add(engine.open_session(), next.options, next.prompt);
      }
      for (const Emission& emission : decoding.step()) {
        take(emission);
        if (emission.finish == Finish::none) continue;
        decoding.remove(emission.request);
        ++ended;
      }
    }
  });
  return joined;
}

void compare(Engine& engine, const Options& options, Decoding& plain, const Requests& requests,
             const std::vector<Said>& said, Progress& progress, const dsv41::CancelToken& cancel) {
  progress.show("comparing with plain decoding");
  std::vector<std::vector<std::int32_t>> ids(requests.size());
  decode_all(engine, plain, requests, options.parallel, cancel, [&](const Emission& emission) {
    auto& to = ids[static_cast<std::size_t>(emission.request)];
    to.insert(to.end(), emission.tokens.begin(), emission.tokens.end());
  });
  progress.clear();
  if (cancel.requested()) return;
  for (std::size_t i = 0; i < requests.size(); ++i)
    check_same_text("--compare: request " + requests[i].id, requests[i].options.sampler, said[i].ids, ids[i]);
}

}  // namespace

std::int64_t choices(const dsv41::runtime::ModelFolder& folder, const Requests& requests) {
  const bool text = std::any_of(requests.begin(), requests.end(), [](const BatchRequest& r) { return r.text; });
  return text ? folder.tokenizer->vocab_size() : folder.checkpoint.config().vocab;
}

BatchFigures run_batch(Engine& engine, const Options& options, Speculation& speculation,
                       const dsv41::runtime::ModelFolder& folder, const Requests& requests, Progress& progress,
                       const dsv41::CancelToken& cancel) {
  BatchFigures out{.requests = std::ssize(requests), .numeric_class = engine.numeric_class()};
  Speaker speaker(folder, requests);
  std::int64_t ended = 0;
  std::int64_t most = 0;
  for (const BatchRequest& request : requests) {
    const std::int64_t room = engine.config().max_positions - std::ssize(request.prompt);
    most = std::max(most, std::min(request.options.max_tokens, room));
  }
  until_interrupted([&] { speculation.prepare(most); });
  progress.clear();
  const double start = now();
  const std::int64_t joined =
      decode_all(engine, speculation.decoding(), requests, options.parallel, cancel, [&](const Emission& emission) {
        progress.clear();
        speaker.say(emission);
        ended += emission.finish != Finish::none ? 1 : 0;
        out.failed += emission.finish == Finish::failed ? 1 : 0;
        progress.count("batch: request", ended, out.requests);
      });
  out.batch_s = now() - start;
  progress.clear();
  speaker.interrupt();
  for (std::int64_t i = 0; i < joined; ++i)
    out.prompt_tokens += std::ssize(requests[static_cast<std::size_t>(i)].prompt);
  for (const Said& said : speaker.said()) out.generated_tokens += std::ssize(said.ids);
  if (speculation.plain() != nullptr && !cancel.requested())
    compare(engine, options, *speculation.plain(), requests, speaker.said(), progress, cancel);
  if (cancel.requested()) speculation.cut_comparison();
  out.clock = speculation.decoding().clock();
  out.drafting = speculation.drafting();
  out.weights = engine.weight_tier();
  return out;
}

}  // namespace generate

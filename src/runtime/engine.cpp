// SPDX-License-Identifier: MIT
//
// Engine and Session: checks at the edge, and which backend stands behind them.
#include "dsv41/runtime/engine.hpp"

#include <string>
#include <utility>

#include "call.hpp"
#include "dsv41/core/error.hpp"
#include "engine_impl.hpp"
#include "float_environment.hpp"
#include "with_memory.hpp"

namespace dsv41::runtime {

namespace {

/// Rings beyond this are a mistake: they would hold more of what nobody sees than any draft or turn needs.
constexpr std::int64_t kMostRoom = 65536;

void check_options(const EngineOptions& options, const ModelConfig& config) {
  auto refuse = [](const std::string& what, const std::string& expected, std::int64_t got) {
    throw Error(Errc::invalid_argument, "engine: " + what + " is " + std::to_string(got) + ", expected " + expected);
  };
  if (options.max_context < 1 || options.max_context > config.max_positions) {
    refuse("max_context", "1 to max_position_embeddings = " + std::to_string(config.max_positions),
           options.max_context);
  }
  if (options.max_rows < 1) refuse("max_rows", "at least 1", options.max_rows);
  if (options.room < 0 || options.room > kMostRoom) refuse("room", "0 to " + std::to_string(kMostRoom), options.room);
  if (options.draft < 0 || options.draft > options.room) {
    refuse("draft", "0 to room = " + std::to_string(options.room) + ": a rejected draft must not cost a window row",
           options.draft);
  }
  if (options.draft >= config.window && options.prefill != Prefill::full &&
      prefill_obstacle(make_schedule(config)).empty()) {
    refuse("draft",
           "0 to " + std::to_string(config.window - 1) + ": under prefill " +
               std::string(prefill_name(options.prefill)) +
               ", which skips rows, a step gives the logits of at most a window of them",
           options.draft);
  }
  if (options.draft > 0 && config.draft.stages == 0) {
    throw Error(Errc::unsupported, "engine: draft is " + std::to_string(options.draft) +
                                       ", expected 0: the model has no draft stages (num_nextn_predict_layers)");
  }
  if (options.weight_bytes < 0) refuse("weight_bytes", "at least 0", options.weight_bytes);
  if (options.weight_bytes > 0 && options.backend != "cpu") {
    throw Error(Errc::unsupported, "engine: weight_bytes is " + std::to_string(options.weight_bytes) +
                                       ", expected 0 on backend '" + options.backend + "'");
  }
  if (options.weight_bytes > 0 && options.cpu.tier != nullptr)
    throw Error(Errc::invalid_argument, "engine: weight_bytes and a tier in cpu, expected one of them");
  if (options.check_weights && options.weight_bytes == 0)
    throw Error(Errc::invalid_argument, "engine: check_weights without weight_bytes");
  if (options.cache_bytes < 0) refuse("cache_bytes", "at least 0", options.cache_bytes);
  const std::int64_t most = options.cache_bytes == 0 ? INT64_MAX : options.cache_bytes;
  if (options.prefix_bytes < 0 || options.prefix_bytes > most)
    refuse("prefix_bytes", "0 to cache_bytes = " + std::to_string(most), options.prefix_bytes);
}

/// A public call of an engine or one of its sessions.
template <class Impl, class Work>
auto call(Impl& engine, const char* verb, const Work& work) {
  const Call alone(engine.busy, verb, "the engine");
  return with_memory(verb, work);
}

}  // namespace

void Engine::Impl::check_feed(const std::string& call, const Feed& feed, std::int64_t position) const {
  const auto count = static_cast<std::int64_t>(feed.ids.size());
  auto refuse = [&](Errc code, const std::string& message) { throw Error(code, call + ": " + message); };
  if (feed.ids.empty()) refuse(Errc::invalid_argument, "no tokens, expected at least one");
  for (std::size_t i = 0; i < feed.ids.size(); ++i) {
    if (feed.ids[i] < 0 || feed.ids[i] >= config.vocab) {
      refuse(Errc::invalid_argument, "token id " + std::to_string(feed.ids[i]) + " at index " + std::to_string(i) +
                                         ", expected 0 to " + std::to_string(config.vocab - 1) + " (vocab_size)");
    }
  }
  if (!feed.image.empty() && feed.image.size() != feed.ids.size()) {
    refuse(Errc::invalid_argument,
           "image marks " + std::to_string(feed.image.size()) + " tokens, expected " + std::to_string(count));
  }
  const std::int64_t most = marked(feed.image);
  if (feed.image_rows.extent(0) > most || (feed.image_rows.extent(0) > 0 && feed.image_rows.extent(1) != config.dim)) {
    refuse(Errc::invalid_argument, "image_rows is " + ops::extents_text(feed.image_rows.extents()) +
                                       ", expected at most " + std::to_string(most) + " rows of " +
                                       std::to_string(config.dim));
  }
  if (feed.logit_rows < 0)
    refuse(Errc::invalid_argument, "logit_rows is " + std::to_string(feed.logit_rows) + ", expected at least 0");
  if (const std::int64_t run = prefill_rows(config, schedule, prefill, config.layers - 1, count);
      wanted_rows(feed) > run) {
    refuse(Errc::invalid_argument, "logits of " + std::to_string(wanted_rows(feed)) + " of " + std::to_string(count) +
                                       " tokens under prefill " + std::string(prefill_name(prefill)) +
                                       ", which skips rows: expected at most " + std::to_string(run) +
                                       ", or prefill full");
  }
  if (count > options.max_context - position) {
    refuse(Errc::out_of_memory,
           std::to_string(position) + " and " + std::to_string(count) +
               " positions, expected together at most max_context = " + std::to_string(options.max_context));
  }
}

Engine::Engine(const ModelFolder& folder, const EngineOptions& options) {
  const FloatEnvironment standard;  // the rotary tables are computed here
  check_options(options, folder.checkpoint.config());
  if (options.backend != "cpu" && options.backend != "ref")
    throw Error(Errc::unsupported, "engine: backend '" + options.backend + "', expected 'cpu' or 'ref'");
  impl_ = with_memory("engine", [&] {
    return options.backend == "cpu" ? Impl::on_cpu(folder, options) : Impl::on_ref(folder, options);
  });
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Session Engine::open_session() {
  return call(*impl_, "open_session", [&] { return Session(impl_->open(impl_)); });
}
void Engine::step(std::span<const SessionFeed> feeds, const StepControl& control) {
  call(*impl_, "step", [&] { impl_->step("step", feeds, control); });
}
void Engine::check(const Session& session, const Feed& feed) const {
  with_memory("check", [&] { impl_->check(session, feed); });
}
void Engine::draft(std::span<const SessionDraft> requests) {
  call(*impl_, "draft", [&] { impl_->draft(requests); });
}
bool Engine::has_confidence() const noexcept {
  return impl_->has_confidence();
}
const ModelConfig& Engine::config() const noexcept {
  return impl_->config;
}
const EngineOptions& Engine::options() const noexcept {
  return impl_->options;
}
Prefill Engine::prefill() const noexcept {
  return impl_->prefill;
}
const std::string& Engine::prefill_note() const noexcept {
  return impl_->prefill_note;
}
const std::string& Engine::numeric_class() const noexcept {
  return impl_->numeric_class;
}
EngineMemory Engine::memory() const noexcept {
  return impl_->memory();
}
WeightTier Engine::weight_tier() const noexcept {
  return impl_->weight_tier();
}

Session::Session(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::append(const Feed& feed, const StepControl& control) {
  const SessionFeed one{.session = this, .feed = feed};
  call(*impl_->engine, "append", [&] { impl_->engine->step("append", {&one, 1}, control); });
}
SyncReport Session::sync_to(const Feed& feed, const StepControl& control) {
  return call(*impl_->engine, "sync_to", [&] { return impl_->engine->sync_to(*this, feed, control); });
}
std::int64_t Session::rewind(std::int64_t position) {
  return call(*impl_->engine, "rewind", [&] { return impl_->engine->rewind(*impl_, position); });
}
void Session::commit(std::int64_t rows) {
  call(*impl_->engine, "commit", [&] { impl_->engine->commit(*impl_, rows); });
}
void Session::rerun_last(const StepControl& control) {
  call(*impl_->engine, "rerun_last", [&] { impl_->engine->rerun_last(*this, control); });
}
Session Session::fork() const {
  return call(*impl_->engine, "fork", [&] { return Session(impl_->engine->fork(*impl_)); });
}
void Session::save(const WriteBytes& write) const {
  call(*impl_->engine, "save", [&] { impl_->engine->save(*impl_, write); });
}
void Session::restore(const ReadBytes& read) {
  call(*impl_->engine, "restore", [&] { impl_->engine->restore(*impl_, read); });
}
In<float, 2> Session::logits() const noexcept {
  return {impl_->logits.data(), {impl_->logit_rows, impl_->engine->config.vocab}};
}
std::span<const std::int64_t> Session::rows_per_layer() const noexcept {
  return impl_->rows_per_layer;
}
std::int64_t Session::replayed_rows() const noexcept {
  return impl_->replayed_rows;
}
std::span<const std::int32_t> Session::tokens() const noexcept {
  return impl_->transcript.ids().first(static_cast<std::size_t>(impl_->position()));
}
std::int64_t Session::position() const noexcept {
  return impl_->position();
}
SessionMemory Session::memory() const noexcept {
  return impl_->engine->memory(*impl_);
}

}  // namespace dsv41::runtime

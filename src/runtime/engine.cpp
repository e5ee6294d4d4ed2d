// SPDX-License-Identifier: MIT
//
// Engine and Session: checks at the edge, then steps of at most max_rows rows, then the logits back to the host.
#include "dsv41/runtime/engine.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/model/model.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "float_environment.hpp"

namespace dsv41::runtime {

namespace {

void check_options(const EngineOptions& options, const ModelConfig& config) {
  auto refuse = [](const std::string& what, const std::string& expected, std::int64_t got) {
    throw Error(Errc::invalid_argument, "engine: " + what + " is " + std::to_string(got) + ", expected " + expected);
  };
  if (options.max_context < 1 || options.max_context > config.max_positions) {
    refuse("max_context", "1 to max_position_embeddings = " + std::to_string(config.max_positions),
           options.max_context);
  }
  if (options.max_rows < 1) refuse("max_rows", "at least 1", options.max_rows);
}

}  // namespace

/// One session's state in a backend's memory, as the engine sees it.
class Session::Impl {
 public:
  virtual ~Impl() = default;
  virtual void append(std::span<const std::int32_t> ids, LogitRows rows, std::span<const std::uint8_t> image,
                      In<float, 2> image_rows, StepListener* listener) = 0;
  virtual In<float, 2> logits() const noexcept = 0;
  virtual std::span<const std::int64_t> rows_per_layer() const noexcept = 0;
  virtual std::int64_t position() const noexcept = 0;
  virtual void reset() = 0;
};

class Engine::Impl {
 public:
  Impl(const ModelConfig& config, const EngineOptions& options)
      : config(config),
        options(options),
        schedule(make_schedule(config)),
        prefill_note(options.prefill == Prefill::full ? std::string() : prefill_obstacle(schedule)),
        prefill(prefill_note.empty() ? options.prefill : Prefill::full),
        numeric_class(std::string(numeric_name(options.numeric)) +
                      (prefill == Prefill::replay ? ", bounded replay" : "")) {}
  virtual ~Impl() = default;
  virtual std::unique_ptr<Session::Impl> open_session(std::shared_ptr<Impl> self) = 0;

  ModelConfig config;
  EngineOptions options;
  Schedule schedule;
  std::string prefill_note;
  Prefill prefill;
  std::string numeric_class;
};

/// The engine on backend B.
template <class B>
class Engine::On final : public Engine::Impl {
 public:
  On(const ModelFolder& folder, const EngineOptions& options)
      : Impl(folder.checkpoint.config(), options),
        limits_{.max_context = options.max_context, .max_rows = std::min(options.max_rows, options.max_context)},
        model_(backend_, config, folder.checkpoint.weights(), folder.token_map, options.numeric),
        scratch_(backend_, config, limits_) {
    backend_.prepare(config, limits_.max_rows);
    inputs_ = Arena<B>(backend_, [&](Cursor& cursor) {
      cursor.take(ids_, {limits_.max_rows});
      cursor.take(image_, {limits_.max_rows});
      cursor.take(positions_, {limits_.max_rows});
      cursor.take(image_rows_, {limits_.max_rows, config.dim});
    });
    host_image_.resize(static_cast<std::size_t>(limits_.max_rows));
    host_positions_.resize(host_image_.size());
  }

  std::unique_ptr<Session::Impl> open_session(std::shared_ptr<Engine::Impl> self) override {
    return std::make_unique<Sequence>(std::static_pointer_cast<On>(std::move(self)));
  }

 private:
  class Sequence;

  /// Uploads one chunk and runs what `plan` says of it at the sequence's position; `image_rows` holds the chunk's own rows.
  void step(SequenceState& sequence, std::span<const std::int32_t> ids, std::span<const std::uint8_t> image,
            In<float, 2> image_rows, std::span<const LayerRows> plan) {
    const auto rows = static_cast<std::int64_t>(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      host_positions_[i] = sequence.position + static_cast<std::int64_t>(i);
      host_image_[i] = image.empty() ? std::uint8_t{0} : image[i];
    }
    backend_.upload(ids_.data(), ids.data(), ids.size_bytes());
    backend_.upload(image_.data(), host_image_.data(), ids.size());
    backend_.upload(positions_.data(), host_positions_.data(), ids.size() * sizeof host_positions_[0]);
    for (std::int64_t i = 0; i < image_rows.extent(0); ++i) {
      backend_.upload(image_rows_.row(i).data(), image_rows.row(i).data(),
                      static_cast<std::size_t>(config.dim) * sizeof(float));
    }
    const Segment segment{.state = &sequence, .first_row = 0, .rows = rows, .first_position = sequence.position};
    model_.step(backend_,
                Batch{.ids = ids_.rows(0, rows),
                      .image = image_.rows(0, rows),
                      .image_rows = image_rows_.rows(0, image_rows.extent(0)),
                      .positions = positions_.rows(0, rows),
                      .segments = {&segment, 1}},
                scratch_.views().first_rows(rows), plan);
    sequence.position += rows;
  }

  /// Room for logits of `rows` rows. One buffer serves all sessions: it is read back before the next step.
  void reserve_logits(std::int64_t rows) {
    if (logits_.extent(0) >= rows) return;
    Out<float, 2> larger;  // taken over only once its memory is there
    Arena<B> arena(backend_, [&](Cursor& cursor) { cursor.take(larger, {rows, config.vocab}); });
    logits_arena_ = std::move(arena);
    logits_ = larger;
  }

  /// Logits of rows [first, first + count) of the last step, which had `step_rows` rows.
  void fetch_logits(std::int64_t first, std::int64_t count, std::int64_t step_rows, std::vector<float>& host) {
    const Out<float, 2> out = logits_.rows(0, count);
    model_.logits(backend_, scratch_.views().first_rows(step_rows), first, count, out);
    backend_.download(host.data(), out.data(), static_cast<std::size_t>(out.size()) * sizeof(float));
  }

  B backend_;
  Limits limits_;
  Model<B> model_;
  Scratch<B> scratch_;
  Out<std::int32_t, 1> ids_;
  Out<std::uint8_t, 1> image_;
  Out<std::int64_t, 1> positions_;
  Out<float, 2> image_rows_;
  Arena<B> inputs_;
  std::vector<std::uint8_t> host_image_;  // staging of uploads
  std::vector<std::int64_t> host_positions_;
  Out<float, 2> logits_;
  Arena<B> logits_arena_;
};

template <class B>
class Engine::On<B>::Sequence final : public Session::Impl {
 public:
  explicit Sequence(std::shared_ptr<On> engine)
      : engine_(std::move(engine)), state_(engine_->backend_, engine_->config, engine_->limits_) {
    plan_.resize(engine_->schedule.layers.size());
    rows_per_layer_.reserve(plan_.size());
  }

  void append(std::span<const std::int32_t> ids, LogitRows rows, std::span<const std::uint8_t> image,
              In<float, 2> image_rows, StepListener* listener) override {
    check(ids, rows, image, image_rows);
    const FloatEnvironment standard;
    const std::int64_t wanted = rows == LogitRows::all ? static_cast<std::int64_t>(ids.size()) : 1;
    reserve(wanted);  // what can fail for memory fails before the first row runs
    broken_ = true;   // until the last row is through and its logits are here
    const auto chunk = static_cast<std::size_t>(engine_->limits_.max_rows);
    rows_per_layer_.assign(plan_.size(), 0);
    const std::int64_t begin = position(), end = begin + static_cast<std::int64_t>(ids.size());
    std::int64_t image_row = 0, last = 0;
    for (std::size_t first = 0; first < ids.size(); first += chunk) {
      const std::size_t count = std::min(chunk, ids.size() - first);
      const auto marks = image.empty() ? image : image.subspan(first, count);
      const std::int64_t own = std::min(marked(marks), image_rows.extent(0) - image_row);
      last = static_cast<std::int64_t>(count);
      plan_prefill(engine_->config, engine_->schedule, engine_->prefill,
                   {.begin = begin, .end = end, .first = position(), .rows = last}, plan_);
      engine_->step(state_.sequence(), ids.subspan(first, count), marks, image_rows.rows(image_row, own), plan_);
      for (std::size_t l = 0; l < plan_.size(); ++l) rows_per_layer_[l] += last - plan_[l].queries;
      image_row += own;
      if (listener != nullptr) listener->step_done(position() - begin);
    }
    engine_->fetch_logits(last - wanted, wanted, last, logits_);
    rows_ = wanted;
    broken_ = false;
  }

  In<float, 2> logits() const noexcept override { return {logits_.data(), {rows_, engine_->config.vocab}}; }
  std::span<const std::int64_t> rows_per_layer() const noexcept override { return rows_per_layer_; }
  std::int64_t position() const noexcept override { return state_.position(); }

  void reset() override {
    state_.reset();
    rows_ = 0;
    rows_per_layer_.clear();
    broken_ = false;
  }

 private:
  static std::int64_t marked(std::span<const std::uint8_t> image) {
    return std::count_if(image.begin(), image.end(), [](std::uint8_t m) { return m != 0; });
  }

  void check(std::span<const std::int32_t> ids, LogitRows rows, std::span<const std::uint8_t> image,
             In<float, 2> image_rows) const {
    const ModelConfig& c = engine_->config;
    const Limits& limits = engine_->limits_;
    const auto count = static_cast<std::int64_t>(ids.size());
    auto refuse = [](Errc code, const std::string& message) { throw Error(code, "append: " + message); };
    if (broken_)
      refuse(Errc::invalid_argument, "an earlier append() failed half way, expected reset() before the next");
    if (ids.empty()) refuse(Errc::invalid_argument, "no tokens, expected at least one");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= c.vocab) {
        refuse(Errc::invalid_argument, "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                           ", expected 0 to " + std::to_string(c.vocab - 1) + " (vocab_size)");
      }
    }
    if (!image.empty() && image.size() != ids.size()) {
      refuse(Errc::invalid_argument,
             "image marks " + std::to_string(image.size()) + " tokens, expected " + std::to_string(count));
    }
    const std::int64_t most = marked(image);
    if (image_rows.extent(0) > most || (image_rows.extent(0) > 0 && image_rows.extent(1) != c.dim)) {
      refuse(Errc::invalid_argument, "image_rows is " + ops::extents_text(image_rows.extents()) +
                                         ", expected at most " + std::to_string(most) + " rows of " +
                                         std::to_string(c.dim));
    }
    if (rows == LogitRows::all && count > limits.max_rows) {
      refuse(Errc::invalid_argument,
             std::to_string(count) +
                 " tokens with logits of all, expected at most max_rows = " + std::to_string(limits.max_rows));
    }
    if (rows == LogitRows::all && engine_->prefill != Prefill::full && count > c.window) {
      refuse(Errc::invalid_argument, std::to_string(count) + " tokens with logits of all under prefill " +
                                         std::string(prefill_name(engine_->prefill)) +
                                         ", which skips rows: expected at most the window of " +
                                         std::to_string(c.window) + ", or prefill full");
    }
    if (position() + count > limits.max_context) {
      refuse(Errc::out_of_memory, std::to_string(position() + count) + " positions, expected at most max_context = " +
                                      std::to_string(limits.max_context));
    }
  }

  void reserve(std::int64_t rows) {
    engine_->reserve_logits(rows);
    const auto floats = static_cast<std::size_t>(rows * engine_->config.vocab);
    if (logits_.size() >= floats) return;
    try {
      logits_.resize(floats);
    } catch (const std::bad_alloc&) {
      throw Error(Errc::out_of_memory,
                  "append: cannot allocate " + std::to_string(floats * sizeof(float)) + " bytes for logits");
    }
  }

  std::shared_ptr<On> engine_;
  State<B> state_;
  std::vector<float> logits_;
  std::vector<LayerRows> plan_;
  std::vector<std::int64_t> rows_per_layer_;
  std::int64_t rows_ = 0;
  bool broken_ = false;
};

Engine::Engine(const ModelFolder& folder, const EngineOptions& options) {
  const FloatEnvironment standard;  // the rotary tables are computed here
  check_options(options, folder.checkpoint.config());
  if (options.backend != "ref")
    throw Error(Errc::unsupported, "engine: backend '" + options.backend + "', expected 'ref'");
  try {
    impl_ = std::make_shared<On<RefBackend>>(folder, options);
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, "engine: no memory for the model's tables and buffers");
  }
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Session Engine::open_session() {
  try {
    return Session(impl_->open_session(impl_));
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, "engine: no memory for a session");
  }
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

Session::Session(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::append(std::span<const std::int32_t> ids, LogitRows rows, std::span<const std::uint8_t> image,
                     In<float, 2> image_rows, StepListener* listener) {
  impl_->append(ids, rows, image, image_rows, listener);
}
In<float, 2> Session::logits() const noexcept {
  return impl_->logits();
}
std::span<const std::int64_t> Session::rows_per_layer() const noexcept {
  return impl_->rows_per_layer();
}
std::int64_t Session::position() const noexcept {
  return impl_->position();
}
void Session::reset() {
  impl_->reset();
}

}  // namespace dsv41::runtime

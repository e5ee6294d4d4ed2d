// SPDX-License-Identifier: MIT
//
// Sessions: one prompt, two continuations that share its memory, common steps, going back, and a session that outlives its engine as
// bytes. Uses the demo checkpoint (or argv[1]).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/engine.hpp"

using namespace dsv41::runtime;

namespace {

/// The likeliest next token.
std::int32_t best(const Session& session) {
  const auto row = session.logits().row(session.logits().extent(0) - 1);
  return static_cast<std::int32_t>(std::max_element(row.data(), row.data() + row.extent(0)) - row.data());
}

/// Ten more tokens of each, all sessions in one step at a time.
void continue_all(Engine& engine, std::span<Session* const> sessions) {
  for (int i = 0; i < 10; ++i) {
    std::vector<std::int32_t> next;
    for (const Session* s : sessions) next.push_back(best(*s));
    std::vector<SessionFeed> feeds;
    for (std::size_t s = 0; s < sessions.size(); ++s) feeds.push_back({sessions[s], {.ids = {&next[s], 1}}});
    engine.step(feeds);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const ModelFolder folder = ModelFolder::open(argc > 1 ? argv[1] : DSV41_DEMO_DIR);
  Engine engine(folder,
                {.max_context = 512, .cache_bytes = 1 << 20});  // and not a byte more, for all sessions together
  const auto text = [&](const Session& s) { return folder.tokenizer->decode(s.tokens(), true); };

  Session session = engine.open_session();
  session.append({.ids = folder.tokenizer->encode("And the LORD said unto")});
  const std::int64_t prompt = session.position();

  Session other = session.fork();  // copies no cache: both read the same memory until one writes
  other.append({.ids = folder.tokenizer->encode(" Moses")});
  Session* both[] = {&session, &other};
  continue_all(engine, both);
  std::cout << text(session) << '\n' << text(other) << '\n';

  session.rewind(prompt);  // back to the prompt, as if nothing had followed
  session.append({.ids = folder.tokenizer->encode(" Abraham")});
  continue_all(engine, {both, 1});
  std::cout << text(session) << '\n';

  std::vector<std::byte> saved;
  session.save([&](std::span<const std::byte> bytes) { saved.insert(saved.end(), bytes.begin(), bytes.end()); });
  Session again = Engine(folder, {.max_context = 512}).open_session();
  std::size_t at = 0;
  again.restore([&](std::span<std::byte> bytes) {
    const std::size_t n = std::min(bytes.size(), saved.size() - at);
    std::copy_n(saved.begin() + static_cast<std::ptrdiff_t>(at), n, bytes.begin());
    at += n;
    return n;
  });
  const SyncReport report = again.sync_to({.ids = other.tokens()});  // what the two texts have in common is kept
  std::cout << again.position() << " tokens, " << report.reused << " of them reused\n";
  return std::cout.flush() ? 0 : 1;
} catch (const dsv41::Error& e) {
  std::cerr << "06_sessions: " << e.what() << '\n';
  return 1;
}

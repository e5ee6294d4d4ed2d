// SPDX-License-Identifier: MIT
//
// long_context [TOKENS]: the demo's geometry with room for a long context (131,072 tokens by default): really fed, with the memory that its
// layout predicts, and a token's decode time at both ends, in one run on one backend. Not a unit test: the ratio is printed, the memory
// must be right.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dsv41/core/cache_layout.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/runtime/engine.hpp"
#include "support/temp_folder.hpp"

namespace {

using namespace dsv41;
namespace fs = std::filesystem;

constexpr std::int64_t kShort = 1024, kTimed = 64;  // context of the first timing; tokens of each

/// The demo with more positions: its files, and a config of its own.
void make_folder(const test::TempFolder& folder, std::int64_t positions) {
  for (const auto& entry : fs::directory_iterator(DSV41_DEMO_DIR)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "tokenizer.json")
      fs::create_symlink(entry.path(), folder.path() / entry.path().filename());
  }
  nlohmann::json config = nlohmann::json::parse(test::read_file(fs::path(DSV41_DEMO_DIR) / "config.json"));
  config["text_config"]["max_position_embeddings"] = positions;
  folder.write("config.json", config.dump());
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::uint64_t state = 1;
  for (std::int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

/// Median seconds of a decoded token.
double decode_seconds(runtime::Session& session) {
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < kTimed; ++i) {
    const std::int32_t id = session.tokens()[static_cast<std::size_t>(i)];
    const double start = now();
    session.append({.ids = {&id, 1}});
    seconds.push_back(now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTimed / 2, seconds.end());
  return seconds[kTimed / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 131072;
  if (tokens < 2 * kShort) throw Error(Errc::invalid_argument, "long_context: expected at least 2048 tokens");
  const test::TempFolder path;
  make_folder(path, tokens + kTimed);
  const runtime::ModelFolder folder = runtime::ModelFolder::open(path.path());
  runtime::Engine engine(folder, {.max_context = tokens + kTimed, .prefill = Prefill::exact});
  runtime::Session session = engine.open_session();
  const std::vector<std::int32_t> ids = random_ids(tokens, engine.config().vocab);

  session.append({.ids = std::span(ids).first(kShort)});
  const double at_short = decode_seconds(session);
  session.rewind(kShort);
  const double start = now();
  session.append({.ids = std::span(ids).subspan(kShort)});
  const double prefill = now() - start;

  const CacheLayout layout = make_cache_layout(engine.config(), engine.options().room);
  const runtime::SessionMemory memory = session.memory();
  const std::int64_t predicted = layout.pages(tokens) * layout.page_bytes;
  const double at_long = decode_seconds(session);
  std::cout << "tokens " << tokens << ", fed in " << prefill << " s\n"
            << "cache bytes " << memory.cache_bytes << ", predicted " << predicted << " (" << layout.page_bytes
            << " a page of " << layout.page_positions << "), block " << memory.block_bytes << ", table "
            << memory.table_bytes << "\n"
            << "decode at " << kShort << ": " << 1e3 * at_short << " ms, at " << tokens << ": " << 1e3 * at_long
            << " ms, ratio " << at_long / at_short << "\n";
  if (memory.cache_bytes != predicted || memory.block_bytes != layout.block_bytes) {
    std::cerr << "long_context: memory is not as predicted\n";
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
} catch (const Error& e) {
  std::cerr << "long_context: " << e.what() << '\n';
  return 1;
}

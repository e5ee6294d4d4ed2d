// SPDX-License-Identifier: MIT
//
// A table of options, as in generate; what is no option is the config.
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "generate/command_line.hpp"

namespace inspect {

namespace {

using generate::quoted;
using generate::refuse;
using generate::Text;

std::string path(Text name, Text value) {
  if (value.empty()) refuse(std::string(name) + ": expected a path, got nothing");
  return std::string(value);
}

/// Without slashes at its end, so that it compares as the name that it is.
std::string folder(Text name, Text value) {
  std::string out = path(name, value);
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

struct Unit {
  Text suffix;
  std::int64_t bytes;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"KB", 1000},
                           {"MB", 1000 * 1000},
                           {"GB", 1000 * 1000 * 1000},
                           {"TB", std::int64_t{1000} * 1000 * 1000 * 1000},
                           {"KiB", 1 << 10},
                           {"MiB", 1 << 20},
                           {"GiB", 1 << 30},
                           {"TiB", std::int64_t{1} << 40}};

std::int64_t bytes(Text name, Text value) {
  std::int64_t count = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), count);
  const Text suffix = value.substr(static_cast<std::size_t>(end - value.data()));
  const auto unit =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& u) { return u.suffix == suffix; });
  if (code != std::errc() || count < 0 || unit == std::end(kUnits) ||
      count > std::numeric_limits<std::int64_t>::max() / unit->bytes) {
    refuse(std::string(name) + ": expected bytes below 2^63, as 80000000000, 80GB or 75GiB, got " + quoted(value));
  }
  return count * unit->bytes;
}

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

const generate::OptionRow<Options> kRows[] = {
    {"--context", true,
     [](Options& o, Text n, Text v) { o.context = generate::integer<std::int64_t>(n, v, 1, kMost); }},
    {"--batch", true, [](Options& o, Text n, Text v) { o.batch = generate::integer<std::int64_t>(n, v, 1, kMost); }},
    {"--host-bytes", true, [](Options& o, Text n, Text v) { o.host_bytes = bytes(n, v); }},
    {"--device-bytes", true, [](Options& o, Text n, Text v) { o.device_bytes = bytes(n, v); }},
    {"--json", true, [](Options& o, Text n, Text v) { o.json = path(n, v); }},
    {"--plot", true, [](Options& o, Text n, Text v) { o.plot = path(n, v); }},
    {"--shards", true, [](Options& o, Text n, Text v) { o.shards = path(n, v); }},
    {"--write-headers", true, [](Options& o, Text n, Text v) { o.headers = folder(n, v); }},
    {"--help", false, [](Options& o, Text, Text) { o.help = true; }},
};

void set_config(Options& options, Text argument) {
  if (options.config) {
    refuse("unexpected argument " + quoted(argument) + "; the config is " + quoted(*options.config) + " already");
  }
  options.config = path("CONFIG", argument);
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  generate::parse_arguments(
      arguments, kRows, [&](Text argument) { set_config(options, argument); }, options);
  return options;
}

std::string_view help_text() noexcept {
  return R"(inspect - what a DeepSeek-V4.1-Flash config costs, before anything is loaded

usage: inspect [CONFIG] [options]    CONFIG: config.json or a folder with one (default: the released model)

  --context N            tokens of a sequence (default: max_position_embeddings)
  --batch B              sequences in a step (default 1)
  --device-bytes X       show where things would live: on a device with X bytes,
  --host-bytes Y         in Y bytes of host memory, and in the mapped files; either alone: the other is 0
                         bytes are plain, or in KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024)

results
  --json FILE            the figures
  --plot FILE.svg        experts and weight bytes of a step as the batch grows
  --shards FILE          JSON: file, header_bytes, header_sha256, payload_bytes and number of tensors of each released file
  --write-headers DIR    the exact header of each of those files, as DIR/NAME.header (JSON without its 8-byte length)
  --help                 this text

Results replace their files, --write-headers those of the same names; neither the config nor each other, and DIR may hold no other
*.header. All is checked before the report is printed, and the report is printed before anything is written.

Status: 0, or 2 after one message on standard error. Then nothing is written, unless writing itself failed (a full disk): each file is
then whole or as it was.
)";
}

}  // namespace inspect

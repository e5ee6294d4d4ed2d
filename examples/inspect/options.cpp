// SPDX-License-Identifier: MIT
//
// A table of options, as in generate; what is no option is the config.
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "generate/numbers.hpp"

namespace inspect {

namespace {

using generate::refuse;
using Text = std::string_view;

struct Row {
  Text name;
  bool takes_value;
  void (*set)(Options&, Text name, Text value);
};

std::string quoted(Text text) {
  return "'" + std::string(text) + "'";
}

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

const Row kRows[] = {
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

const Row& row_of(Text name) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  if (row == std::end(kRows)) refuse("unknown option " + quoted(name) + "; --help lists them");
  return *row;
}

void set_config(Options& options, Text argument) {
  if (options.config) {
    refuse("unexpected argument " + quoted(argument) + "; the config is " + quoted(*options.config) + " already");
  }
  options.config = path("CONFIG", argument);
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  std::set<Text> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Text argument = arguments[i];
    if (argument.substr(0, 1) != "-") {
      set_config(options, argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const Row& row = row_of(argument.substr(0, equals));
    const std::string name(row.name);
    if (!given.insert(row.name).second) refuse(name + ": given twice");
    Text value;
    if (!row.takes_value) {
      if (equals != Text::npos) refuse(name + ": takes no value, got " + quoted(argument.substr(equals + 1)));
    } else if (equals != Text::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && arguments[i + 1].compare(0, 2, "--") != 0) {
      value = arguments[++i];
    } else {
      refuse(name + ": expected a value (" + name + "=VALUE for one that begins with --)");
    }
    row.set(options, row.name, value);
  }
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

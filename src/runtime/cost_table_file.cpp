// SPDX-License-Identifier: MIT
//
// The cost table's file. What a curve must satisfy is checked in one place, CostTable; here only that the text is of the format.
#include "dsv41/runtime/cost_table_file.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/files.hpp"
#include "files/file_bytes.hpp"
#include "files/strict_json.hpp"

namespace dsv41::runtime {
namespace {

using files::shown;
using nlohmann::json;

constexpr std::string_view kFormat = "dsv41-cost-table";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostPoints =
    4096;  // far beyond any list of captured sizes; bounds what a file makes us allocate
constexpr std::uint64_t kLimit = std::uint64_t{1} << 20;
constexpr std::array<std::string_view, 5> kKeys = {"format", "version", "graph_limit", "verify", "draft"};

class Reader {
 public:
  Reader(const json& root, std::string_view origin) : root_(root), origin_(origin) {
    if (!root.is_object()) fail(Errc::format, "the file", "an object", root);
    // The format first: of a file of another kind, its keys say nothing.
    if (!files::is_text(at("format"), kFormat)) {
      fail(Errc::format, "format", "\"" + std::string(kFormat) + "\"", at("format"));
    }
    if (whole("version", at("version")) != kVersion) {
      fail(Errc::unsupported, "version", std::to_string(kVersion), at("version"));
    }
    for (const auto& [key, value] : root.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
        fail(Errc::format, "key " + shown(key), "none of this name", value);
      }
    }
  }

  std::int64_t whole(std::string_view key) const { return whole(std::string(key), at(key)); }

  std::vector<CostPoint> curve(std::string_view key) const {
    const json& list = at(key);
    if (!list.is_array()) fail(Errc::format, std::string(key), "a list of [size, ms]", list);
    if (list.size() > kMostPoints) {
      throw Error(Errc::format, std::string(origin_) + ": " + std::string(key) + " has " + std::to_string(list.size()) +
                                    " points, expected at most " + std::to_string(kMostPoints));
    }
    std::vector<CostPoint> points;
    points.reserve(list.size());
    for (const json& pair : list) {
      const std::string where = std::string(key) + "[" + std::to_string(points.size()) + "]";
      if (!pair.is_array() || pair.size() != 2) fail(Errc::format, where, "[size, ms]", pair);
      if (!pair[1].is_number()) fail(Errc::format, where + "[1]", "a number of ms", pair[1]);
      points.push_back({whole(where + "[0]", pair[0]), pair[1].get<double>()});
    }
    return points;
  }

 private:
  [[noreturn]] void fail(Errc code, const std::string& what, const std::string& expected, const json& got) const {
    throw Error(code, std::string(origin_) + ": " + what + " is " + shown(got) + ", expected " + expected);
  }

  const json& at(std::string_view key) const {
    const auto found = root_.find(key);
    if (found == root_.end())
      throw Error(Errc::format, std::string(origin_) + ": has no key \"" + std::string(key) + "\"");
    return *found;
  }

  std::int64_t whole(const std::string& where, const json& value) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
    if (!fits) fail(Errc::format, where, "a whole number below 2^63", value);
    return value.get<std::int64_t>();
  }

  const json& root_;
  std::string_view origin_;
};

std::string curve_json(std::span<const CostPoint> points) {
  std::string text = "[";
  for (std::size_t i = 0; i < points.size(); ++i) {
    text += (i == 0 ? "\n    [" : ",\n    [") + std::to_string(points[i].size) + ", " + json(points[i].ms).dump() + "]";
  }
  return text + "\n  ]";
}

}  // namespace

CostTable parse_cost_table(std::string_view text, std::string_view origin) {
  const files::Document document = files::parse_strict(text, origin);
  const Reader reader(document.root(), origin);
  try {
    return CostTable(reader.curve("verify"), reader.whole("graph_limit"), reader.curve("draft"));
  } catch (const Error& e) {
    if (e.code() != Errc::invalid_argument) throw;
    throw Error(Errc::format, std::string(origin) + ": " + e.what());
  }
}

CostTable load_cost_table(const std::filesystem::path& path) {
  return parse_cost_table(files::read_text(path, kLimit), path.string());
}

std::string cost_table_json(const CostTable& table) {
  return "{\n  \"format\": \"" + std::string(kFormat) + "\",\n  \"version\": " + std::to_string(kVersion) +
         ",\n  \"graph_limit\": " + std::to_string(table.verify().graph_limit()) +
         ",\n  \"verify\": " + curve_json(table.verify().points()) +
         ",\n  \"draft\": " + curve_json(table.draft().points()) + "\n}\n";
}

void save_cost_table(const std::filesystem::path& path, const CostTable& table) {
  for (const CostCurve* curve : {&table.verify(), &table.draft()}) {
    if (curve->points().size() <= kMostPoints) continue;
    throw Error(Errc::invalid_argument, "save_cost_table: a curve has " + std::to_string(curve->points().size()) +
                                            " points, expected at most " + std::to_string(kMostPoints));
  }
  const std::string text = cost_table_json(table);
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace dsv41::runtime

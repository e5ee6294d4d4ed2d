// SPDX-License-Identifier: MIT
//
// Index, single file or numbered shards; who holds which tensor is settled here, once.
#include "shard_set.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "dsv41/core/error.hpp"
#include "files/file_bytes.hpp"
#include "files/strict_json.hpp"

namespace dsv41::runtime {
namespace {

using files::shown;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndex = 100'000'000;  // the release's has about 10 MB
constexpr std::size_t kListed = 8;                // names in a message

/// A plain file name: nothing in it can lead out of the model's folder.
bool plain_name(std::string_view name) {
  return !name.empty() && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
         name.find("..") == std::string_view::npos && name != ".";
}

/// "model-00002-of-00048.safetensors" -> {2, 48}; {0, 0} for any other name.
std::pair<int, int> shard_number(const std::string& name) {
  constexpr std::string_view kForm = "model-00000-of-00000.safetensors";
  constexpr std::size_t kFirst = 6, kSecond = 15, kDigits = 5;
  if (name.size() != kForm.size()) return {0, 0};
  int numbers[2] = {0, 0};
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool first = i >= kFirst && i < kFirst + kDigits, second = i >= kSecond && i < kSecond + kDigits;
    if (!first && !second) {
      if (name[i] != kForm[i]) return {0, 0};
      continue;
    }
    if (name[i] < '0' || name[i] > '9') return {0, 0};
    numbers[second] = numbers[second] * 10 + (name[i] - '0');
  }
  return {numbers[0], numbers[1]};
}

/// Paths of a complete set of numbered shards, in order.
std::vector<fs::path> numbered_shards(const fs::path& folder) {
  std::vector<std::string> names;
  int total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto [number, count] = shard_number(name);
    if (count == 0) continue;
    if (total != 0 && count != total) {
      throw Error(Errc::format, folder.string() + ": shards of several sets (" + name + " beside sets of " +
                                    std::to_string(total) +
                                    "), and no model.safetensors.index.json to tell which counts");
    }
    total = count;
    if (number >= 1 && number <= count) names.push_back(name);
  }
  if (error) throw Error(Errc::io, folder.string() + ": cannot list: " + error.message());
  if (names.empty()) {
    throw Error(Errc::io,
                folder.string() + ": no model.safetensors.index.json, no model.safetensors and no numbered shards");
  }
  if (static_cast<int>(names.size()) != total) {
    throw Error(Errc::io, folder.string() + ": " + std::to_string(names.size()) + " of " + std::to_string(total) +
                              " shards are there, and no model.safetensors.index.json");
  }
  std::sort(names.begin(), names.end());
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(folder / name);
  return paths;
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string s;
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) s += (i ? ", " : "") + names[i];
  if (names.size() > kListed) s += " and " + std::to_string(names.size() - kListed) + " more";
  return s;
}

ShardIndex parse_index(std::string_view text, std::string_view origin) {
  const files::Document document = files::parse_strict(text, origin);
  const json& root = document.root();
  const json* map = nullptr;
  if (root.is_object()) {
    const auto at = root.find("weight_map");
    if (at != root.end() && at->is_object()) map = &*at;
  }
  if (map == nullptr)
    throw Error(Errc::format, std::string(origin) + ": no object weight_map, expected tensor names with their shards");
  ShardIndex index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !plain_name(shard.get_ref<const std::string&>())) {
      throw Error(Errc::format, std::string(origin) + ": tensor " + shown(tensor) + " is in " + shown(shard) +
                                    ", expected the name of a file in the same folder");
    }
    index.shards.push_back(shard.get<std::string>());
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  for (const auto& [tensor, shard] : map->items()) {
    const auto at = std::lower_bound(index.shards.begin(), index.shards.end(), shard.get_ref<const std::string&>());
    index.positions.emplace_back(tensor, static_cast<std::size_t>(at - index.shards.begin()));
  }
  std::sort(index.positions.begin(), index.positions.end());
  return index;
}

ShardSet ShardSet::open(const fs::path& folder, Access access) {
  ShardSet set;
  set.folder_ = folder;
  const fs::path index_path = folder / "model.safetensors.index.json";
  if (files::present(index_path)) {
    const ShardIndex index = parse_index(files::read_text(index_path, kMaxIndex), index_path.string());
    std::vector<std::string> missing;
    for (const std::string& shard : index.shards) {
      if (!files::present(folder / shard)) missing.push_back(shard);
    }
    if (!missing.empty()) throw Error(Errc::io, index_path.string() + ": missing shards: " + listed(missing));
    for (const std::string& shard : index.shards) set.files_.push_back(SafetensorsFile::open(folder / shard, access));
    set.take(index, index_path.string());
    return set;
  }
  const fs::path single = folder / "model.safetensors";
  const auto paths = files::present(single) ? std::vector<fs::path>{single} : numbered_shards(folder);
  for (const fs::path& path : paths) set.files_.push_back(SafetensorsFile::open(path, access));
  set.take_all();
  return set;
}

void ShardSet::take(const ShardIndex& index, std::string_view origin) {
  std::vector<std::string> missing;
  for (const auto& [name, shard] : index.positions) {
    const SafetensorsFile& file = files_[shard];
    const TensorInfo* tensor = file.find(name);
    if (tensor == nullptr) {
      missing.push_back(name + " (" + index.shards[shard] + ")");
    } else {
      tensors_.push_back({tensor->name, {tensor, &file}});
    }
  }
  if (!missing.empty())
    throw Error(Errc::format, std::string(origin) + ": tensors that are not in their shard: " + listed(missing));
}

void ShardSet::take_all() {
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) tensors_.push_back({tensor.name, {&tensor, &file}});
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  const auto same = [](const Entry& a, const Entry& b) { return a.name == b.name; };
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(), same);
  if (twice != tensors_.end()) {
    throw Error(Errc::format, twice[1].at.file->origin() + ": tensor " + shown(std::string(twice->name)) + " is in " +
                                  twice[0].at.file->origin() +
                                  " too, and no model.safetensors.index.json tells which counts");
  }
}

Located ShardSet::find(std::string_view name) const noexcept {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.name < n; });
  return at != tensors_.end() && at->name == name ? at->at : Located{};
}

std::string ShardSet::examples() const {
  std::vector<std::string> names;
  for (const Entry& e : tensors_) names.push_back(std::string(e.name));
  return listed(names);
}

}  // namespace dsv41::runtime

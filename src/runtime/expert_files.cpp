// SPDX-License-Identifier: MIT
//
// In released files an expert is two runs of bytes: its three matrices follow each other, and so do their scales.
#include "expert_files.hpp"

#include <algorithm>
#include <utility>

#include "dsv41/runtime/inventory.hpp"
#include "files/file_bytes.hpp"

namespace dsv41::runtime {

using files::DirectFile;

ExpertFiles::ExpertFiles(const ShardSet& shards, const ExpertLists& lists) {
  std::size_t count = 0;
  for (const std::span<const ExpertWeights> list : lists) count += list.size();
  experts_.reserve(count);
  for (const std::span<const ExpertWeights> list : lists) {
    for (const ExpertWeights& views : list) {
      Expert& e = experts_.emplace_back();
      e.views = &views;
      locate(shards, e);
    }
  }
}

std::int32_t ExpertFiles::file_number(const SafetensorsFile& shard) {
  const auto same = [&](const File& f) { return f.shard == &shard; };
  auto at = std::find_if(files_.rbegin(), files_.rend(), same);  // an expert's file is mostly that of the one before
  if (at == files_.rend()) {
    files_.push_back({&shard, std::make_unique<DirectFile>(shard.origin(), shard.file()->id())});
    at = files_.rbegin();
  }
  return static_cast<std::int32_t>(files_.rend() - at) - 1;
}

void ExpertFiles::locate(const ShardSet& shards, Expert& e) {
  const auto add = [&](std::string_view name, std::size_t kind) {
    const Located at = shards.find(name);
    e.parts[e.count++] = {.tensor = at.tensor,
                          .file = file_number(*at.file),
                          .offset = static_cast<std::uint64_t>(at.tensor->data - at.file->file()->bytes().data()),
                          .kind = kind};
  };
  std::size_t kind = 0;
  for (const Matrix* m : {&e.views->w1, &e.views->w2, &e.views->w3}) {
    add(m->name, kind);
    if (m->scales != nullptr) add(scale_name(m->name), kind + 1);
    kind += 2;
  }
  std::sort(e.parts.begin(), e.parts.begin() + static_cast<std::ptrdiff_t>(e.count),
            [](const Part& a, const Part& b) { return std::pair(a.file, a.offset) < std::pair(b.file, b.offset); });
  std::size_t bytes = 0;
  for (std::size_t first = 0, end = 0, run = 0; first < e.count; first = end) {
    end = run_end(e, first, run);
    const std::uint64_t offset = e.parts[first].offset;
    for (std::size_t p = first; p < end; ++p)
      e.parts[p].at = bytes + static_cast<std::size_t>(offset % DirectFile::kBlock + e.parts[p].offset - offset);
    bytes += DirectFile::blocks(offset, run);
  }
  slot_bytes_ = std::max(slot_bytes_, bytes);
}

/// One past the last of the parts that follow each other in a file from `first` on; `bytes` that they have together.
std::size_t ExpertFiles::run_end(const Expert& e, std::size_t first, std::size_t& bytes) noexcept {
  const Part& begin = e.parts[first];
  bytes = begin.tensor->bytes;
  std::size_t end = first + 1;
  for (; end < e.count && e.parts[end].file == begin.file && e.parts[end].offset == begin.offset + bytes; ++end)
    bytes += e.parts[end].tensor->bytes;
  return end;
}

bool ExpertFiles::is_direct() const noexcept {
  return std::all_of(files_.begin(), files_.end(), [](const File& f) { return f.file->is_direct(); });
}

ExpertFiles::Failure ExpertFiles::read(std::int32_t expert, std::byte* slot) const noexcept {
  const Expert& e = experts_[static_cast<std::size_t>(expert)];
  for (std::size_t first = 0, end = 0, bytes = 0; first < e.count; first = end) {
    end = run_end(e, first, bytes);
    const Part& p = e.parts[first];
    const files::ReadFailure failure = files_[static_cast<std::size_t>(p.file)].file->read(
        p.offset, bytes, slot + (p.at - p.offset % DirectFile::kBlock));
    if (!failure) continue;
    while (first + 1 < end && e.parts[first + 1].offset <= failure.at) ++first;
    return {.expert = expert, .part = first, .read = failure};
  }
  return {};
}

ExpertWeights ExpertFiles::in_slot(std::int32_t expert, const std::byte* slot) const noexcept {
  const Expert& e = experts_[static_cast<std::size_t>(expert)];
  ExpertWeights out = *e.views;
  Matrix* const matrices[] = {&out.w1, &out.w2, &out.w3};
  for (std::size_t p = 0; p < e.count; ++p) {
    Matrix& m = *matrices[e.parts[p].kind / 2];
    if (e.parts[p].kind % 2 == 0) {
      m.data = slot + e.parts[p].at;
    } else {
      m.scales = reinterpret_cast<const std::uint8_t*>(slot + e.parts[p].at);
    }
  }
  return out;
}

std::int64_t ExpertFiles::bytes(std::int32_t expert) const noexcept {
  const Expert& e = experts_[static_cast<std::size_t>(expert)];
  std::uint64_t sum = 0;
  for (std::size_t p = 0; p < e.count; ++p) sum += e.parts[p].tensor->bytes;
  return static_cast<std::int64_t>(sum);
}

std::string ExpertFiles::text(const Failure& failure) const {
  const Part& p = experts_[static_cast<std::size_t>(failure.expert)].parts[failure.part];
  return files_[static_cast<std::size_t>(p.file)].shard->origin() + ": tensor " + p.tensor->name +
         ": cannot read at byte " + std::to_string(failure.read.at) + ": " + files::reason(failure.read);
}

}  // namespace dsv41::runtime

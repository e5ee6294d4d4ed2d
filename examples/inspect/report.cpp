// SPDX-License-Identifier: MIT
//
// Figures for people: plain tables.
#include <algorithm>
#include <cstdio>

#include "dsv41/core/schedule.hpp"
#include "figures.hpp"

namespace inspect {

namespace {

using dsv41::LayerKind;

constexpr std::size_t kLabel = 30, kNumber = 22;

/// "763,205,315,794".
std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// "188.8 GiB".
std::string readable(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fixed(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string left(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string line(const std::string& label, const std::string& value, const std::string& note = "") {
  return "  " + left(label, kLabel) + right(value, kNumber) + (note.empty() ? "" : "  " + note) + "\n";
}

std::string bytes_line(const std::string& label, std::int64_t bytes, const std::string& note = "") {
  const std::string size = readable(static_cast<double>(bytes));
  return line(label, grouped(bytes) + " B", note.empty() ? size : size + ", " + note);
}

std::string heading(const std::string& text) {
  return "\n" + text + "\n";
}

std::string shape(const dsv41::ModelConfig& c) {
  std::int64_t kinds[4] = {};
  for (const auto& layer : make_schedule(c).layers) ++kinds[static_cast<int>(layer.kind)];
  const auto of = [&](LayerKind kind) { return std::to_string(kinds[static_cast<int>(kind)]); };
  return std::to_string(c.layers) + " layers (" + of(LayerKind::window) + " window, " + of(LayerKind::full) +
         " full, " + of(LayerKind::reindex) + " reindex, " + of(LayerKind::reuse) + " reuse), dim " +
         std::to_string(c.dim) + ", " + std::to_string(c.hc) + " streams, " + std::to_string(c.experts) +
         " experts of which a token visits " + std::to_string(c.topk) + " and " + std::to_string(c.shared_experts) +
         " shared\n";
}

/// Empty when nothing is missing.
std::string vision_note(const Figures& f) {
  if (f.missing_vision_key.empty()) return "";
  return "The vision tower is in none of these figures: the config does not describe it, " + f.missing_vision_key +
         " is absent.\n";
}

std::string parameters(const Figures& f) {
  const auto& s = f.sizes;
  return heading("parameters (scales are not counted)") + line("one routed expert", grouped(s.expert_params)) +
         line("routed experts", grouped(s.routed_params)) + line("shared experts", grouped(s.shared_params)) +
         line("Engram tables", grouped(s.engram_params)) +
         line("Engram projection, one module", grouped(s.engram_projection_params)) +
         line("other", grouped(s.other_params), "drafter and vision too") + line("all", grouped(s.total_params)) +
         line("active per decoded token", grouped(s.active_decode_params)) +
         line("active per prompt token", grouped(s.active_prefill_params), "where prefill skips the decoder half");
}

std::string parts(const Figures& f) {
  std::string out = heading("weights as released") + "  " + left("part", 16) + right("tensors", 9) +
                    right("parameters", 18) + right("bytes", 18) + right("", 12) + right("read by a step", 18) + "\n";
  for (const auto& part : f.sizes.parts) {
    out += "  " + left(std::string(part_name(part.part)), 16) + right(grouped(part.tensors), 9) +
           right(grouped(part.params), 18) + right(grouped(part.bytes), 18) +
           right(readable(static_cast<double>(part.bytes)), 12) +
           right(readable(part_step_bytes(f.config, f.sizes, part, f.batch)), 18) + "\n";
  }
  return out + "  " + left("all", 16) + right("", 9) + right(grouped(f.sizes.total_params), 18) +
         right(grouped(f.sizes.total_bytes), 18) + right(readable(static_cast<double>(f.sizes.total_bytes)), 12) + "\n";
}

std::string caches(const Figures& f) {
  const auto& s = f.sizes;
  const std::string rate =
      fixed(s.kv_bytes_per_token,
            s.kv_bytes_per_token == static_cast<double>(static_cast<std::int64_t>(s.kv_bytes_per_token)) ? 0 : 2);
  return heading("caches of one sequence") +
         line("KV per token", rate + " B",
              std::to_string(s.entry_bytes) + " B an entry, " + std::to_string(s.index_key_bytes) + " B an index key") +
         bytes_line("KV of " + grouped(f.context) + " tokens", f.kv_bytes) +
         bytes_line("window rings", s.window_bytes, std::to_string(s.window_row_bytes) + " B a row") +
         bytes_line("window rings of the drafter", s.draft_window_bytes) + bytes_line("open groups", s.carry_bytes);
}

std::string traffic(const Figures& f) {
  const auto& s = f.sizes;
  return heading("traffic of one token") +
         line("one seam", grouped(s.seam_elements) + " values", "of " + grouped(s.seams) + " seams") +
         bytes_line("all seams, as bfloat16", 2 * s.seam_elements * s.seams) +
         bytes_line("Engram rows", s.engram_bytes_per_token);
}

std::string steps(const Figures& f) {
  std::string out = heading("weights that a step reads") + "  " + right("batch", 8) +
                    right("experts of " + std::to_string(f.config.experts), 18) + right("bytes", 14) +
                    right("bytes per token", 18) + "\n";
  for (const auto& step : f.steps) {
    out += "  " + right(std::to_string(step.batch), 8) + right(fixed(step.experts, 1), 18) +
           right(readable(step.bytes), 14) + right(readable(step.bytes / static_cast<double>(step.batch)), 18) + "\n";
  }
  return out;
}

std::string memory(const Figures& f) {
  if (!f.memory) return heading("--device-bytes and --host-bytes show where things would live");
  const auto& m = *f.memory;
  const auto row = [](const std::string& label, std::int64_t device, std::int64_t host, std::int64_t file) {
    std::string out = "  " + left(label, 16);
    for (const std::int64_t bytes : {device, host, file}) {
      out += right(bytes == 0 ? "-" : readable(static_cast<double>(bytes)), 14);
    }
    return out + "\n";
  };
  std::string out = heading("where things would live, most read first") + "  " + left("", 16) + right("device", 14) +
                    right("host", 14) + right("files", 14) + "\n";
  if (m.caches_fit) {
    out += row("caches", m.caches_on_device ? m.cache_bytes : 0, m.caches_on_device ? 0 : m.cache_bytes, 0);
  } else {
    out += "  caches: " + readable(static_cast<double>(m.cache_bytes)) +
           " fit nowhere; take a smaller --context or --batch\n";
  }
  for (const auto& part : m.parts) {
    out += row(std::string(part_name(part.part)), part.device_bytes, part.host_bytes, part.file_bytes);
  }
  return out + row("all", m.device_bytes, m.host_bytes, m.file_bytes);
}

}  // namespace

std::string report(const Figures& f) {
  return f.name + "\n" + shape(f.config) + vision_note(f) + parameters(f) + parts(f) + caches(f) + traffic(f) +
         steps(f) + memory(f);
}

}  // namespace inspect

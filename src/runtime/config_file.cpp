// SPDX-License-Identifier: MIT
//
// One table for both spellings of config.json: each row names the key of the composite form, the key of the flat form
// where it differs, when it must be there, and where its value goes. Keys that no row names are ignored. Source:
// checkpoint.md 1, case B85.
#include "dsv41/runtime/config_file.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "dsv41/core/config_rules.hpp"
#include "files/strict_json.hpp"

namespace dsv41::runtime {
namespace {

using files::shown;
using nlohmann::json;
using C = ModelConfig;
using Ints32 = std::vector<std::int32_t>;
using Ints64 = std::vector<std::int64_t>;
using Slot = std::variant<std::int64_t*, std::int32_t*, double*, bool*, ScoreFunction*, Ints32*, Ints64*>;

/// When a key has no default.
enum class Need { always, never, sources, candidates, engram, draft };

struct Row {
  const char* key;
  const char* flat;  // null where both forms agree
  Need need;
  Slot (*slot)(ModelConfig&);
};

constexpr std::int64_t kReleasedPositions = 1048576;  // the flat form does not carry it

// clang-format off
constexpr Row kRows[] = {
    // Top level of the composite form.
    {"bos_token_id", nullptr, Need::never, [](C& c) -> Slot { return &c.bos; }},
    {"eos_token_id", nullptr, Need::never, [](C& c) -> Slot { return &c.eos; }},
    {"pad_token_id", nullptr, Need::never, [](C& c) -> Slot { return &c.pad; }},
    {"image_token_id", nullptr, Need::never, [](C& c) -> Slot { return &c.image_token; }},
    // text_config.
    {"vocab_size", nullptr, Need::always, [](C& c) -> Slot { return &c.vocab; }},
    {"hidden_size", "dim", Need::always, [](C& c) -> Slot { return &c.dim; }},
    {"num_hidden_layers", "n_layers", Need::always, [](C& c) -> Slot { return &c.layers; }},
    {"max_position_embeddings", nullptr, Need::never, [](C& c) -> Slot { return &c.max_positions; }},
    {"rms_norm_eps", "norm_eps", Need::always, [](C& c) -> Slot { return &c.norm_eps; }},
    {"num_attention_heads", "n_heads", Need::always, [](C& c) -> Slot { return &c.heads; }},
    {"head_dim", nullptr, Need::always, [](C& c) -> Slot { return &c.head_dim; }},
    {"qk_rope_head_dim", "rope_head_dim", Need::always, [](C& c) -> Slot { return &c.rope_dim; }},
    {"q_lora_rank", nullptr, Need::always, [](C& c) -> Slot { return &c.q_rank; }},
    {"o_lora_rank", nullptr, Need::always, [](C& c) -> Slot { return &c.o_rank; }},
    {"o_groups", nullptr, Need::always, [](C& c) -> Slot { return &c.o_groups; }},
    {"sliding_window", "window_size", Need::always, [](C& c) -> Slot { return &c.window; }},
    {"rope_theta", nullptr, Need::always, [](C& c) -> Slot { return &c.rope_theta; }},
    {"compress_rope_theta", nullptr, Need::sources, [](C& c) -> Slot { return &c.compress_theta; }},
    {"compress_ratios", nullptr, Need::always, [](C& c) -> Slot { return &c.ratios; }},
    {"kv_source_layer_ids", "kv_source_layers", Need::always, [](C& c) -> Slot { return &c.kv_sources; }},
    {"index_source_layer_ids", "index_source_layers", Need::always, [](C& c) -> Slot { return &c.index_sources; }},
    {"candidate_source_layer_id", "candidate_source_layer", Need::never,
     [](C& c) -> Slot { return &c.candidate_source; }},
    {"index_n_heads", nullptr, Need::sources, [](C& c) -> Slot { return &c.index_heads; }},
    {"index_head_dim", nullptr, Need::sources, [](C& c) -> Slot { return &c.index_dim; }},
    {"index_topk", nullptr, Need::sources, [](C& c) -> Slot { return &c.index_topk; }},
    {"candidate_topk_blocks", nullptr, Need::candidates, [](C& c) -> Slot { return &c.candidate_blocks; }},
    {"candidate_block_size", nullptr, Need::candidates, [](C& c) -> Slot { return &c.candidate_block; }},
    {"moe_intermediate_size", "moe_inter_dim", Need::always, [](C& c) -> Slot { return &c.ff; }},
    {"n_routed_experts", nullptr, Need::always, [](C& c) -> Slot { return &c.experts; }},
    {"n_shared_experts", nullptr, Need::never, [](C& c) -> Slot { return &c.shared_experts; }},
    {"num_experts_per_tok", "n_activated_experts", Need::always, [](C& c) -> Slot { return &c.topk; }},
    {"scoring_func", "score_func", Need::always, [](C& c) -> Slot { return &c.score; }},
    {"norm_topk_prob", nullptr, Need::never, [](C& c) -> Slot { return &c.norm_topk; }},
    {"routed_scaling_factor", "route_scale", Need::always, [](C& c) -> Slot { return &c.route_scale; }},
    {"gate_temp", nullptr, Need::never, [](C& c) -> Slot { return &c.gate_temp; }},
    {"swiglu_limit", nullptr, Need::always, [](C& c) -> Slot { return &c.swiglu_limit; }},
    {"hc_mult", nullptr, Need::always, [](C& c) -> Slot { return &c.hc; }},
    {"hc_sinkhorn_iters", nullptr, Need::always, [](C& c) -> Slot { return &c.hc_iters; }},
    {"hc_eps", nullptr, Need::always, [](C& c) -> Slot { return &c.hc_eps; }},
    {"engram_layer_ids", nullptr, Need::never, [](C& c) -> Slot { return &c.engram.layers; }},
    {"engram_num_embeddings", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.rows; }},
    {"engram_max_ngram_size", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.max_ngram; }},
    {"engram_vocab_size", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.vocab; }},
    {"engram_n_heads", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.heads; }},
    {"engram_head_dim", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.dim; }},
    {"engram_pad_token_id", "engram_pad_id", Need::never, [](C& c) -> Slot { return &c.engram.pad; }},
    {"engram_compressed_vocab_size", nullptr, Need::engram, [](C& c) -> Slot { return &c.engram.compressed_vocab; }},
    {"num_nextn_predict_layers", "n_mtp_layers", Need::never, [](C& c) -> Slot { return &c.draft.stages; }},
    {"dspark_block_size", nullptr, Need::draft, [](C& c) -> Slot { return &c.draft.block; }},
    {"dspark_noise_token_id", nullptr, Need::draft, [](C& c) -> Slot { return &c.draft.noise_token; }},
    {"dspark_target_layer_ids", nullptr, Need::draft, [](C& c) -> Slot { return &c.draft.tap_layers; }},
    {"dspark_markov_rank", nullptr, Need::draft, [](C& c) -> Slot { return &c.draft.markov_rank; }},
    {"dspark_n_routed_experts", nullptr, Need::draft, [](C& c) -> Slot { return &c.draft.experts; }},
    {"dspark_num_experts_per_tok", "dspark_n_activated_experts", Need::draft,
     [](C& c) -> Slot { return &c.draft.topk; }},
};

/// The YaRN keys: in rope_scaling under the first name, flat under the second.
struct YarnRow {
  const char* key;
  const char* flat;
  bool required;
  Slot (*slot)(C&);
};
constexpr YarnRow kYarnRows[] = {
    {"factor", "rope_factor", true, [](C& c) -> Slot { return &c.yarn.factor; }},
    {"beta_fast", "beta_fast", false, [](C& c) -> Slot { return &c.yarn.beta_fast; }},
    {"beta_slow", "beta_slow", false, [](C& c) -> Slot { return &c.yarn.beta_slow; }},
    {"original_max_position_embeddings", "original_seq_len", true,
     [](C& c) -> Slot { return &c.yarn.original_positions; }},
};
/// The vision keys: in vision_config under the first name, flat under the second.
struct VisionRow {
  const char* key;
  const char* flat;
  Slot (*slot)(C&);
};
constexpr VisionRow kVisionRows[] = {
    {"num_hidden_layers", "vision_n_layers", [](C& c) -> Slot { return &c.vision.layers; }},
    {"hidden_size", "vision_dim", [](C& c) -> Slot { return &c.vision.dim; }},
    {"intermediate_size", "vision_inter_dim", [](C& c) -> Slot { return &c.vision.ff; }},
    {"patch_size", "vision_patch_size", [](C& c) -> Slot { return &c.vision.patch; }},
    {"downsample_ratio", "vision_downsample_ratio", [](C& c) -> Slot { return &c.vision.downsample; }},
};
// clang-format on

/// Keys of the model's family that have one implemented value. Absent or null is that value.
struct Fixed {
  const char* key;
  const char* value;  // JSON
};
constexpr Fixed kFixed[] = {
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {"tie_word_embeddings", "false"},
    {"num_key_value_heads", "1"},
    {"n_group", "1"},
    {"topk_group", "1"},
    {"topk_method", "\"noaux_tc\""},
    {"num_hash_layers", "0"},
    {"n_hash_layers", "0"},
    {"rope_parameters", "null"},  // another spelling of rope_scaling; ignoring it would drop YaRN in silence
};
constexpr Fixed kFixedQuantisation[] = {
    {"quant_method", "\"fp8\""}, {"weight_block_size", "[32, 32]"}, {"scale_fmt", "\"ue8m0\""}};

struct ScoreName {
  const char* name;
  ScoreFunction function;
};
constexpr ScoreName kScores[] = {{"sqrtsoftplus", ScoreFunction::sqrt_softplus},
                                 {"sigmoid", ScoreFunction::sigmoid},
                                 {"softmax", ScoreFunction::softmax}};

[[noreturn]] void refuse(Errc code, const std::string& key, const std::string& found, const std::string& expected) {
  throw Error(code, "config: " + key + " is " + found + ", expected " + expected);
}

void read(const std::string& key, const json& value, std::int64_t* out, std::int64_t low, std::int64_t high) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits) refuse(Errc::format, key, shown(value), "an integer");
  *out = value.get<std::int64_t>();
  if (*out < low || *out > high) {
    refuse(Errc::format, key, shown(value), "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

/// Puts a JSON value where a row wants it, or says why not.
struct Reader {
  std::string key;
  const json& value;

  void operator()(std::int64_t* out) const { integer(value, out); }
  void operator()(std::int32_t* out) const { integer(value, out); }

  void operator()(double* out) const {
    if (!value.is_number()) refuse(Errc::format, key, shown(value), "a number");
    *out = value.get<double>();
  }

  void operator()(bool* out) const {
    if (!value.is_boolean()) refuse(Errc::format, key, shown(value), "true or false");
    *out = value.get<bool>();
  }

  void operator()(ScoreFunction* out) const {
    for (const ScoreName& s : kScores) {
      if (files::is_text(value, s.name)) {
        *out = s.function;
        return;
      }
    }
    refuse(Errc::unsupported, key, shown(value), "sqrtsoftplus, sigmoid or softmax");
  }

  template <class T>
  void operator()(std::vector<T>* out) const {
    if (!value.is_array()) refuse(Errc::format, key, shown(value), "a list of integers");
    out->clear();
    for (const json& entry : value) integer(entry, &out->emplace_back());
  }

 private:
  template <class T>
  void integer(const json& from, T* out) const {
    std::int64_t wide = 0;
    read(key, from, &wide, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    *out = static_cast<T>(wide);
  }
};

/// The objects that keys are looked up in: text_config before the top level; one and the same in the flat form.
struct Source {
  const json& top;
  const json& text;

  /// The value under either spelling; null when absent (or null in the file). Two spellings at once are a
  /// contradiction.
  const json* find(const char* key, const char* flat) const {
    const json* found = nullptr;
    for (const char* name : {key, flat}) {
      if (name == nullptr) continue;
      const json* value = find(name);
      if (value == nullptr) continue;
      if (found != nullptr && *found != *value) {
        refuse(Errc::format, flat, shown(*value), std::string("the value of ") + key + ", " + shown(*found));
      }
      found = value;
    }
    return found;
  }

  const json* find(const char* name) const {
    for (const json* object : {&text, &top}) {
      const auto at = object->find(name);
      if (at != object->end() && !at->is_null()) return &*at;
    }
    return nullptr;
  }
};

bool needed(Need need, const ModelConfig& c) {
  switch (need) {
    case Need::always: return true;
    case Need::never: return false;
    case Need::sources: return !c.kv_sources.empty() || !c.index_sources.empty();
    case Need::candidates: return c.candidate_source >= 0;
    case Need::engram: return !c.engram.layers.empty();
    case Need::draft: return c.draft.stages > 0;
  }
  return true;
}

void check_fixed(const Fixed& fixed, const json* value, const std::string& prefix) {
  if (value != nullptr && !value->is_null() && *value != files::Document(json::parse(fixed.value)).root()) {
    refuse(Errc::unsupported, prefix + fixed.key, shown(*value), fixed.value);
  }
}

/// Exact names: "deepseek_v41" begins with "deepseek_v4", which is another model (case B85).
void check_model_type(const json& object, const char* where, const char* expected, bool required) {
  const auto at = object.find("model_type");
  if (at == object.end() && !required) return;
  const std::string found = at == object.end() ? "absent" : shown(*at);
  if (at == object.end() || !files::is_text(*at, expected)) refuse(Errc::unsupported, where, found, expected);
}

void check_family(const json& root, const Source& source, bool composite) {
  if (composite) {
    check_model_type(root, "model_type", "deepseek_v41", true);
    check_model_type(source.text, "text_config.model_type", "deepseek_v41_text", false);
  } else if (const auto at = root.find("model_type"); at == root.end() || !files::is_text(*at, "deepseek_v41_text")) {
    check_model_type(root, "model_type", "deepseek_v41", false);
  }
  for (const Fixed& fixed : kFixed) check_fixed(fixed, source.find(fixed.key), "");
  const json* quantisation = source.find("quantization_config");
  if (quantisation == nullptr) return;
  if (!quantisation->is_object()) refuse(Errc::format, "quantization_config", shown(*quantisation), "an object");
  for (const Fixed& fixed : kFixedQuantisation) {
    const auto at = quantisation->find(fixed.key);
    check_fixed(fixed, at == quantisation->end() ? nullptr : &*at, "quantization_config.");
  }
}

void read_yarn(const Source& source, ModelConfig& c) {
  const json* scaling = source.find("rope_scaling");
  const bool nested = scaling != nullptr;
  const json* object = &source.text;
  if (nested) {
    if (!scaling->is_object()) refuse(Errc::format, "rope_scaling", shown(*scaling), "an object or null");
    object = scaling;
    auto type = scaling->find("rope_type");
    if (type == scaling->end()) type = scaling->find("type");
    if (type == scaling->end()) refuse(Errc::format, "rope_scaling.rope_type", "absent", "yarn or default");
    if (files::is_text(*type, "default")) return;
    if (!files::is_text(*type, "yarn"))
      refuse(Errc::unsupported, "rope_scaling.rope_type", shown(*type), "yarn or default");
  } else if (source.find("original_seq_len") == nullptr) {
    return;
  }
  for (const YarnRow& row : kYarnRows) {
    const std::string key = nested ? std::string("rope_scaling.") + row.key : row.flat;
    const auto at = object->find(nested ? row.key : row.flat);
    if (at != object->end() && !at->is_null()) {
      std::visit(Reader{key, *at}, row.slot(c));
    } else if (row.required) {
      refuse(Errc::format, key, "absent", "a number");
    }
  }
  if (nested && c.yarn.original_positions == 0) {
    refuse(Errc::format, "rope_scaling.original_max_position_embeddings", "0", "1 or more");
  }
  if (c.yarn.original_positions == 0) c.yarn = YarnConfig{};
}

/// All of the tower's sizes or none: the text model runs without them, so a config that lacks one is not refused, but noted.
void read_vision(const Source& source, bool composite, ModelConfig& c, ConfigNotes& notes) {
  const json* object = composite ? source.find("vision_config") : &source.text;
  if (object == nullptr) return;
  if (!object->is_object()) refuse(Errc::format, "vision_config", shown(*object), "an object or null");
  bool described = composite;  // the flat form has no object that says so
  std::string missing;
  for (const VisionRow& row : kVisionRows) {
    const std::string key = composite ? std::string("vision_config.") + row.key : row.flat;
    const auto at = object->find(composite ? row.key : row.flat);
    if (at != object->end() && !at->is_null()) {
      std::visit(Reader{key, *at}, row.slot(c));
      described = true;
    } else if (missing.empty()) {
      missing = key;
    }
  }
  if (missing.empty()) return;
  c.vision = VisionConfig{};
  if (described) notes.missing_vision_key = missing;
}

/// Draft stages may have entries of their own in compress_ratios; they have no compressor, so these are 0
/// (architecture.md 1).
void cut_ratios(ModelConfig& c) {
  const std::int64_t extra = static_cast<std::int64_t>(c.ratios.size()) - c.layers;
  if (c.layers < 1 || extra <= 0) return;  // validate() tells
  const auto drafts = c.ratios.begin() + c.layers;
  if (extra > c.draft.stages || std::any_of(drafts, c.ratios.end(), [](std::int32_t r) { return r != 0; })) {
    refuse(Errc::format, "compress_ratios", config_rules::text(c.ratios),
           std::to_string(c.layers) + " entries (num_hidden_layers) and at most " + std::to_string(c.draft.stages) +
               " zeros after them (num_nextn_predict_layers)");
  }
  c.ratios.erase(drafts, c.ratios.end());
}

/// Values of absent keys, and no leftovers of mechanisms that are off.
void settle(const Source& source, ModelConfig& c) {
  if (source.find("candidate_source_layer_id", "candidate_source_layer") == nullptr) {
    c.candidate_source = c.kv_sources.empty() ? -1 : c.kv_sources.back();
  }
  c.candidate_source = std::max(c.candidate_source, -1);
  for (const Row& row : kRows) {
    if (needed(row.need, c) && source.find(row.key, row.flat) == nullptr) {
      const std::string also = row.flat == nullptr ? "" : std::string(" (or ") + row.flat + ")";
      refuse(Errc::format, row.key + also, "absent", "a value: it has no default");
    }
  }
  cut_ratios(c);
  if (c.engram.layers.empty()) c.engram = EngramConfig{};
  if (c.draft.stages == 0) c.draft = DraftConfig{};
}

ModelConfig read_config(const json& root, ConfigNotes& notes) {
  if (!root.is_object()) refuse(Errc::format, "the file", shown(root), "a JSON object");
  const auto nested = root.find("text_config");
  const bool composite = nested != root.end();
  if (composite && !nested->is_object()) refuse(Errc::format, "text_config", shown(*nested), "an object");
  const Source source{root, composite ? *nested : root};
  check_family(root, source, composite);
  ModelConfig c;
  c.max_positions = kReleasedPositions;
  c.shared_experts = 1;
  c.engram.pad = 2;
  for (const Row& row : kRows) {
    const json* value = source.find(row.key, row.flat);
    if (value != nullptr) std::visit(Reader{row.key, *value}, row.slot(c));
  }
  read_yarn(source, c);
  read_vision(source, composite, c, notes);
  settle(source, c);
  validate(c);
  return c;
}

}  // namespace

ModelConfig parse_config(std::string_view text, std::string_view origin, ConfigNotes* notes) {
  const files::Document document = files::parse_strict(text, origin);
  const json& root = document.root();
  try {
    ConfigNotes found;
    ModelConfig config = read_config(root, found);
    if (notes != nullptr) *notes = std::move(found);
    return config;
  } catch (const Error& e) {
    throw Error(e.code(), std::string(origin) + ": " + e.what());
  }
}

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// inspect from outside: the published figures of the release (architecture.md 10) in its JSON, the published headers (checkpoint.md 2.3) as
// files, any other config, and refusals that write nothing.
#include <cmath>
#include <nlohmann/json.hpp>

#include "files/sha256.hpp"
#include "plot/svg.hpp"
#include "run_generate.hpp"

using namespace dsv41::test;
using nlohmann::json;

namespace {

using Words = std::vector<std::string>;

Run inspect(const std::vector<std::string>& arguments, const std::vector<int>& closed = {}) {
  return run_program(DSV41_INSPECT_BIN, arguments, "", closed);
}

/// The JSON of a run that succeeds.
json figures(std::vector<std::string> arguments) {
  const TempFolder folder;
  arguments.insert(arguments.end(), {"--json", (folder / "f").string()});
  const Run run = inspect(arguments);
  INFO(run.err);
  REQUIRE(run.status == 0);
  CHECK(run.err.empty());
  CHECK_FALSE(run.out.empty());
  return json::parse(read_file(folder / "f"));
}

/// The step of a batch.
json step(const json& figures, std::int64_t batch) {
  for (const json& entry : figures["experts_touched"]) {
    if (entry["batch"] == batch) return entry;
  }
  throw std::runtime_error("no batch " + std::to_string(batch));
}

/// One message with these words, nothing printed, and of the four results that are asked for beside it none made.
void check_refused(std::vector<std::string> arguments, const Words& words) {
  const TempFolder folder;
  for (const char* option : {"--json", "--plot", "--shards", "--write-headers"}) {
    if (std::count(arguments.begin(), arguments.end(), option) == 0) {
      arguments.insert(arguments.end(), {option, (folder / option).string()});
    }
  }
  const Run run = inspect(arguments);
  INFO("status " << run.status << ", message: " << run.err);
  CHECK(run.refused("inspect"));
  CHECK(run.out.empty());
  for (const std::string& word : words) {
    INFO("must say: " << word);
    CHECK(run.says(word));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace

TEST_CASE("without a config: the release's published figures", "[inspect]") {
  const json f = figures({});
  CHECK(f["expert_params"] == 35389440);
  CHECK(f["routed_params"] == 543581798400);
  CHECK(f["shared_params"] == 1415577600);
  CHECK(f["engram_params"] == 196613849600);
  CHECK(f["engram_projection_params"] == 157286400);
  CHECK(f["total_params"] == 763205315794);
  CHECK(f["active_decode_params"] == 16130606192);
  CHECK(f["active_prefill_params"] == 7895585592);
  CHECK(f["engram_bytes"] == 202758032400);
  CHECK(f["kv_bytes_per_token"] == 890);
  CHECK(f["kv_bytes"] == 933232640);
  CHECK(f["window_bytes"] == 2703360);
  CHECK(f["seam_elements"] == 51200);
  CHECK(f["seams"] == 80);
  CHECK(f["engram_bytes_per_token"] == 12672);
  CHECK(step(f, 64)["experts"].get<double>() == Approx(243.8).margin(0.05));
  CHECK(step(f, 64)["bytes"].get<double>() == Approx(40.0 * 18800640 * 384 * (1 - std::pow(1 - 6.0 / 384, 64))));
  CHECK(step(f, 64)["step_bytes"].get<double>() == Approx(191902201418.35));
  CHECK(step(f, 1)["experts"].get<double>() == Approx(6));
  CHECK(f["config"] == "DeepSeek-V4.1-Flash as released");
  CHECK(f["vision"] == "counted");
  CHECK_FALSE(f.contains("memory"));
}

TEST_CASE("the released config.json, composite or flat, gives the same figures as none", "[inspect]") {
  json none = figures({});
  for (const char* file : {"release/config.json", "release/inference_config.json", "release"}) {
    json f = figures({golden(file)});
    CHECK(f["config"].get<std::string>().find(golden("release")) == 0);
    f["config"] = none["config"];
    CHECK(f == none);
  }
}

TEST_CASE("the report names the published figures", "[inspect]") {
  const Run run = inspect({"--device-bytes", "139GiB", "--host-bytes=256GiB"});
  CHECK(run.status == 0);
  for (const char* text : {"35,389,440", "543,581,798,400", "763,205,315,794", "188.8 GiB", "890 B", "51,200", "of 80",
                           "243.8", "where things would live", "engram_table"}) {
    INFO(text);
    CHECK(run.out.find(text) != std::string::npos);
  }
  CHECK(inspect({}).out.find("--device-bytes and --host-bytes show") != std::string::npos);
}

TEST_CASE("another config, context and batch are followed", "[inspect]") {
  const json f = figures({golden("01-all-mechanisms/config.json"), "--context", "8", "--batch=3"});
  CHECK(f["context"] == 8);
  CHECK(f["batch"] == 3);
  std::int64_t params = 0;
  for (const RawTensor& t : read_raw(golden("01-all-mechanisms/model.safetensors"))) {
    std::int64_t count = t.dtype == "F8_E8M0" ? 0 : t.dtype == "I8" ? 2 : 1;
    for (const std::int64_t extent : t.shape) count *= extent;
    params += count;
  }
  CHECK(f["total_params"] == params);
  CHECK(step(f, 3)["batch"] == 3);
  double before = 0;
  for (const json& entry : f["experts_touched"]) {
    CHECK(entry["batch"].get<double>() > before);
    before = entry["batch"].get<double>();
  }
}

TEST_CASE("budgets place everything, in plain bytes or in units", "[inspect]") {
  const auto total = [](const json& m) {
    return m["device_bytes"].get<std::int64_t>() + m["host_bytes"].get<std::int64_t>() +
           m["file_bytes"].get<std::int64_t>();
  };
  const json f = figures({"--device-bytes", "139GiB", "--host-bytes", "64GB", "--context", "131072"});
  CHECK(f["memory"]["caches"] == "device");
  CHECK(f["memory"]["cache_bytes"] == 116654080 + 2703360 + 202752 + 12288);
  CHECK(total(f["memory"]) == 510286023000 + f["memory"]["cache_bytes"].get<std::int64_t>());
  CHECK(f["memory"]["parts"].size() == f["parts"].size());
  const json plain = figures(
      {"--device-bytes", std::to_string(std::int64_t{139} << 30), "--host-bytes", "64000000000", "--context=131072"});
  CHECK(plain == f);
  CHECK(figures({"--host-bytes", "1TiB"})["memory"]["caches"] == "host");
  const json small = figures({"--device-bytes", "1MB", "--context=131072", "--batch", "2"});
  CHECK(small["memory"]["caches"] == "do not fit");
  CHECK(small["memory"]["cache_bytes"] == 2 * f["memory"]["cache_bytes"].get<std::int64_t>());
}

TEST_CASE("--shards lists every file, --write-headers writes what is hashed", "[inspect]") {
  const TempFolder folder;
  const Run run = inspect({golden("release/config.json"), "--shards", (folder / "s").string(), "--write-headers",
                           (folder / "headers").string()});
  REQUIRE(run.status == 0);
  const json shards = json::parse(read_file(folder / "s"));
  REQUIRE(shards.size() == 48);
  std::int64_t tensors = 0, bytes = 0;
  for (const json& shard : shards) {
    INFO(shard["file"]);
    const std::string header = read_file(folder / "headers" / (shard["file"].get<std::string>() + ".header"));
    CHECK(shard["header_bytes"] == header.size());
    CHECK(shard["header_sha256"] == dsv41::files::sha256_hex(header));
    CHECK(shard["tensors"] == json::parse(header).size());
    tensors += shard["tensors"].get<std::int64_t>();
    bytes += shard["payload_bytes"].get<std::int64_t>() + shard["header_bytes"].get<std::int64_t>() + 8;
  }
  CHECK(tensors == 96085);
  CHECK(bytes == 510296708312);
  CHECK(shards[0]["file"] == "model-00001-of-00048.safetensors");
  CHECK(shards[47]["header_sha256"] == "5d8fa4697d7a071c31baeee6947d493c08ea3243261c5d0f79c355ad191b8222");
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "headers"), {}) == 48);
  // A second run replaces them.
  CHECK(inspect({"--write-headers", (folder / "headers").string()}).status == 0);
}

TEST_CASE("the plot is an SVG with both lines", "[inspect]") {
  const TempFolder folder;
  for (const std::string& config : {golden("release"), std::string(DSV41_DEMO_DIR)}) {
    REQUIRE(inspect({config, "--plot", (folder / "p.svg").string()}).status == 0);
    const std::string svg = read_file(folder / "p.svg");
    CHECK(svg.rfind("<svg", 0) == 0);
    CHECK(svg.find("distinct experts of a layer") != std::string::npos);
    CHECK(svg.find("of weights read in a step") != std::string::npos);
    CHECK(svg.find("nan") == std::string::npos);
  }
}

TEST_CASE("bad input to inspect is refused with its name", "[inspect]") {
  const struct {
    std::vector<std::string> arguments;
    Words words;
  } cases[] = {
      {{"--colour"}, {"unknown option '--colour'"}},
      {{"-j"}, {"unknown option '-j'"}},
      {{golden("release"), "second"}, {"unexpected argument 'second'", "release"}},
      {{""}, {"CONFIG: expected a path"}},
      {{"--context"}, {"--context: expected a value"}},
      {{"--context", "0"}, {"--context", "integer from 1", "'0'"}},
      {{"--context", "1048577"}, {"--context", "1048576", "'1048577'"}},
      {{golden("release"), "--context", "12k"}, {"--context", "'12k'"}},
      {{"--batch", "-1"}, {"--batch", "'-1'"}},
      {{"--batch", "1", "--batch=2"}, {"--batch: given twice"}},
      {{"--help=yes"}, {"--help: takes no value"}},
      {{"--device-bytes", "1.5GiB"}, {"--device-bytes", "75GiB", "'1.5GiB'"}},
      {{"--device-bytes", "-1"}, {"--device-bytes", "'-1'"}},
      {{"--host-bytes", "9223372036854775808"}, {"--host-bytes", "below 2^63"}},
      {{"--host-bytes", "8388608TiB"}, {"--host-bytes", "'8388608TiB'"}},
      {{"--host-bytes", ""}, {"--host-bytes", "''"}},
      {{"--host-bytes", "12XB"}, {"--host-bytes", "'12XB'"}},
      {{"/nowhere/config.json"}, {"/nowhere/config.json", "cannot be read"}},
      {{golden("demo")}, {"demo/config.json", "cannot be read"}},
      {{golden("01-all-mechanisms/model.safetensors")}, {"model.safetensors"}},
      {{"--json", "/nowhere/f"}, {"--json", "/nowhere"}},
      {{"--plot", "/nowhere/f"}, {"--plot", "/nowhere"}},
      {{"--shards", DSV41_DEMO_DIR}, {"--shards", "not a regular file"}},
      {{"--write-headers", "/nowhere/a/b"}, {"--write-headers", "/nowhere/a/b", "/nowhere/a does not exist"}},
      {{"--write-headers", golden("release/config.json")}, {"--write-headers", "is there and no folder"}},
  };
  for (const auto& c : cases) {
    INFO(c.arguments[0]);
    check_refused(c.arguments, c.words);
  }
}

TEST_CASE("a config that no model can be built from is refused with its key", "[inspect]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_json("config.json", [](auto& j) { j["text_config"]["num_experts_per_tok"] = 1000; });
  check_refused({model.path()}, {"config.json", "num_experts_per_tok", "1000"});
  model.folder().write("config.json", "{");
  check_refused({model.path()}, {"config.json: not JSON: parse error at line 1"});
}

TEST_CASE("Engram row counts that loading refuses are refused", "[inspect]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_json("config.json", [](auto& j) {
    for (auto& rows : j["text_config"]["engram_num_embeddings"]) rows = std::int64_t{1} << 40;
  });
  check_refused({model.path()}, {"config.json", "engram_num_embeddings", "1099511627776", "the sum of its primes"});
}

TEST_CASE("a vision tower that the config does not describe is said to be missing, and no file list is made up",
          "[inspect]") {
  const TempFolder folder;
  json config = json::parse(read_file(golden("release/config.json")));
  config["vision_config"].erase("downsample_ratio");
  const std::string path = folder.write("c.json", config.dump()).string();
  const Run run = inspect({path, "--json", (folder / "f").string()});
  REQUIRE(run.status == 0);
  CHECK(run.out.find("vision tower is in none of these figures") != std::string::npos);
  CHECK(run.out.find("vision_config.downsample_ratio is absent") != std::string::npos);
  CHECK(json::parse(read_file(folder / "f"))["vision"] == "not described");
  CHECK(inspect({golden("release")}).out.find("none of these figures") == std::string::npos);
  CHECK(figures({golden("02-window-only")})["vision"] == "none");
  check_refused({path}, {"--shards", "vision_config.downsample_ratio"});
  config["vision_config"] = 5;
  check_refused({folder.write("c.json", config.dump()).string()}, {"vision_config is 5", "an object or null"});
}

TEST_CASE("results do not replace the config or each other", "[inspect]") {
  const ModelCopy model("01-all-mechanisms");
  const std::string config = model.path() + "/config.json", before = read_file(config);
  check_refused({config, "--json", config}, {"--json", "is read by this run"});
  CHECK(read_file(config) == before);
  const TempFolder folder;
  const std::string same = (folder / "x").string();
  check_refused({"--json", same, "--plot", same}, {"--json and --plot", same});
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("headers replace neither the config nor another result, and do not mix with another model's", "[inspect]") {
  const TempFolder folder;
  const std::string here = folder.path().string(), config = golden("02-window-only/config.json");
  const auto holds = [&] { return std::distance(std::filesystem::directory_iterator(here), {}); };
  const auto refused = [&](const std::vector<std::string>& arguments, const Words& words) {
    const auto before = holds();
    const Run run = inspect(arguments);
    INFO("status " << run.status << ", message: " << run.err);
    CHECK(run.refused("inspect"));
    CHECK(run.out.empty());
    for (const std::string& word : words) CHECK(run.says(word));
    CHECK(holds() == before);
  };
  const TempFolder other;
  REQUIRE(inspect({config, "--write-headers", other.path().string()}).status == 0);
  const std::string name = std::filesystem::directory_iterator(other.path())->path().filename().string();
  // The config under the name of a header.
  const std::string input = folder.write(name, read_file(config)).string();
  refused({input, "--write-headers", here}, {"--write-headers", input, "is read by this run"});
  CHECK(read_file(input) == read_file(config));
  // Another result there.
  refused({config, "--json", input, "--write-headers", here}, {"--json and --write-headers", input});
  // A link in the place of a header, to what the run reads or to anything else.
  std::filesystem::remove(input);
  std::filesystem::create_symlink(config, input);
  refused({config, "--write-headers", here}, {"--write-headers", input, "a link"});
  std::filesystem::remove(input);
  // The folder as a file.
  refused({config, "--json", (folder / "x").string(), "--write-headers", (folder / "x/").string()}, {"both are", "x"});
  std::filesystem::create_symlink("nothing", folder / "dangling");
  refused({config, "--write-headers", (folder / "dangling").string()}, {"--write-headers", "is there and no folder"});
  std::filesystem::remove(folder / "dangling");
  // A header of another model.
  folder.write("model-00001-of-00002.safetensors.header", "{}");
  refused({config, "--write-headers", here}, {here, "model-00001-of-00002.safetensors.header", "none of this model's"});
  CHECK(holds() == 1);
}

TEST_CASE("a report that nobody receives leaves no result", "[inspect]") {
  const TempFolder folder;
  Streams streams;
  streams.open(1, "/dev/full");
  streams.open(2, folder.write("err", "").string());
  CHECK(wait_for(streams.start({"--json", (folder / "f").string(), "--write-headers", (folder / "h").string()},
                               DSV41_INSPECT_BIN)) == 2);
  CHECK(read_file(folder / "err") == "inspect: standard output: No space left on device\n");
  CHECK_FALSE(std::filesystem::exists(folder / "f"));
  CHECK_FALSE(std::filesystem::exists(folder / "h"));
}

TEST_CASE("a config's name is one line of text wherever it stands, and the chart stays well-formed", "[inspect]") {
  const TempFolder folder;
  const std::string path =
      folder.write("a\x1b[31m\n<\xff>\xc3\xa9.json", read_file(golden("02-window-only/config.json"))).string();
  const std::string shown = "a\\x1b[31m\\x0a<\\xff>\xc3\xa9.json";
  const Run run = inspect({path, "--json", (folder / "f").string(), "--plot", (folder / "p").string()});
  REQUIRE(run.status == 0);
  const std::string first = run.out.substr(0, run.out.find('\n'));
  CHECK(first == folder.path().string() + "/" + shown);
  CHECK(json::parse(read_file(folder / "f"))["config"] == first);
  const std::string svg = read_file(folder / "p");
  CHECK(svg.find("a\\x1b[31m\\x0a&lt;\\xff&gt;\xc3\xa9.json") != std::string::npos);
}

TEST_CASE("text in a chart: markup is escaped, what XML does not have is left out", "[plot]") {
  const auto title = [](const std::string& text) {
    const std::string svg = dsv41::plot::svg({.title = text});
    const std::size_t begin = svg.find("bold\">") + 6;
    return svg.substr(begin, svg.find("</text>") - begin);
  };
  CHECK(title("a<b>&c\"") == "a&lt;b&gt;&amp;c\"");
  CHECK(title("\x01"
              "a\x1b\n\t\x7f"
              "b") == "ab");
  CHECK(title(std::string("a\0b", 3)) == "ab");
  for (const char* kept : {"\u00a0", "\u00e9", "\u0800", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff"}) {
    CHECK(title(kept) == kept);
  }
  // Stray and missing continuations, overlong forms, controls, surrogates, beyond the last code point, no characters of XML.
  for (const char* dropped : {"\x80",
                              "\xbf",
                              "\xff",
                              "\xc3",
                              "\xc3(",
                              "\xe2\x82",
                              "\xc0\xaf",
                              "\xc1\xbf",
                              "\xe0\x80\xaf",
                              "\xe0\x9f\xbf",
                              "\xf0\x80\x80\xaf",
                              "\xf0\x8f\xbf\xbf",
                              "\xc2\x80",
                              "\xc2\x9f",
                              "\xed\xa0\x80",
                              "\xed\xbf\xbf",
                              "\xf4\x90\x80\x80",
                              "\xf8\x88\x80\x80\x80",
                              "\xef\xbf\xbe",
                              "\xef\xbf\xbf"}) {
    const std::string left = title(std::string("a") + dropped + "z");
    CHECK((left == "az" || left == "a(z"));
  }
}

TEST_CASE("inspect --help lists every option, and a closed standard output is an error", "[inspect]") {
  const Run run = inspect({"--help"});
  CHECK(run.status == 0);
  for (const char* option :
       {"--context", "--batch", "--host-bytes", "--device-bytes", "--json", "--plot", "--shards", "--write-headers"}) {
    CHECK(run.out.find(option) != std::string::npos);
  }
  CHECK(inspect({}, {1}).refused("inspect"));
}

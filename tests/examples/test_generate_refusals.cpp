// SPDX-License-Identifier: MIT
//
// generate from outside, bad input: one message that names the option, file, tensor or key, what was expected and what
// was found; status 2; nothing printed, no result file touched.
#include <sys/resource.h>

#include "run_generate.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

const std::string kModel = golden("01-all-mechanisms");

using Words = std::vector<std::string>;

void check_refused(const Run& run, const Words& words) {
  INFO("status " << run.status << ", message: " << run.err);
  CHECK(run.refused());
  CHECK(run.out.empty());
  for (const std::string& word : words) {
    INFO("must say: " << word);
    CHECK(run.says(word));
  }
}

/// With result files asked for: they must not appear.
void check_refused(std::vector<std::string> arguments, const Words& words) {
  const TempFolder folder;
  const std::string logits = (folder / "l").string(), stats = (folder / "s").string();
  arguments.insert(arguments.end(), {"--stats", stats});
  const bool perplexity = std::count(arguments.begin(), arguments.end(), "--perplexity") > 0;
  if (!perplexity) arguments.insert(arguments.end(), {"--logits-out", logits});
  check_refused(generate(arguments), words);
  CHECK(std::filesystem::is_empty(folder.path()));
}

/// A run on the damaged folder.
void check_model_refused(const ModelCopy& model, const Words& words) {
  check_refused({"--model", model.path(), "--tokens", "1,2,3", "--max-tokens", "1"}, words);
}

std::ptrdiff_t entries(const TempFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

}  // namespace

TEST_CASE("the command line is refused with the option's name", "[generate]") {
  const struct {
    std::vector<std::string> arguments;
    Words words;
  } cases[] = {
      {{"--colour"}, {"unknown option '--colour'"}},
      {{"-m"}, {"unknown option '-m'"}},
      {{"--promptx=1"}, {"unknown option '--promptx'"}},
      {{"hello"}, {"unexpected argument 'hello'", "--prompt"}},
      {{"--model"}, {"--model: expected a value"}},
      {{"--max-tokens", "--quiet"}, {"--max-tokens: expected a value"}},
      {{"--quiet=yes"}, {"--quiet: takes no value", "'yes'"}},
      {{"--seed", "1", "--seed", "2"}, {"--seed: given twice"}},
      {{"--max-tokens", "12x"}, {"--max-tokens", "integer from 0 to", "'12x'"}},
      {{"--max-tokens", "-1"}, {"--max-tokens", "'-1'"}},
      {{"--max-tokens", "99999999999999999999"}, {"--max-tokens"}},
      {{"--max-tokens", ""}, {"--max-tokens", "''"}},
      {{"--temperature", "nan"}, {"--temperature", "at least 0", "'nan'"}},
      {{"--temperature", "inf"}, {"--temperature: expected a finite number of at least 0, got 'inf'"}},
      {{"--temperature", "-0.5"}, {"--temperature", "'-0.5'"}},
      {{"--temperature", "1.0f"}, {"--temperature", "'1.0f'"}},
      {{"--top-k", "2.5"}, {"--top-k", "'2.5'"}},
      {{"--top-p", "0"}, {"--top-p", "above 0 and at most 1", "'0'"}},
      {{"--top-p", "1.01"}, {"--top-p", "'1.01'"}},
      {{"--min-p", "1.01"}, {"--min-p", "from 0 to 1", "'1.01'"}},
      {{"--prefill", "fast"}, {"--prefill: expected full, exact or replay, got 'fast'"}},
      {{"--prefill", "exact"}, {"--logits-out", "--prefill exact skips rows", "expected --prefill full"}},
      {{"--prefill", "replay", "--perplexity", "x"}, {"--perplexity", "--prefill replay skips rows"}},
      {{"--chunk", "0"}, {"--chunk", "integer from 1 to", "'0'"}},
      {{"--seed", "18446744073709551616"}, {"--seed", "18446744073709551615"}},
      {{"--backend", "cuda"}, {"--backend", "expected cpu or ref", "'cuda'"}},
      {{"--numeric", "fast"}, {"--numeric", "exact or deployed", "'fast'"}},
      {{"--threads", "0"}, {"--threads", "integer from 1", "'0'"}},
      {{"--effort", "101", "--chat", "--thinking"}, {"--effort", "from 1 to 100", "'101'"}},
      {{"--effort", "10", "--chat"}, {"--effort", "--thinking"}},
      {{"--system", "x", "--prompt", "y"}, {"--system", "--chat"}},
      {{"--tokens", ""}, {"--tokens: nothing at index 0"}},
      {{"--tokens", "1,,2"}, {"--tokens: nothing at index 1, expected ids separated by commas"}},
      {{"--tokens", "1,2,"}, {"--tokens: nothing at index 2"}},
      {{"--tokens", "1,-2"}, {"--tokens", "'-2'"}},
      {{"--tokens", "1, 2"}, {"--tokens", "' 2'"}},
      {{"--tokens", "1", "--image-span", "3"}, {"--image-span", "FIRST:COUNT", "'3'"}},
      {{"--tokens", "1", "--image-span", "0:0"}, {"--image-span", "integer from 1"}},
      {{"--prompt", ""}, {"--prompt", "expected a text"}},
      {{"--prompt", "a", "--tokens", "1"}, {"--prompt and --tokens exclude each other"}},
      {{"--prompt", "a", "--prompt-file", "b"}, {"--prompt and --prompt-file exclude each other"}},
      {{"--chat", "--tokens", "1"}, {"--chat and --tokens exclude each other"}},
      {{"--chat", "--bos"}, {"--chat and --bos exclude each other"}},
      {{"--perplexity", "f", "--prompt", "a"}, {"--perplexity and --prompt exclude each other"}},
      {{"--chat"}, {"--logits-out", "--prompt"}},
      {{"--perplexity", "f", "--max-tokens", "1"}, {"--perplexity and --max-tokens exclude each other"}},
      {{"--perplexity", "f", "--temperature", "1"}, {"--perplexity and --temperature exclude each other"}},
      {{"--perplexity", "f", "--top-k", "1"}, {"--perplexity and --top-k exclude each other"}},
      {{"--perplexity", "f", "--top-p", "1"}, {"--perplexity and --top-p exclude each other"}},
      {{"--perplexity", "f", "--min-p", "1"}, {"--perplexity and --min-p exclude each other"}},
      {{"--perplexity", "f", "--seed", "1"}, {"--perplexity and --seed exclude each other"}},
      {{"--perplexity", "f", "--restore", "g"}, {"--perplexity and --restore exclude each other"}},
      {{"--perplexity", "f", "--save", "g"}, {"--perplexity and --save exclude each other"}},
      {{"--perplexity", "f", "--rewind", "1"}, {"--perplexity and --rewind exclude each other"}},
      {{"--chat", "--rewind", "1"}, {"--chat and --rewind exclude each other"}},
      {{"--rewind", "0"}, {"--rewind: expected an integer from 1 to 2147483647, got '0'"}},
      {{"--rewind", "-1"}, {"--rewind", "'-1'"}},
      {{"--rewind", "2x"}, {"--rewind", "'2x'"}},
      {{"--restore", ""}, {"--restore: expected a file, got nothing"}},
      {{"--save="}, {"--save: expected a file, got nothing"}},
      {{"--restore", "f", "--image-span", "0:1"}, {"--image-span: with --restore it needs a prompt"}},
  };
  for (const auto& c : cases) check_refused(c.arguments, c.words);
}

TEST_CASE("prompts are refused with what is wrong", "[generate]") {
  const TempFolder folder;
  const std::string empty = folder.write("empty", "").string(), broken = folder.write("broken", "abc\xff").string();
  auto refused = [](std::vector<std::string> arguments, const Words& words) {
    arguments.insert(arguments.end(), {"--model", kModel});
    check_refused(arguments, words);
  };
  refused({}, {"prompt: none given", "--prompt", "--tokens"});
  refused({"--prompt-file", empty}, {"--prompt-file", empty, "empty"});
  refused({"--prompt-file", folder.path().string()}, {"--prompt-file", "is a folder"});
  refused({"--prompt-file", folder.path().string() + "/absent"}, {"--prompt-file", "absent", "No such file"});
  refused({"--prompt-file", broken}, {"--prompt-file", broken, "UTF-8", "3"});
  refused({"--prompt", "ab\xc3("}, {"--prompt", "UTF-8", "2"});
  refused({"--tokens", "1,320"}, {"--tokens", "id 320 at index 1", "0 to 319", "vocab_size"});
  refused({"--tokens", "1,2,3", "--image-span", "2:2"}, {"--image-span", "2 to 3", "3 tokens"});
  refused({"--perplexity", empty}, {"--perplexity", empty, "empty"});
  refused({"--perplexity", broken}, {"--perplexity", "UTF-8", "3"});
  refused({"--perplexity", folder.write("one", "a").string()},
          {"--perplexity", "has 1 token, expected at least 2 (or --bos)"});
  refused({"--perplexity", folder.path().string() + "/absent"}, {"--perplexity", "absent"});
  for (const char* option : {"--prompt-file", "--perplexity"}) {
    refused({option, "/dev/zero"}, {option, "/dev/zero: has more than 67108864 bytes"});
    refused({option, "/proc/self/mem"}, {option, "/proc/self/mem: cannot be read: Input/output error"});
  }
  refused({"--chat", "--prompt", "hello"}, {"--chat"});  // this tokenizer has no chat markers
}

TEST_CASE("a prompt longer than the model is refused with both lengths", "[generate]") {
  ModelCopy model("02-window-only");
  model.edit_json("config.json", [](auto& c) { c["text_config"]["max_position_embeddings"] = 6; });
  check_refused({"--model", model.path(), "--tokens", "1,2,3,4,5,6,7"}, {"7 tokens", "max_position_embeddings = 6"});
}

TEST_CASE("text needs a tokenizer", "[generate]") {
  const Words words{"tokenizer.json", "missing"};
  check_refused({"--model", golden("02-window-only"), "--prompt", "a"}, words);
  check_refused({"--model", golden("02-window-only"), "--perplexity", kModel + "/config.json"}, words);
}

TEST_CASE("damaged model folders are refused by file, tensor and key", "[generate]") {
  const std::string one = "01-all-mechanisms";
  check_refused({"--model", "/nowhere/model", "--tokens", "1"}, {"/nowhere/model"});
  check_refused({"--model", "", "--tokens", "1"}, {"--model: expected a folder"});
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    ModelCopy model(one);
    std::filesystem::remove(model.folder() / file);
    check_model_refused(model, {file == std::string("model.safetensors") ? model.path() : std::string(file)});
  }
  {
    ModelCopy model(one);
    const std::string weights = read_file(model.folder() / "model.safetensors");
    model.folder().write("model.safetensors", weights.substr(0, weights.size() - 10));
    check_model_refused(model, {"model.safetensors"});
  }
  {
    ModelCopy model(one);
    model.folder().write("config.json", "{\"text_config\": ");
    check_model_refused(model, {"config.json"});
  }
  {
    ModelCopy model(one);
    model.edit_weights([](auto& t) { named(t, "norm.weight").dtype = "I64"; });
    check_model_refused(model, {"norm.weight"});
  }
  {
    ModelCopy model(one);
    model.edit_weights([](auto& t) {
      RawTensor& norm = named(t, "norm.weight");
      norm.shape = {norm.shape[0] / 2, 2};
    });
    check_model_refused(model, {"model.safetensors", "norm.weight", "[32, 2]", "[64]"});
  }
  {
    ModelCopy model(one);
    model.edit_weights([](auto& t) { named(t, "layers.0.attn.wq_a.scale").bytes[0] = '\xff'; });
    check_model_refused(model, {"model.safetensors", "layers.0.attn.wq_a.scale", "NaN"});
  }
  {
    ModelCopy model(one);
    model.edit_weights([](auto& t) { test::erase(t, std::string("layers.1.ffn.gate.weight")); });
    check_model_refused(model, {"layers.1.ffn.gate.weight"});
  }
  {
    ModelCopy model(one);
    std::filesystem::rename(model.folder() / "model.safetensors", model.folder() / "model-00001-of-00002.safetensors");
    nlohmann::ordered_json index;
    for (const RawTensor& t : read_raw(model.folder() / "model-00001-of-00002.safetensors")) {
      index["weight_map"][t.name] =
          t.name == "norm.weight" ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
    }
    model.folder().write("model.safetensors.index.json", index.dump());
    check_model_refused(model, {"model-00002-of-00002.safetensors"});
  }
}

TEST_CASE("configs that contradict themselves or the folder are refused by key", "[generate]") {
  const struct {
    const char* key;
    nlohmann::ordered_json value;
    Words words;
  } cases[] = {
      {"kv_source_layer_ids", {2, 4}, {"config.json", "index_source_layer_ids", "layer 1"}},  // selects among nothing
      {"compress_ratios", {0, 2, 2}, {"config.json", "compress_ratios"}},
      {"candidate_source_layer_id", 0, {"config.json", "candidate_source_layer_id"}},
      {"engram_compressed_vocab_size", 17, {"engram_compressed_vocab_size", "17"}},
      {"vocab_size", 300, {"300"}},
      {"hidden_size", "64", {"config.json", "hidden_size"}},
  };
  for (const auto& c : cases) {
    ModelCopy model("01-all-mechanisms");
    model.edit_json("config.json", [&](auto& json) { json["text_config"][c.key] = c.value; });
    check_model_refused(model, c.words);
  }
}

TEST_CASE("an Engram table of another size is refused", "[generate]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_json("config.json", [](nlohmann::ordered_json& json) {
    nlohmann::ordered_json& rows = json["text_config"]["engram_num_embeddings"][0];
    rows = rows.get<std::int64_t>() + 1;
  });
  check_model_refused(model, {"layers.1.engram.embed.weight", "[434, 32]", "[435, 32]"});

  // The same in config and table: then it contradicts the primes that the hash uses.
  model.edit_weights([](auto& tensors) {
    for (const char* name : {"layers.1.engram.embed.weight", "layers.1.engram.embed.scale"}) {
      RawTensor& t = named(tensors, name);
      t.bytes += t.bytes.substr(0, t.bytes.size() / static_cast<std::size_t>(t.shape[0]));
      ++t.shape[0];
    }
  });
  check_model_refused(model, {"engram_num_embeddings", "435", "434"});
}

TEST_CASE("results that cannot be written are refused before the work", "[generate]") {
  const TempFolder folder;
  const std::string there = folder.path().string();
  for (const char* option : {"--stats", "--logits-out", "--save"}) {
    auto refused = [&](const std::string& path, const Words& words) {
      check_refused(generate({"--model", kModel, "--tokens", "1,2", option, path}), words);
    };
    refused("/nowhere/x", {option, "/nowhere/x", "does not exist"});
    refused(there, {option, there, "not a regular file"});
    refused("/dev/null", {option, "/dev/null", "not a regular file"});
    refused("/dev/stdout", {option, "/dev/stdout: is a link and not a regular file"});
    refused("", {option, "expected a file"});
    // A name that fits a file and not its temporary.
    const std::string longest = there + "/" + std::string(250, 'x');
    refused(longest, {std::string(option) + ": " + longest + ": cannot create: File name too long"});
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a link in a result's place is refused and stays", "[generate]") {
  const TempFolder folder;
  const std::string target = folder.write("target", "old").string(), link = (folder / "link").string();
  for (const std::string& to : {target, (folder / "absent").string()}) {
    std::filesystem::create_symlink(to, link);
    for (const char* option : {"--stats", "--logits-out", "--save"}) {
      check_refused(generate({"--model", kModel, "--tokens", "1,2", option, link}), {option, link, "is a link"});
    }
    CHECK(std::filesystem::read_symlink(link) == to);
    std::filesystem::remove(link);
  }
  CHECK(read_file(target) == "old");
  CHECK(entries(folder) == 1);
}

TEST_CASE("two results in one file are refused however it is spelled", "[generate]") {
  const TempFolder folder;
  const std::string there = folder.path().string();
  std::filesystem::create_directory(folder / "d");
  std::filesystem::create_directory_symlink(folder / "d", folder / "link");
  const WorkingFolder here(folder.path());
  const std::string pairs[][2] = {
      {there + "/a", there + "/./a"}, {"a", "./a"}, {"a", there + "/a"}, {"d/a", "link/a"}, {"a", "d/../a"}};
  for (const auto& pair : pairs) {
    for (int first : {0, 1}) {
      check_refused(
          generate({"--model", kModel, "--tokens", "1", "--stats", pair[first], "--logits-out", pair[1 - first]}),
          {"--logits-out and --stats: both are " + pair[first]});
    }
    check_refused(generate({"--model", kModel, "--tokens", "1", "--save", pair[0], "--stats", pair[1]}),
                  {"--save and --stats: both are " + pair[1]});
    check_refused(generate({"--model", kModel, "--tokens", "1", "--save", pair[0], "--logits-out", pair[1]}),
                  {"--logits-out and --save: both are " + pair[0]});
  }
  CHECK(entries(folder) == 2);
  CHECK(generate({"--model", kModel, "--tokens", "1", "--max-tokens", "2", "--stats", "a", "--logits-out", "d/a"})
            .status == 0);
}

TEST_CASE("a result in an input's place is refused", "[generate]") {
  const ModelCopy model("01-all-mechanisms");
  const TempFolder folder;
  const std::string text = folder.write("text", "in the beginning").string();
  std::filesystem::create_symlink(text, folder / "link");
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& result) {
    std::vector<std::string> all{"--model", model.path(), "--stats", result};
    all.insert(all.end(), arguments.begin(), arguments.end());
    check_refused(generate(all), {"--stats: " + result + " is read by this run, expected another file"});
  };
  refused({"--prompt-file", text}, text);
  refused({"--prompt-file", (folder / "link").string()}, text);
  refused({"--perplexity", text}, text);
  refused({"--restore", text}, text);
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"}) {
    refused({"--tokens", "1"}, model.path() + "/" + file);
  }
  CHECK(read_file(text) == "in the beginning");
  const std::string beside = model.path() + "/stats.json";
  for (int run = 0; run < 2; ++run) {
    CHECK(generate({"--model", model.path(), "--tokens", "1", "--max-tokens", "2", "--stats", beside}).status == 0);
  }
}

TEST_CASE("logits that are NaN are an error with their position, whatever they are for", "[generate]") {
  ModelCopy model("01-all-mechanisms");
  model.edit_weights([](auto& t) {
    RawTensor& norm = named(t, "norm.weight");
    norm.bytes.assign(norm.bytes.size(), '\x7f');  // 3.39e38 in every element: finite, and sums overflow
  });
  const TempFolder folder;
  const std::string text = folder.write("text", "in the beginning").string(), record = (folder / "l").string();
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& position) {
    std::vector<std::string> all{"--model", model.path()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    check_refused(generate(all), {"logits at position " + position + ": 320 of 320 are NaN, the first for token 0"});
  };
  refused({"--tokens", "5,6,7"}, "2");
  refused({"--tokens", "5,6,7", "--temperature", "1"}, "2");
  refused({"--tokens", "5,6,7", "--max-tokens", "0"}, "2");
  refused({"--tokens", "5,6,7", "--max-tokens", "0", "--logits-out", record}, "0");
  refused({"--perplexity", text}, "0");
  CHECK(entries(folder) == 1);
}

TEST_CASE("a message is one clean line of bounded length", "[generate]") {
  const auto message = [](const std::string& argument) { return generate({argument}).err; };
  const auto quoting = [](const std::string& shown) {
    return "generate: unexpected argument '" + shown + "'; a prompt goes behind --prompt\n";
  };
  CHECK(message("a\nb\tc\x1b[31m\x7f") == quoting("a\\x0ab\\x09c\\x1b[31m\\x7f"));
  CHECK(message("\xff \xc3( \xed\xa0\x80 \xc0\xaf") == quoting("\\xff \\xc3( \\xed\\xa0\\x80 \\xc0\\xaf"));
  CHECK(message("\xc2\x85 \xf4\x90\x80\x80 \xe2\x82") == quoting("\\xc2\\x85 \\xf4\\x90\\x80\\x80 \\xe2\\x82"));
  const std::string fine = "w\xc3\xb6rld \xf0\x9f\x98\x8a \xe2\x82\xac \xc2\xa0";
  CHECK(message(fine) == quoting(fine));
  const std::string start = "unexpected argument '";
  for (const std::string letter : {"x", "\xe2\x82\xac"}) {
    std::string many, shown;
    for (int i = 0; i < 5000; ++i) many += letter;
    for (std::size_t i = start.size(); i < 2000; ++i) shown += letter;
    CHECK(message(many) == "generate: " + start + shown + "...\n");
  }
}

TEST_CASE("a result beyond the file size limit is an error and leaves nothing behind", "[generate]") {
  const TempFolder folder;
  const std::string record = (folder / "l").string(), err = folder.write("err", "").string();
  Streams streams;
  streams.open(2, err);
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit low = before;
  low.rlim_cur = 2048;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  Run run;
  run.status =
      wait_for(streams.start({"--model", kModel, "--tokens", "1,2", "--max-tokens", "0", "--logits-out", record}));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  run.err = read_file(err);
  check_refused(run, {"--logits-out: " + record + ": cannot write: File too large"});
  CHECK(entries(folder) == 1);
}

TEST_CASE("a failed run leaves earlier results as they were", "[generate]") {
  const TempFolder folder;
  const std::string stats = folder.write("stats.json", "earlier").string();
  CHECK(generate({"--model", kModel, "--tokens", "1,999", "--stats", stats}).refused());
  CHECK(read_file(stats) == "earlier");
  CHECK(generate({"--model", kModel, "--tokens", "1,2", "--max-tokens", "2", "--stats", stats}).status == 0);
  CHECK(read_file(stats) != "earlier");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a reader that goes away ends the run with a message", "[generate]") {
  const TempFolder folder;
  const std::string err = folder.write("err", "").string(), stats = (folder / "stats").string();
  const PipedRun hung_up({"--model", kModel, "--tokens", "1,2", "--stats", stats}, true, err);
  Run run;
  run.status = hung_up.wait();
  run.err = read_file(err);
  CHECK(run.refused());
  CHECK(run.says("standard output: Broken pipe"));
  CHECK_FALSE(std::filesystem::exists(stats));
}

// SPDX-License-Identifier: MIT
//
// Runs the built generate, or another of the programs, as a user would: arguments in, standard output, standard error and status out.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/catch.hpp"
#include "../support/raw_safetensors.hpp"
#include "../support/temp_folder.hpp"

namespace dsv41::test {

inline std::string golden(const std::string& name) {
  return std::string(DSV41_GOLDEN_DIR) + "/" + name;
}

struct Run {
  int status = -1;  ///< exit status; 128 + n for signal n
  std::string out, err;

  bool says(const std::string& part) const { return err.find(part) != std::string::npos; }

  /// The contract of every failure: status 2, one line that begins with the program's name.
  bool refused(const std::string& program = "generate") const {
    return status == 2 && err.rfind(program + ": ", 0) == 0 && err.find('\n') == err.size() - 1;
  }
};

inline int wait_for(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// What a started program finds as its standard streams.
class Streams {
 public:
  Streams() { ::posix_spawn_file_actions_init(&actions_); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  ~Streams() { ::posix_spawn_file_actions_destroy(&actions_); }

  void open(int stream, const std::string& file) {
    ::posix_spawn_file_actions_addopen(&actions_, stream, file.c_str(), stream == 0 ? O_RDONLY : O_WRONLY, 0);
  }
  void close(int stream) { ::posix_spawn_file_actions_addclose(&actions_, stream); }
  void take(int stream, int descriptor) { ::posix_spawn_file_actions_adddup2(&actions_, descriptor, stream); }

  /// Starts a program, generate unless told otherwise.
  pid_t start(const std::vector<std::string>& arguments, const char* program = DSV41_GENERATE_BIN) const {
    std::vector<char*> argv{const_cast<char*>(program)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_t pid = 0;
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGINT);  // ignored where the tests run in the background
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    const int error = ::posix_spawn(&pid, program, &actions_, &attributes, argv.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) throw std::runtime_error(std::string(program) + ": " + std::strerror(error));
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
};

/// generate writing to a pipe of a page that the test reads, or hangs up on.
class PipedRun {
 public:
  /// With `hang_up` nobody reads. Standard error goes to the file `err` unless empty; `in` becomes standard input.
  explicit PipedRun(const std::vector<std::string>& arguments, bool hang_up = false, const std::string& err = {},
                    int in = 0) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    read_end_ = ends[0];
    ::fcntl(read_end_, F_SETPIPE_SZ, 4096);
    Streams streams;
    streams.take(1, ends[1]);
    if (!err.empty()) streams.open(2, err);
    if (in != 0) streams.take(0, in);
    if (hang_up) close_reader();
    pid_ = streams.start(arguments);
    ::close(ends[1]);
  }
  PipedRun(const PipedRun&) = delete;
  PipedRun& operator=(const PipedRun&) = delete;
  ~PipedRun() { close_reader(); }

  /// What comes next.
  std::string read_some() const {
    char buffer[4096];
    const ::ssize_t n = ::read(read_end_, buffer, sizeof buffer);
    return std::string(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  }

  void interrupt() const { ::kill(pid_, SIGINT); }

  /// Everything up to the end, in the parts that it arrives in.
  std::vector<std::string> read() const {
    std::vector<std::string> parts;
    for (std::string part; !(part = read_some()).empty();) parts.push_back(part);
    return parts;
  }

  int wait() const { return wait_for(pid_); }

 private:
  void close_reader() {
    if (read_end_ >= 0) ::close(read_end_);
    read_end_ = -1;
  }

  int read_end_ = -1;
  pid_t pid_ = 0;
};

/// Runs it to its end. `closed` lists standard streams that it finds closed.
inline Run run_program(const char* program, const std::vector<std::string>& arguments, const std::string& input = "",
                       const std::vector<int>& closed = {}) {
  const TempFolder io;
  const std::string in = io.write("in", input), out = io.write("out", ""), err = io.write("err", "");
  Streams streams;
  streams.open(0, in);
  streams.open(1, out);
  streams.open(2, err);
  for (int stream : closed) streams.close(stream);
  Run run;
  run.status = wait_for(streams.start(arguments, program));
  run.out = read_file(out);
  run.err = read_file(err);
  return run;
}

inline Run generate(const std::vector<std::string>& arguments, const std::string& input = "",
                    const std::vector<int>& closed = {}) {
  return run_program(DSV41_GENERATE_BIN, arguments, input, closed);
}

/// The parts as one text.
inline std::string whole(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

/// The process's current folder for as long as it lives.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::filesystem::path& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;
  ~WorkingFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

/// A model folder of its own: a golden's files, to be damaged.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
      const std::filesystem::path from = std::filesystem::path(golden(name)) / file;
      if (std::filesystem::exists(from)) std::filesystem::copy_file(from, folder_ / file);
    }
  }

  const TempFolder& folder() const { return folder_; }
  std::string path() const { return folder_.path().string(); }

  /// Reads, changes and rewrites one JSON file.
  template <class F>
  void edit_json(const std::string& file, F&& change) {
    auto json = nlohmann::ordered_json::parse(read_file(folder_ / file));
    change(json);
    folder_.write(file, json.dump());
  }

  /// The same for the weights.
  template <class F>
  void edit_weights(F&& change) {
    auto tensors = read_raw(folder_ / "model.safetensors");
    change(tensors);
    folder_.write("model.safetensors", raw_file(tensors));
  }

 private:
  TempFolder folder_;
};

template <class T>
std::vector<T> elements(const RawTensor& tensor) {
  std::vector<T> out(tensor.bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

/// Logits and tokens of a --logits-out file or of an expected.safetensors.
struct Recorded {
  explicit Recorded(const std::filesystem::path& file) {
    auto tensors = read_raw(file);
    const RawTensor &l = named(tensors, "logits"), &t = named(tensors, "tokens");
    REQUIRE(l.dtype == "F32");
    REQUIRE(t.dtype == "I64");
    REQUIRE(l.shape.size() == 2);
    REQUIRE(t.shape == std::vector<std::int64_t>{l.shape[0]});
    logits = elements<float>(l);
    tokens = elements<std::int64_t>(t);
    vocab = static_cast<std::size_t>(l.shape[1]);
  }

  std::int64_t argmax(std::size_t row) const {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * vocab);
    return std::max_element(first, first + static_cast<std::ptrdiff_t>(vocab)) - first;
  }

  std::vector<float> logits;
  std::vector<std::int64_t> tokens;
  std::size_t vocab = 0;
};

template <class T>
std::string joined(const std::vector<T>& ids, std::size_t first = 0) {
  std::string out;
  for (std::size_t i = first; i < ids.size(); ++i) out += (i > first ? "," : "") + std::to_string(ids[i]);
  return out;
}

}  // namespace dsv41::test

// SPDX-License-Identifier: MIT
//
// The process's own streams: text on standard output as it is made, progress on standard error when somebody looks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace generate {

/// Makes writing to a closed pipe and beyond the file size limit errors instead of signals, and keeps files that are
/// opened later from taking the numbers of closed standard streams. Errors: dsv41::Error io when standard output is
/// closed.
void prepare_streams();

/// The next line of standard input, without its newline; nothing at the end, or when a signal interrupts the reading.
/// Errors: dsv41::Error io: cannot be read, or a line of more than 16 MiB.
std::optional<std::string> read_line();

/// A message as one line that a terminal shows as it is: control characters and ill-formed UTF-8 as \xNN for each byte,
/// and no more than 2000 characters, then "...".
std::string one_line(std::string_view message);

/// Writes to standard output at once, whatever signals come. Errors: dsv41::Error io, for example when the reader has gone.
void write_out(std::string_view text);

/// Whether standard output is a terminal.
bool out_is_terminal() noexcept;

/// One line on standard error that later lines overwrite. Silent unless standard error is a terminal and not told to be
/// quiet.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool shows() const noexcept { return shows_; }

  /// Replaces the line, by one_line() of the text.
  void show(const std::string& line);

  /// Replaces the line by "WHAT N of TOTAL", at most ten times a second.
  void count(std::string_view what, std::int64_t n, std::int64_t total);

  void clear();

  /// A line that stays.
  void print(const std::string& line);

 private:
  bool shows_;
  bool dirty_ = false;
  double last_ = -1;
};

/// Seconds on a steady clock.
double now() noexcept;

/// "0.35", for messages.
std::string fixed(double value, int digits = 2);

}  // namespace generate

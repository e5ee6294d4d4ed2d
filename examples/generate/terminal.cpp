// SPDX-License-Identifier: MIT
//
// POSIX streams with every failure looked at: output that nobody receives must not look like success.
#include "terminal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "dsv41/core/error.hpp"

namespace generate {

namespace {

constexpr std::size_t kMostOfLine = std::size_t{16} << 20;
constexpr std::size_t kMostOfMessage = 2000;

unsigned byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
}

/// Bytes of the character that the text begins with; 0 when it is a control character or ill-formed.
std::size_t shown_bytes(std::string_view text) {
  const unsigned lead = byte_at(text, 0), second = byte_at(text, 1);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead == 0xC2 && second < 0xA0) return 0;  // U+0080 to U+009F
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool outside = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
  return overlong || outside ? 0 : length;
}

}  // namespace

std::optional<std::string> read_line() {
  std::string line;
  for (int c = 0; (c = ::getc_unlocked(stdin)) != EOF;) {
    if (c == '\n') return line;
    if (line.size() == kMostOfLine) {
      throw dsv41::Error(dsv41::Errc::io, "standard input: a line has more than " + std::to_string(kMostOfLine) +
                                              " bytes, expected at most that");
    }
    line += static_cast<char>(c);
  }
  if (std::ferror(stdin) != 0) {
    if (errno == EINTR) return std::nullopt;
    throw dsv41::Error(dsv41::Errc::io, std::string("standard input: cannot be read: ") + std::strerror(errno));
  }
  return line.empty() ? std::nullopt : std::optional(line);
}

std::string one_line(std::string_view message) {
  std::string out;
  for (std::size_t shown = 0; !message.empty(); ++shown) {
    if (shown == kMostOfMessage) return out + "...";
    const std::size_t bytes = shown_bytes(message);
    if (bytes == 0) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte_at(message, 0));
      out += escape;
    } else {
      out += message.substr(0, bytes);
    }
    message.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out;
}

void prepare_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const bool out_is_closed = ::fcntl(STDOUT_FILENO, F_GETFD) == -1;
  // open() takes the lowest free number, so each closed stream gets its own, in this order.
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1 && ::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) == -1) {
      throw dsv41::Error(dsv41::Errc::io, "standard streams: one is closed and /dev/null cannot stand in");
    }
  }
  if (out_is_closed) throw dsv41::Error(dsv41::Errc::io, "standard output: closed");
}

void write_out(std::string_view text) {
  while (!text.empty()) {
    const ::ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      throw dsv41::Error(dsv41::Errc::io, std::string("standard output: ") + std::strerror(errno));
    }
  }
}

bool out_is_terminal() noexcept {
  return ::isatty(STDOUT_FILENO) == 1;
}

Progress::Progress(bool quiet) : shows_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& line) {
  if (!shows_) return;
  std::fprintf(stderr, "\r\033[K%s", one_line(line).c_str());
  std::fflush(stderr);
  dirty_ = true;
}

void Progress::count(std::string_view what, std::int64_t n, std::int64_t total) {
  const double t = now();
  if (!shows_ || (last_ >= 0 && t - last_ < 0.1)) return;
  last_ = t;
  show(std::string(what) + " " + std::to_string(n) + " of " + std::to_string(total));
}

void Progress::clear() {
  if (dirty_) {
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  }
  dirty_ = false;
  last_ = -1;
}

void Progress::print(const std::string& line) {
  if (!shows_) return;
  clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

double now() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace generate

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

void prepare_streams() {
  std::signal(SIGPIPE, SIG_IGN);
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
  if (text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw dsv41::Error(dsv41::Errc::io, std::string("standard output: ") + std::strerror(errno));
  }
}

bool out_is_terminal() noexcept {
  return ::isatty(STDOUT_FILENO) == 1;
}

Progress::Progress(bool quiet) : shows_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& line) {
  if (!shows_) return;
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
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

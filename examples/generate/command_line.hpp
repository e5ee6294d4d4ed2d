// SPDX-License-Identifier: MIT
//
// What the command-line programs share: the loop over the arguments, which knows no option, and the frame of main, which turns whatever
// goes wrong into one line on stderr.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "numbers.hpp"
#include "terminal.hpp"

namespace generate {

using Text = std::string_view;

/// One option of a program: what its value is and where it goes.
template <class Options>
struct OptionRow {
  Text name;
  bool takes_value;
  void (*set)(Options&, Text name, Text value);
};

inline std::string quoted(Text text) {
  return "'" + std::string(text) + "'";
}

/// Sets `options` by the rows, each at most once, and returns the names given. A value follows its option, or stands behind '='.
/// What does not begin with '-' goes to positional(argument). Errors: invalid_argument.
template <class Options, std::size_t Count, class Positional>
std::set<Text> parse_arguments(const std::vector<std::string>& arguments, const OptionRow<Options> (&rows)[Count],
                               const Positional& positional, Options& options) {
  std::set<Text> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Text argument = arguments[i];
    if (argument.substr(0, 1) != "-") {
      positional(argument);
      continue;
    }
    const std::size_t equals = argument.substr(0, 2) == "--" ? argument.find('=') : Text::npos;
    const std::string name(argument.substr(0, equals));
    const OptionRow<Options>* row = rows;
    while (row != rows + Count && row->name != name) ++row;
    if (row == rows + Count) refuse("unknown option " + quoted(Text(name)) + "; --help lists them");
    if (!given.insert(row->name).second) refuse(name + ": given twice");
    Text value;
    if (!row->takes_value) {
      if (equals != Text::npos) refuse(name + ": takes no value, got " + quoted(argument.substr(equals + 1)));
    } else if (equals != Text::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && arguments[i + 1].compare(0, 2, "--") != 0) {
      value = arguments[++i];
    } else {
      refuse(name + ": expected a value (" + name + "=VALUE for one that begins with --)");
    }
    row->set(options, row->name, value);
  }
  return given;
}

/// Status of a program that failed, and of one that SIGINT ended, as shells have it.
inline constexpr int kFailure = 2, kInterrupted = 130;

/// Runs body(arguments); 0, or behind "name: what went wrong" on stderr kFailure, or kInterrupted for Errc::cancelled.
template <class Body>
int main_of(const char* name, int argc, char** argv, const Body& body) {
  std::string message;
  int status = kFailure;
  try {
    prepare_streams();
    body(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    return 0;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const dsv41::Error& e) {
    message = e.what();
    if (e.code() == dsv41::Errc::cancelled) status = kInterrupted;
  } catch (const std::exception& e) {
    message = e.what();
  }
  std::fprintf(stderr, "%s: %s\n", name, one_line(message).c_str());
  return status;
}

}  // namespace generate

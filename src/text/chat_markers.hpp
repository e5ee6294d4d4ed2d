// SPDX-License-Identifier: MIT
//
// Spelling of the control markers and of the tool-call wire form, shared by the prompt writer and the reply parser.
// U+FF5C is the fullwidth vertical line, U+2581 the lower one-eighth block.
#pragma once

#include <string_view>

#define DSV41_BAR "\xEF\xBD\x9C"
#define DSV41_GAP "\xE2\x96\x81"

namespace dsv41::text::marker {

inline constexpr std::string_view kBos = "<" DSV41_BAR "begin" DSV41_GAP "of" DSV41_GAP "sentence" DSV41_BAR ">";
inline constexpr std::string_view kEos = "<" DSV41_BAR "end" DSV41_GAP "of" DSV41_GAP "sentence" DSV41_BAR ">";
inline constexpr std::string_view kSystem = "<" DSV41_BAR "System" DSV41_BAR ">";
inline constexpr std::string_view kUser = "<" DSV41_BAR "User" DSV41_BAR ">";
inline constexpr std::string_view kAssistant = "<" DSV41_BAR "Assistant" DSV41_BAR ">";
inline constexpr std::string_view kReminder = "<" DSV41_BAR "latest_reminder" DSV41_BAR ">";
inline constexpr std::string_view kImage = "<" DSV41_BAR "deepseek_image" DSV41_BAR ">";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = DSV41_BAR "DSML" DSV41_BAR;

// Tags of the wire form. The space after the marker is V4.1's; V4 has none and other names.
inline constexpr std::string_view kCallsOpen = "\n\n<" DSV41_BAR "DSML" DSV41_BAR " calls";
inline constexpr std::string_view kCallsClose = "</" DSV41_BAR "DSML" DSV41_BAR " calls>";
inline constexpr std::string_view kInvokeOpen = "<" DSV41_BAR "DSML" DSV41_BAR " invoke name=\"";
inline constexpr std::string_view kInvokeClose = "</" DSV41_BAR "DSML" DSV41_BAR " invoke>";
inline constexpr std::string_view kParameterOpen = "<" DSV41_BAR "DSML" DSV41_BAR " parameter name=\"";
inline constexpr std::string_view kParameterClose = "</" DSV41_BAR "DSML" DSV41_BAR " parameter>";

struct Task {
  std::string_view name, token;
};
inline constexpr Task kTasks[] = {
    {"action", "<" DSV41_BAR "action" DSV41_BAR ">"},       {"query", "<" DSV41_BAR "query" DSV41_BAR ">"},
    {"authority", "<" DSV41_BAR "authority" DSV41_BAR ">"}, {"domain", "<" DSV41_BAR "domain" DSV41_BAR ">"},
    {"title", "<" DSV41_BAR "title" DSV41_BAR ">"},         {"read_url", "<" DSV41_BAR "read_url" DSV41_BAR ">"}};

}  // namespace dsv41::text::marker

#undef DSV41_BAR
#undef DSV41_GAP

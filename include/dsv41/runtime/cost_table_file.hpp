// SPDX-License-Identifier: MIT
//
// A measured cost table (modules/dspark/cost_table.hpp) as a JSON file, so that a machine is measured once:
//
//   {"format": "dsv41-cost-table", "version": 1, "graph_limit": 8, "verify": [[1, 10.5], [2, 11]], "draft": [[1, 2.25]]}
//
// verify: pairs of target rows and ms; draft: pairs of requests and ms; sizes ascend. Times are as measured, not yet made non-decreasing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "dsv41/modules/dspark/cost_table.hpp"

namespace dsv41::runtime {

/// Reads the text of such a file. `origin` names it in messages.
///
/// Errors:  format (not JSON, a key that is missing or unknown, a wrong type, more than 4,096 points, and what CostTable refuses),
///          unsupported (another version); each message gives origin, key, expected and found.
CostTable parse_cost_table(std::string_view json, std::string_view origin);

/// The same from a file of at most 1 MiB. Errors: io too.
CostTable load_cost_table(const std::filesystem::path& path);

/// The text that parses to an equal table: every time comes back bit for bit. One point a line.
std::string cost_table_json(const CostTable& table);

/// Writes that, whole or not at all (files.hpp). Errors: io; invalid_argument for more than 4,096 points on a curve.
void save_cost_table(const std::filesystem::path& path, const CostTable& table);

}  // namespace dsv41::runtime

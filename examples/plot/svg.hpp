// SPDX-License-Identifier: MIT
//
// A line chart as an SVG document, for examples that show what their numbers look like.
#pragma once

#include <string>
#include <vector>

namespace dsv41::plot {

/// One line: x and y of equal length. Points that are not finite, or not positive on a logarithmic axis, are left out.
struct Series {
  std::string label;
  std::vector<double> x = {}, y = {};
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};  ///< any bytes: markup is escaped, what is no text is left out
  bool log_x = false, log_y = false;                   ///< base 10
  std::vector<Series> series = {};
};

/// The document, 720 x 420. The same chart gives the same bytes.
std::string svg(const Chart& chart);

}  // namespace dsv41::plot

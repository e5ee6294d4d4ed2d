// SPDX-License-Identifier: MIT
//
// Line charts as an SVG document, for examples that show what their numbers look like.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dsv41::plot {

/// One line: x and y of equal length. Points that are not finite, or not positive on a logarithmic axis, are left out.
struct Series {
  std::string label;
  std::vector<double> x = {}, y = {};
  bool dashed = false;  ///< in the colour of the series before it
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};  ///< any bytes: markup is escaped, what is no text is left out
  bool log_x = false, log_y = false;                   ///< base 10
  bool counts =
      false;  ///< x counts something: grid lines at whole numbers, points marked, y from 0, names on the right
  std::vector<Series> series = {};
};

/// The document, 720 x 420. The same chart gives the same bytes.
std::string svg(const Chart& chart);

/// Several charts below each other, each as high as one.
std::string svg(std::span<const Chart> charts);

}  // namespace dsv41::plot

// SPDX-License-Identifier: MIT
#include "svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string_view>

namespace dsv41::plot {
namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 80, kRight = 20, kTop = 44, kBottom = 56;
// Okabe and Ito's colours: told apart by colour-blind readers too.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string number(double v, const char* format) {
  char text[40];
  std::snprintf(text, sizeof text, format, v);
  return text;
}

std::string pixel(double v) {
  return number(v, "%.1f");
}

std::string pixel_count(double v) {
  return number(v, "%.0f");
}

/// Bytes of the character that the text begins with; 0 for ill-formed UTF-8, control characters and what else XML 1.0 does not have.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  const std::size_t length = lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  char32_t c = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};  // by length; U+0080 to U+009F are controls
  const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
  return c < kLeast[length] || c > 0x10FFFF || surrogate || c == 0xFFFE || c == 0xFFFF ? 0 : length;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view c = text.substr(0, bytes);
    out += c == "&" ? "&amp;" : c == "<" ? "&lt;" : c == ">" ? "&gt;" : c;
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

/// One direction of the chart: values to pixels, and where its grid lines stand.
struct Axis {
  bool log = false, whole = false;
  double low = HUGE_VAL, high = -HUGE_VAL;  // of the scaled values
  double start = 0, length = 0;             // pixels; length < 0 where the axis points up

  double scaled(double v) const { return log ? std::log10(v) : v; }
  bool shows(double v) const { return std::isfinite(v) && (!log || v > 0); }
  double at(double v) const { return start + (scaled(v) - low) / (high - low) * length; }

  void cover(double v) {
    low = std::min(low, scaled(v));
    high = std::max(high, scaled(v));
  }

  /// Widens the range to whole steps and returns the values of the grid lines: powers of ten, or steps of 1, 2 or 5 of them.
  std::vector<double> ticks() {
    if (low > high) low = 0, high = 1;
    if (high - low < 1e-12) low -= 0.5, high += 0.5;
    const double raw = (high - low) / 6, power = std::pow(10, std::floor(std::log10(raw)));
    double step = raw <= power ? power : raw <= 2 * power ? 2 * power : raw <= 5 * power ? 5 * power : 10 * power;
    if (log || whole) step = std::max(1.0, std::ceil(step));
    low = std::floor(low / step) * step;
    high = std::ceil(high / step) * step;
    std::vector<double> out;
    for (double v = low; v < high + step / 2; v += step)
      out.push_back(log ? std::pow(10, v) : std::fabs(v) < step / 1e6 ? 0 : v);
    return out;
  }
};

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return "<line x1=\"" + pixel(x1) + "\" y1=\"" + pixel(y1) + "\" x2=\"" + pixel(x2) + "\" y2=\"" + pixel(y2) + "\" " +
         style + "/>\n";
}

std::string text(double x, double y, const char* style, const std::string& content) {
  return "<text x=\"" + pixel(x) + "\" y=\"" + pixel(y) + "\" " + style + ">" + escaped(content) + "</text>\n";
}

std::string open_document(std::size_t charts) {
  const std::string height = pixel_count(kHeight * static_cast<double>(charts));
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 " + height +
         "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"720\" height=\"" + height +
         "\" fill=\"#ffffff\"/>\n";
}

std::string drawn(const Chart& chart) {
  Axis x{.log = chart.log_x, .whole = chart.counts, .start = kLeft, .length = kWidth - kLeft - kRight};
  Axis y{.log = chart.log_y, .start = kHeight - kBottom, .length = kTop + kBottom - kHeight};
  const auto each_point = [&](const Series& s, auto&& use) {
    for (std::size_t i = 0; i < std::min(s.x.size(), s.y.size()); ++i) {
      if (x.shows(s.x[i]) && y.shows(s.y[i])) use(s.x[i], s.y[i]);
    }
  };
  for (const Series& s : chart.series) {
    each_point(s, [&](double px, double py) { x.cover(px), y.cover(py); });
  }

  if (chart.counts) y.cover(0);

  std::string out = text(kLeft, 24, "font-size=\"15\" font-weight=\"bold\"", chart.title);
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  for (const double v : x.ticks()) {
    out += line(x.at(v), kTop, x.at(v), bottom, "stroke=\"#dddddd\"");
    out += text(x.at(v), bottom + 18, "text-anchor=\"middle\"", number(v, "%.6g"));
  }
  for (const double v : y.ticks()) {
    out += line(kLeft, y.at(v), right, y.at(v), "stroke=\"#dddddd\"");
    out += text(kLeft - 6, y.at(v) + 4, "text-anchor=\"end\"", number(v, "%.6g"));
  }
  out +=
      line(kLeft, bottom, right, bottom, "stroke=\"#333333\"") + line(kLeft, kTop, kLeft, bottom, "stroke=\"#333333\"");
  out += text((kLeft + right) / 2, kHeight - 14, "text-anchor=\"middle\"", chart.x_label);
  out += text(0, 0, "text-anchor=\"middle\" transform=\"translate(18 210) rotate(-90)\"", chart.y_label);

  const double names = chart.counts ? right - 260 : kLeft + 10;
  std::size_t colours = 0;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& s = chart.series[i];
    if (!s.dashed || colours == 0) ++colours;
    const std::string colour = kColours[(colours - 1) % kColours.size()];
    const std::string dash = s.dashed ? " stroke-dasharray=\"6 4\"" : "";
    std::string points, marks;
    each_point(s, [&](double px, double py) {
      points += pixel(x.at(px)) + "," + pixel(y.at(py)) + " ";
      if (!chart.counts) return;
      marks +=
          "<circle cx=\"" + pixel(x.at(px)) + "\" cy=\"" + pixel(y.at(py)) + "\" r=\"3\" fill=\"" + colour + "\"/>\n";
    });
    out += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"2\"" + dash + " points=\"" + points +
           "\"/>\n" + marks;
    const double row = kTop + 14 + 18 * static_cast<double>(i);
    if (s.dashed) {
      out += line(names, row - 6, names + 16, row - 6, ("stroke=\"" + colour + "\" stroke-width=\"4\"" + dash).c_str());
    } else {
      out += "<rect x=\"" + pixel(names) + "\" y=\"" + pixel(row - 8) + "\" width=\"16\" height=\"4\" fill=\"" +
             colour + "\"/>\n";
    }
    out += text(names + 22, row - 1, "", s.label);
  }
  return out;
}

}  // namespace

std::string svg(const Chart& chart) {
  return svg({&chart, 1});
}

std::string svg(std::span<const Chart> charts) {
  std::string out = open_document(charts.size());
  for (std::size_t i = 0; i < charts.size(); ++i) {
    if (i == 0) {
      out += drawn(charts[0]);
    } else {
      out += "<g transform=\"translate(0 " + pixel_count(kHeight * static_cast<double>(i)) + ")\">\n" +
             drawn(charts[i]) + "</g>\n";
    }
  }
  return out + "</svg>\n";
}

}  // namespace dsv41::plot

// SPDX-License-Identifier: MIT
//
// Why the mixing of residual streams is constrained: products of 80 random comb matrices, the seams of 40 layers, made by the library's
// own coefficients from the same logits, with Sinkhorn and without. Given a path, also writes the chart of docs/numerics.md (SVG) there.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>

#include "dsv41/numerics/mhc.hpp"
#include "dsv41/numerics/rng.hpp"
#include "plot/svg.hpp"

namespace {

constexpr std::size_t kStreams = 4, kSquare = kStreams * kStreams;
constexpr std::size_t kComb = 2 * kStreams;                         // where comb stands in a mix
using Square = std::array<std::array<double, kStreams>, kStreams>;  // [from][to]

/// The comb of one seam: logits uniform in [-1, 1) around the identity, a function of (seam, element), so every run is the same.
Square comb(std::size_t seam, bool constrained) {
  using namespace dsv41::numerics;
  float logits[kComb + kSquare] = {}, base[kComb + kSquare] = {}, mix[kComb + kSquare];
  const float scale[3] = {1, 1, 1};
  for (std::size_t i = 0; i < kSquare; ++i) {
    const auto position = static_cast<std::int64_t>(seam * kSquare + i);
    logits[kComb + i] = static_cast<float>(2 * uniform_below_one(random_block(1, position, Purpose::sample)) - 1);
    base[kComb + i] = i % (kStreams + 1) == 0 ? 1.0f : 0.0f;
  }
  mhc_coefficients(logits, base, scale, kStreams, 20, 1e-6f, mix, constrained);
  Square out;
  for (std::size_t i = 0; i < kSquare; ++i) out[i / kStreams][i % kStreams] = static_cast<double>(mix[kComb + i]);
  return out;
}

Square times(const Square& a, const Square& b) {
  Square out = {};
  for (std::size_t i = 0; i < kStreams; ++i) {
    for (std::size_t j = 0; j < kStreams; ++j)
      for (std::size_t k = 0; k < kStreams; ++k) out[i][j] += a[i][k] * b[k][j];
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  dsv41::plot::Chart chart{.title = "Mixing four residual streams over 80 seams", .x_label = "seams", .log_y = true};
  chart.y_label = "gain of the product";
  chart.series = {{.label = "unconstrained (hyper-connections)"}, {.label = "Sinkhorn (mHC)"}};
  for (const bool constrained : {false, true}) {
    std::printf("%s\nseams        gain  sums off by   mean (2.5)\n", constrained ? "Sinkhorn" : "unconstrained");
    Square product = {{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}};
    for (std::size_t seam = 1; seam <= 80; ++seam) {
      product = times(product, comb(seam, constrained));
      double gain = 0, off = 0, mean = 0;  // gain as arXiv 2512.24880: the largest absolute sum of a row or column
      for (std::size_t i = 0; i < kStreams; ++i) {
        double row = 0, column = 0, row_size = 0, column_size = 0;
        for (std::size_t j = 0; j < kStreams; ++j) {
          row += product[i][j], row_size += std::fabs(product[i][j]);
          column += product[j][i], column_size += std::fabs(product[j][i]);
        }
        gain = std::max({gain, row_size, column_size});
        off = std::max({off, std::fabs(row - 1), std::fabs(column - 1)});
        mean += row * static_cast<double>(i + 1) / kStreams;  // of the streams 1, 2, 3, 4 after mixing
      }
      if (seam % 10 == 0) std::printf("%5d  %10.5g  %11.0e  %11.5g\n", static_cast<int>(seam), gain, off, mean);
      chart.series[constrained].x.push_back(static_cast<double>(seam));
      chart.series[constrained].y.push_back(gain);
    }
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return 2;
  if (argc > 1 && !(std::ofstream(argv[1]) << svg(chart)).flush()) return 2;
  const auto &free = chart.series[0].y, &bound = chart.series[1].y;
  return free.back() > 1e6 && *std::max_element(bound.begin(), bound.end()) <= 1 + 1e-5 ? 0 : 1;
}

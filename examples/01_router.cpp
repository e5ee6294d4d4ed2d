// SPDX-License-Identifier: MIT
//
// Routes one token over eight experts with the reference backend, on this program's own memory. Headers only: no library, no checkpoint.
#include <cstdint>
#include <iostream>

// [shown]
#include "dsv41/ref/ref_backend.hpp"

bool route_one_token(float (&logits)[8], std::int32_t (&ids)[2], float (&weights)[2]) {
  const float bias[8] = {0, 0, 0, 0, 0, 0.5f, 0, 0};  // steers the choice, never the weights
  const std::uint8_t image[1] = {0};                  // a text token
  dsv41::ops::TopkRoute op{
      .logits = {logits, {1, 8}}, .bias = {bias, {8}}, .bias_vl = {bias, {8}}, .image = {image, {1}}};
  op.ids = {ids, {1, 2}};
  op.weights = {weights, {1, 2}};
  op.check();  // throws dsv41::Error when a shape is wrong
  dsv41::RefBackend backend;
  backend.run(op);
  return weights[0] + weights[1] > 0.999f;
}
// [/shown]

int main() {
  float logits[8] = {-1.0f, 2.0f, 0.5f, -0.5f, 1.9f, 1.8f, 0.0f, -2.0f};
  std::int32_t ids[2];
  float weights[2];
  if (!route_one_token(logits, ids, weights)) return 1;
  std::cout << "experts " << ids[0] << " (" << weights[0] << ") and " << ids[1] << " (" << weights[1] << ")\n";
  // The bias lifts expert 5 above expert 1; its weight is still that of its own, smaller score.
  return std::cout.flush() && ids[0] == 5 && ids[1] == 1 && weights[0] < weights[1] ? 0 : 1;
}

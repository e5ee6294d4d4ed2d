// SPDX-License-Identifier: MIT
//
// A program outside the tree that takes the headers and nothing else.
#include <dsv41/ref/ref_backend.hpp>
#include <dsv41/version.hpp>

int main() {
  dsv41::RefBackend backend;
  float x[2] = {3.0f, 4.0f}, weight[2] = {1.0f, 1.0f}, y[2] = {};
  backend.run(dsv41::ops::RmsNorm{.x = {x, {1, 2}}, .weight = {weight, {2}}, .y = {y, {1, 2}}});
  return y[0] < y[1] && dsv41::kVersion.starts_with("0.") ? 0 : 1;
}

// SPDX-License-Identifier: MIT
//
// A program outside the tree that links the compiled library: reads a config and reports a bad folder.
#include <dsv41/dsv41.hpp>

int main(int, char** argv) {
  try {
    dsv41::runtime::ModelFolder::open(argv[0]);  // this program is no model folder
  } catch (const dsv41::Error& e) {
    return e.code() == dsv41::Errc::io || e.code() == dsv41::Errc::format ? 0 : 1;
  }
  return 1;
}

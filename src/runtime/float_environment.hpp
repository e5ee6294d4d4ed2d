// SPDX-License-Identifier: MIT
//
// The floating-point modes that results are defined under: round to nearest, subnormals kept. A host program may have set others for its
// thread (flush-to-zero is common in audio code); they are put back on leaving (case B41).
#pragma once

#include <cfenv>

namespace dsv41::runtime {

class FloatEnvironment {
 public:
  FloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&callers_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
};

}  // namespace dsv41::runtime

// SPDX-License-Identifier: MIT
//
// The numbered examples where something fails: a message and a status, never a signal, and no success when nobody receives the output.
#include "run_generate.hpp"

using namespace dsv41::test;

namespace {

std::string example(const std::string& name) {
  return std::string(DSV41_EXAMPLES_DIR) + "/" + name;
}

}  // namespace

TEST_CASE("an example whose output is lost does not succeed", "[numbered]") {
  // 07_drafts has a case of its own, with a trace: without one it draws for as long as the others together.
  for (const char* name :
       {"01_router", "02_mhc", "03_experts_touched", "04_sinkhorn", "05_spelling", "06_sessions", "08_drafting"}) {
    INFO(name);
    Streams streams;
    streams.open(1, "/dev/full");
    const int status = wait_for(streams.start({}, example(name).c_str()));
    CHECK((status == 1 || status == 2));
  }
}

TEST_CASE("05_spelling refuses a folder that is not there and a model without Engram", "[numbered]") {
  const std::string program = example("05_spelling");
  Run run = run_program(program.c_str(), {"/nowhere"});
  CHECK(run.status == 1);
  CHECK(run.out.empty());
  CHECK(run.err.rfind("05_spelling: /nowhere/config.json", 0) == 0);
  run = run_program(program.c_str(), {golden("02-window-only")});
  CHECK(run.status == 1);
  CHECK(run.out.empty());
  CHECK(run.err == "05_spelling: " + golden("02-window-only") + ": has no Engram layers\n");
}

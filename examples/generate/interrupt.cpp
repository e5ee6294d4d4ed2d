// SPDX-License-Identifier: MIT
//
// The handler and its token, which must be global: a handler is given nothing else.
#include "interrupt.hpp"

#include <csignal>

namespace generate {

namespace {

dsv41::CancelToken interrupted;

void on_interrupt(int) {
  interrupted.request();
}

}  // namespace

const dsv41::CancelToken& cancel_on_interrupt() {
  struct sigaction action {};
  if (::sigaction(SIGINT, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
    action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, nullptr);
  }
  return interrupted;
}

}  // namespace generate

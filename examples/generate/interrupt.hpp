// SPDX-License-Identifier: MIT
//
// Ctrl-C as a wish to stop, not as an end.
#pragma once

#include "dsv41/core/cancel.hpp"

namespace generate {

/// The token that SIGINT sets from now on, once: the next SIGINT ends the process. Where it was ignored (nohup) it stays so. Calls that
/// the signal interrupts return EINTR.
const dsv41::CancelToken& cancel_on_interrupt();

}  // namespace generate

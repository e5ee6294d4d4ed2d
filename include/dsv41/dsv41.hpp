// SPDX-License-Identifier: MIT
//
// Everything, for programs that link dsv41::dsv41. A program that takes the headers alone includes dsv41/model/model.hpp and
// dsv41/ref/ref_backend.hpp, or only the parts it uses.
#pragma once

#include "dsv41/core/v41_flash.hpp"
#include "dsv41/model/model.hpp"
#include "dsv41/modules/dspark/admission.hpp"
#include "dsv41/modules/dspark/calibration.hpp"
#include "dsv41/modules/dspark/drafter.hpp"
#include "dsv41/modules/dspark/scheduler.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/modules/engram/convolution.hpp"
#include "dsv41/modules/mtp.hpp"
#include "dsv41/plan/balance.hpp"
#include "dsv41/plan/experts_touched.hpp"
#include "dsv41/plan/memory.hpp"
#include "dsv41/plan/placement.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/cost_table_file.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/files.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "dsv41/text/chat.hpp"
#include "dsv41/text/compressed_map.hpp"
#include "dsv41/text/tokenizer.hpp"
#include "dsv41/version.hpp"

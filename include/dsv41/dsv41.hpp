// SPDX-License-Identifier: MIT
//
// Everything, for programs that link dsv41::dsv41. A program that takes the headers alone includes dsv41/model/model.hpp and
// dsv41/ref/ref_backend.hpp, or only the parts it uses.
#pragma once

#include "dsv41/model/model.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/files.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "dsv41/text/chat.hpp"
#include "dsv41/text/compressed_map.hpp"
#include "dsv41/text/tokenizer.hpp"
#include "dsv41/version.hpp"

# SPDX-License-Identifier: MIT
#
# The committed golden files stay small: what is beyond the limit is made by tests/golden/make_golden.py instead.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(limit 19900000)  # bytes; 20 MB were agreed
lint_files(files "tests/golden/*")
set(bytes 0)
foreach(file IN LISTS files)
  file(SIZE "${ROOT}/${file}" size)
  math(EXPR bytes "${bytes} + ${size}")
endforeach()
if(bytes GREATER limit)
  lint_fault(tests/golden "holds ${bytes} bytes, ${limit} are the most")
endif()
lint_end(size)

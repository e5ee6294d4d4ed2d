# SPDX-License-Identifier: MIT
#
# Every lint that needs no build; all run, then the first failure counts. cmake -P tests/lint/all.cmake
cmake_minimum_required(VERSION 3.25)
set(failed "")
foreach(lint layering manners ops documents public_bugs sources size format)
  execute_process(COMMAND "${CMAKE_COMMAND}" -P "${CMAKE_CURRENT_LIST_DIR}/${lint}.cmake" RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(APPEND failed ${lint})
  endif()
endforeach()
if(failed)
  list(JOIN failed ", " failed)
  message(FATAL_ERROR "lint: failed: ${failed}")
endif()

# SPDX-License-Identifier: MIT
#
# Runs a test program when a file it needs is there; otherwise says why it does not. ctest counts that as skipped.
# cmake -DFILE=<file> -DREASON=<what is missing> -P run_if_there.cmake -- program arguments ...
cmake_minimum_required(VERSION 3.25)
if(NOT EXISTS "${FILE}")
  message(NOTICE "skipped: ${REASON}")
  return()
endif()
set(command "")
set(behind FALSE)
foreach(i RANGE 1 ${CMAKE_ARGC})
  if(behind AND i LESS CMAKE_ARGC)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(behind TRUE)
  endif()
endforeach()
execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)

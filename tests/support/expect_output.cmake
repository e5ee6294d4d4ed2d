# SPDX-License-Identifier: MIT
#
# Runs a program that must succeed and print exactly what a file holds.
# cmake -DPROGRAM=<program> -DEXPECTED=<file> -P expect_output.cmake
# With -DWRITES=<file> -DSCRATCH=<file>, the program gets the name of the second and must write the bytes of the first there.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${PROGRAM}" ${SCRATCH} OUTPUT_VARIABLE got COMMAND_ERROR_IS_FATAL ANY)
file(READ "${EXPECTED}" expected)
if(NOT got STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed:\n${got}\nexpected (${EXPECTED}):\n${expected}")
endif()
if(WRITES)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E compare_files "${WRITES}" "${SCRATCH}" COMMAND_ERROR_IS_FATAL ANY)
endif()

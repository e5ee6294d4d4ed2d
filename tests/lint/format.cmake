# SPDX-License-Identifier: MIT
#
# The formatting is clang-format's, and scripts please shellcheck. Either is skipped with a notice where it is not installed.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# Another version breaks lines elsewhere; Debian 12's decides.
find_program(clang_format NAMES clang-format-14 clang-format)
set(version "none")
if(clang_format)
  execute_process(COMMAND "${clang_format}" --version OUTPUT_VARIABLE version)
endif()
if(NOT version MATCHES "version 14\\.")
  message(STATUS "lint format: formatting skipped, clang-format 14 is not here (Debian 12: apt-get install clang-format)")
else()
  lint_files(files "include/*.hpp" "src/*.hpp" "src/*.cpp" "tests/*.hpp" "tests/*.cpp" "examples/*.hpp" "examples/*.cpp")
  foreach(file IN LISTS files)
    execute_process(COMMAND "${clang_format}" --dry-run --Werror "${file}" WORKING_DIRECTORY "${ROOT}"
      RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(NOT status EQUAL 0)
      lint_fault("${file}" "is formatted otherwise: clang-format -i ${file}")
    endif()
  endforeach()
endif()

find_program(shellcheck shellcheck)
if(shellcheck)
  lint_files(scripts "src/*.sh" "tests/*.sh" "examples/*.sh" ".ci/run")
  foreach(script IN LISTS scripts)
    execute_process(COMMAND "${shellcheck}" "${script}" WORKING_DIRECTORY "${ROOT}" RESULT_VARIABLE status OUTPUT_VARIABLE output)
    if(NOT status EQUAL 0)
      lint_fault("${script}" "shellcheck:\n${output}")
    endif()
  endforeach()
endif()
lint_end(format)

# SPDX-License-Identifier: MIT
#
# Installs a finished build into a fresh prefix and uses it as a stranger would: find_package, add_subdirectory, and a compiler alone.
# cmake -DBUILD=<build folder> -DWORK=<scratch folder> -DCXX=<compiler> -P run.cmake
cmake_minimum_required(VERSION 3.25)

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "package: ${what} failed (${status})\n${output}")
  endif()
  message(STATUS "package: ${what}: ok")
endfunction()

set(prefix "${WORK}/prefix")
file(REMOVE_RECURSE "${WORK}")
step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")

# The build's own generator: the machine may have no other.
load_cache("${BUILD}" READ_WITH_PREFIX built_ CMAKE_GENERATOR)
set(compiler -G "${built_CMAKE_GENERATOR}" -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release)
set(here "${CMAKE_CURRENT_LIST_DIR}")
step("find_package: configure" "${CMAKE_COMMAND}" -S "${here}/find_package" -B "${WORK}/find_package" ${compiler}
  "-DCMAKE_PREFIX_PATH=${prefix}")
step("find_package: build" "${CMAKE_COMMAND}" --build "${WORK}/find_package")
step("find_package: run the linked program" "${WORK}/find_package/use")
step("find_package: run the headers-only program" "${WORK}/find_package/use_headers")

step("add_subdirectory: configure" "${CMAKE_COMMAND}" -S "${here}/add_subdirectory" -B "${WORK}/add_subdirectory" ${compiler})
step("add_subdirectory: build the headers-only program" "${CMAKE_COMMAND}" --build "${WORK}/add_subdirectory" --target use_headers)
step("add_subdirectory: run the headers-only program" "${WORK}/add_subdirectory/use_headers")

step("compiler alone: build" "${CXX}" -std=c++20 "-I${prefix}/include" "${here}/use_headers.cpp" -o "${WORK}/alone")
step("compiler alone: run" "${WORK}/alone")

# Nothing in the installed package may point back into the build or source tree.
file(GLOB_RECURSE package_files "${prefix}/*.cmake")
get_filename_component(source "${here}/../.." ABSOLUTE)
foreach(file IN LISTS package_files)
  file(READ "${file}" text)
  string(FIND "${text}" "${source}/" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "package: ${file} names ${source}")
  endif()
endforeach()
message(STATUS "package: no path of the source tree in the installed package: ok")

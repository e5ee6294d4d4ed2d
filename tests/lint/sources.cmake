# SPDX-License-Identifier: MIT
#
# Every compiled file is listed in a CMakeLists.txt: a test that nobody builds proves nothing.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# check_listed(listing prefix glob ...): `prefix` (a pattern) is not part of the names in the listing.
function(check_listed listing prefix)
  lint_read(text "${listing}")
  lint_files(files ${ARGN})
  list(FILTER files EXCLUDE REGEX "^tests/package/")
  foreach(file IN LISTS files)
    string(REGEX REPLACE "${prefix}" "" name "${file}")
    string(REPLACE "." "\\." pattern "${name}")
    if(NOT text MATCHES "[ \n(/]${pattern}[ \n)]")
      lint_fault("${file}" "is not listed in ${listing}")
    endif()
  endforeach()
endfunction()

check_listed(CMakeLists.txt "^/" "src/*.cpp")
check_listed(tests/CMakeLists.txt "^tests/[^/]*/" "tests/*.cpp")
check_listed(examples/CMakeLists.txt "^examples/" "examples/*.cpp")
lint_end(sources)

# SPDX-License-Identifier: MIT
#
# The compiled library calls nothing that prints, ends the program, or reads the environment.
# cmake -DLIBRARY=<libdsv41_core.a> [-DNM=nm] -P symbols.cmake
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

if(NOT NM)
  set(NM nm)
endif()
execute_process(COMMAND "${NM}" --undefined-only --print-file-name "${LIBRARY}"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0 OR NOT output MATCHES "operator|_Z")
  message(FATAL_ERROR "lint symbols: ${NM} could not read ${LIBRARY}\n${errors}")
endif()
# Not in the list: snprintf, which formats into memory (std::to_string, the JSON parser); std::terminate, which g++ puts behind noexcept.
set(forbidden "abort|exit|_exit|_Exit|quick_exit|atexit|getenv|secure_getenv|setenv|system|signal|__assert_fail"
  "puts|putchar|putc|fputs|fputc|fwrite|perror|v?[fd]?printf|__v?[fd]?printf_chk|stdout|stderr|_ZSt4cout|_ZSt4cerr|_ZSt4clog")
list(JOIN forbidden "|" forbidden)
string(REGEX MATCHALL "[^\n]* U (${forbidden})(@[^\n]*)?\n" hits "${output}")
foreach(hit IN LISTS hits)
  string(REGEX REPLACE "^.*:([^:]+\\.o):.* U ([^\n]*)\n" "\\1 needs \\2" shown "${hit}")
  lint_fault("libdsv41_core.a" "${shown}")
endforeach()
lint_end(symbols)

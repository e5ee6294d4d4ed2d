# SPDX-License-Identifier: MIT
#
# Whether PAGE shows, between its marks, the TABLE that the conformance test wrote.
# cmake -DTABLE=<file> -DPAGE=<docs/conformance.md> -P check_table.cmake
cmake_minimum_required(VERSION 3.25)
file(READ "${TABLE}" table)
file(READ "${PAGE}" page)
string(FIND "${page}" "<!-- made by the test run -->\n${table}<!-- end -->" at)
if(at LESS 0)
  message(FATAL_ERROR "${PAGE} does not show the table of this run; put ${TABLE} between its marks")
endif()

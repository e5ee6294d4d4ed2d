# SPDX-License-Identifier: MIT
#
# Install rules and the CMake package: find_package(dsv41 0.1 CONFIG) gives dsv41::headers and dsv41::dsv41.
include(CMakePackageConfigHelpers)

set(dsv41_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/dsv41")
install(TARGETS dsv41_headers dsv41_core EXPORT dsv41-targets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT dsv41-targets NAMESPACE dsv41:: DESTINATION "${dsv41_package_dir}")

# Until 1.0 a minor version may break callers.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/dsv41-config-version.cmake" COMPATIBILITY SameMinorVersion)
configure_package_config_file(src/cmake/dsv41-config.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/dsv41-config.cmake"
  INSTALL_DESTINATION "${dsv41_package_dir}")
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/dsv41-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/dsv41-config-version.cmake"
  src/cmake/dsv41_dependencies.cmake
  DESTINATION "${dsv41_package_dir}")

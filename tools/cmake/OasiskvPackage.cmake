# liboasiskv.so and what an outside project needs to find_package(oasiskv).

include(CMakePackageConfigHelpers)

# oasiskv_shared_library(oasiskv::c_api oasiskv::session oasiskv::common)
# makes the target oasiskv (liboasiskv.so) of every object of the given static libraries, so that a public class is
# exported even though nothing inside refers to it; what they link comes along. A program links either this target or the
# static libraries, never both: two copies of the generated protobuf code in one process abort at start.
function(oasiskv_shared_library)
  set(objects ${ARGN})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_library(oasiskv SHARED ${objects})
  add_library(oasiskv::oasiskv ALIAS oasiskv)
  target_link_libraries(oasiskv
    PRIVATE oasiskv_options ${ARGN}
    PUBLIC absl::status absl::statusor absl::strings absl::time)
  target_compile_features(oasiskv PUBLIC cxx_std_20)
  target_include_directories(oasiskv INTERFACE
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/common/include>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/client/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  set(map "${PROJECT_SOURCE_DIR}/client/oasiskv.map")
  target_link_options(oasiskv PRIVATE "LINKER:--version-script=${map}")
  set_target_properties(oasiskv PROPERTIES
    LINKER_LANGUAGE CXX LINK_DEPENDS "${map}" VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} # before 1.0 a minor version may change the interface
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

  set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/oasiskv")
  install(TARGETS oasiskv EXPORT oasiskvTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/common/include/" "${PROJECT_SOURCE_DIR}/client/include/"
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  install(EXPORT oasiskvTargets NAMESPACE oasiskv:: DESTINATION ${package_dir})
  configure_package_config_file("${PROJECT_SOURCE_DIR}/tools/cmake/oasiskvConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/oasiskvConfig.cmake" INSTALL_DESTINATION ${package_dir})
  # Before 1.0 a minor version may change the C++ interface.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/oasiskvConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/oasiskvConfig.cmake" "${PROJECT_BINARY_DIR}/oasiskvConfigVersion.cmake"
    DESTINATION ${package_dir})

  # The prefix counts from the file, so that an installed tree can be moved.
  set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH prefix_from_pc "/${pkgconfig_dir}" "/")
  string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
  configure_file("${PROJECT_SOURCE_DIR}/tools/cmake/oasiskv.pc.in" "${PROJECT_BINARY_DIR}/oasiskv.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/oasiskv.pc" DESTINATION ${pkgconfig_dir})
endfunction()

# Functions every CMakeLists.txt of the project uses, so that warnings, sanitizers, include paths and names are set in one place.

add_library(oasiskv_options INTERFACE)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(oasiskv_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wthread-safety -Werror=thread-safety)
else()
  target_compile_options(oasiskv_options INTERFACE -Wall -Wextra -Wshadow=local -Wno-unused-parameter)
endif()
target_include_directories(oasiskv_options INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/common/include>"
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/client/include>")
if(OASISKV_SANITIZER)
  target_compile_options(oasiskv_options INTERFACE -fsanitize=${OASISKV_SANITIZER} -fno-omit-frame-pointer)
  target_link_options(oasiskv_options INTERFACE -fsanitize=${OASISKV_SANITIZER})
  if(OASISKV_SANITIZER MATCHES "undefined")
    # A report that the process survives is a report that no test sees.
    target_compile_options(oasiskv_options INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()

# Every target is compiled through ccache where it is installed (a launcher given by the caller wins). Paths count from the
# top of the tree, so that a second clone finds what the first has compiled.
find_program(OASISKV_CCACHE ccache)
mark_as_advanced(OASISKV_CCACHE)
set(OASISKV_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${OASISKV_CCACHE}")
foreach(language IN ITEMS C CXX)
  if(OASISKV_CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER "${OASISKV_LAUNCHER}")
  endif()
endforeach()

# oasiskv_library(NAME pool SOURCES a.cc b.cc DEPS oasiskv::common absl::status)
# makes the static library oasiskv_pool with the alias oasiskv::pool.
function(oasiskv_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(oasiskv_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(oasiskv::${ARG_NAME} ALIAS oasiskv_${ARG_NAME})
  target_link_libraries(oasiskv_${ARG_NAME} PUBLIC oasiskv_options ${ARG_DEPS})
endfunction()

# oasiskv_program(NAME oasiskvd SOURCES main.cc DEPS ...) makes an executable in build/<preset>/bin and installs it.
function(oasiskv_program)
  cmake_parse_arguments(ARG "NO_INSTALL" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE oasiskv_options ${ARG_DEPS})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  if(NOT ARG_NO_INSTALL)
    install(TARGETS ${ARG_NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# oasiskv_test(NAME slab_test LABEL unit SOURCES slab_test.cc DEPS oasiskv::pool [TIMEOUT 60])
# The target tests_LABEL builds all tests of a label, and nothing else.
function(oasiskv_test)
  cmake_parse_arguments(ARG "" "NAME;LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT OASISKV_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE oasiskv_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
  foreach(label IN LISTS ARG_LABEL)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${ARG_NAME})
  endforeach()
endfunction()

# oasiskv_python_test(NAME python.client DIRECTORY client/python/tests [TIMEOUT 120])
# runs the unittest files (test_*.py) of a folder against the built library and daemon, label python. OASISKV_PYTHON needs
# what tests/requirements.txt lists; tools/test.sh makes the default one.
set(OASISKV_PYTHON "${PROJECT_SOURCE_DIR}/build/venv/bin/python" CACHE FILEPATH "Python interpreter of the Python tests")
function(oasiskv_python_test)
  cmake_parse_arguments(ARG "" "NAME;DIRECTORY;TIMEOUT" "" ${ARGN})
  if(NOT OASISKV_BUILD_TESTS OR OASISKV_SANITIZER)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND "${OASISKV_PYTHON}" -B -m unittest discover -v -s "${PROJECT_SOURCE_DIR}/${ARG_DIRECTORY}")
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS python TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "PYTHONPATH=${PROJECT_SOURCE_DIR}/client/python;OASISKV_LIBRARY=$<TARGET_FILE:oasiskv>;OASISKVD=$<TARGET_FILE:oasiskvd>")
endfunction()

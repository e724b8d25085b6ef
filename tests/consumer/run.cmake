# Installs the build tree to a fresh prefix, builds this outside project against it and runs its programs.
# Usage: cmake -D BUILD_DIR=... -D WORK_DIR=... -D C_COMPILER=... -D CXX_COMPILER=... -D PYTHON=... -P run.cmake
foreach(argument IN ITEMS BUILD_DIR WORK_DIR C_COMPILER CXX_COMPILER PYTHON)
  if(NOT DEFINED ${argument})
    message(FATAL_ERROR "missing -D ${argument}=...")
  endif()
endforeach()

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${what} failed (${status}): ${command}\n${output}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

set(prefix "${WORK_DIR}/prefix")
file(REMOVE_RECURSE "${WORK_DIR}")
run("install" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")

file(GLOB_RECURSE library LIST_DIRECTORIES false "${prefix}/liboasiskv.so" "${prefix}/*/liboasiskv.so")
foreach(file IN ITEMS bin/oasiskvd bin/oasisctl include/oasiskv/client.h include/oasiskv/geometry.h include/oasiskv/oasiskv.h)
  if(NOT EXISTS "${prefix}/${file}")
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()
if(NOT library)
  message(FATAL_ERROR "liboasiskv.so was not installed")
endif()

run("configure" "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_DIR}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}")
run("build" "${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
run("C++ program" "${WORK_DIR}/build/consumer_cpp")
run("C program" "${WORK_DIR}/build/consumer_c")
run("daemon" "${prefix}/bin/oasiskvd" --version)
run("C++ example of the README" "${PYTHON}" -B "${CMAKE_CURRENT_LIST_DIR}/run_example.py" "${prefix}/bin/oasiskvd"
  "${WORK_DIR}/build/readme")

# CUDA parts are built where nvcc is, for the GPUs that OASISKV_CUDA_ARCHITECTURES names; nothing else of the project needs them.
set(OASISKV_CUDA AUTO CACHE STRING "Build the cuda backend: AUTO (where nvcc is found), ON (fail without it), OFF")
set_property(CACHE OASISKV_CUDA PROPERTY STRINGS AUTO ON OFF)
set(OASISKV_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to compile for (90: H100, H200)")

set(OASISKV_WITH_CUDA OFF)
if(NOT OASISKV_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  find_program(OASISKV_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(OASISKV_NVCC)
  if(OASISKV_NVCC AND NOT DEFINED CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${OASISKV_NVCC}")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES "${OASISKV_CUDA_ARCHITECTURES}")
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # CMake before 3.26 does not know that nvcc has C++20.
    foreach(kind IN ITEMS STANDARD EXTENSION)
      if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
      endif()
    endforeach()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    if(OASISKV_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${OASISKV_LAUNCHER}")
    endif()
    set(OASISKV_WITH_CUDA ON)
  elseif(OASISKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OASISKV_CUDA=ON, but no nvcc was found: put it on PATH, or set CMAKE_CUDA_COMPILER; "
                        "OASISKV_CUDA=AUTO builds without the cuda backend")
  endif()
endif()
message(STATUS "cuda backend: ${OASISKV_WITH_CUDA}")

# oasiskv_cuda_library(NAME kernels SOURCES a.cu b.cc DEPS ...) makes a static library like oasiskv_library.
function(oasiskv_cuda_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(oasiskv_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(oasiskv::${ARG_NAME} ALIAS oasiskv_${ARG_NAME})
  target_include_directories(oasiskv_${ARG_NAME} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/common/include>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/client/include>")
  target_compile_options(oasiskv_${ARG_NAME} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-lineinfo;--extended-lambda;-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>")
  target_link_libraries(oasiskv_${ARG_NAME} PUBLIC CUDA::cudart_static ${ARG_DEPS})
endfunction()

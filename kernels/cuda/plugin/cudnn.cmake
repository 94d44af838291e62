# libpercheron_cudnn.so: causal attention by cuDNN, which libpercheron_cuda.so opens when a run asks for
# it. A library of its own, so that a machine without cuDNN has everything else.

set(PERCHERON_CUDNN_VERSION_MIN 9.8) # Plans for devices by their properties.

# What it can't be built without; empty when it is built.
function(percheron_cudnn_obstacle out)
  find_path(PERCHERON_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(PERCHERON_CUDNN_LIBRARY cudnn HINTS "${CUDAToolkit_LIBRARY_DIR}")
  # tools/setup/cudnn_frontend.sh puts it there.
  find_path(PERCHERON_CUDNN_FRONTEND_DIR cudnn_frontend.h
            HINTS "${PROJECT_SOURCE_DIR}/.cudnn_frontend/include")
  set(${out} "" PARENT_SCOPE)
  if(NOT PERCHERON_CUDNN_INCLUDE_DIR OR NOT PERCHERON_CUDNN_LIBRARY)
    set(${out} "no cuDNN beside CUDA" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${PERCHERON_CUDNN_INCLUDE_DIR}/cudnn_version.h" lines REGEX "define CUDNN_M[A-Z]+ [0-9]+")
  string(REGEX REPLACE ".*CUDNN_MAJOR ([0-9]+).*CUDNN_MINOR ([0-9]+).*" "\\1.\\2" version "${lines}")
  if(version VERSION_LESS PERCHERON_CUDNN_VERSION_MIN)
    set(${out} "cuDNN ${version} is older than ${PERCHERON_CUDNN_VERSION_MIN}" PARENT_SCOPE)
  elseif(NOT PERCHERON_CUDNN_FRONTEND_DIR)
    set(${out} "no cudnn_frontend.h; tools/setup/cudnn_frontend.sh fetches it" PARENT_SCOPE)
  endif()
endfunction()

percheron_cudnn_obstacle(obstacle)
if(obstacle)
  message(STATUS "cuDNN: ${obstacle}; libpercheron_cudnn.so is left out, attention is Percheron's own")
  return()
endif()
message(STATUS "cuDNN: libpercheron_cudnn.so with the frontend in ${PERCHERON_CUDNN_FRONTEND_DIR}")

add_library(percheron_cudnn MODULE cudnn_attention.cc)
target_include_directories(percheron_cudnn PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(percheron_cudnn SYSTEM PRIVATE "${PERCHERON_CUDNN_FRONTEND_DIR}"
                                                          "${PERCHERON_CUDNN_INCLUDE_DIR}")
target_compile_definitions(percheron_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
# It plans and hands over pointers: nothing here is worth the optimizer's minute.
target_compile_options(percheron_cudnn PRIVATE -O1 -g0)
target_link_libraries(percheron_cudnn PRIVATE percheron_base CUDA::cudart_static CUDA::nvrtc
                                              "${PERCHERON_CUDNN_LIBRARY}")
percheron_module(percheron_cudnn)
if(BUILD_TESTING)
  add_dependencies(percheron_tests percheron_cudnn)
  find_library(PERCHERON_CUDA_DRIVER_STUB cuda HINTS "${CUDAToolkit_LIBRARY_DIR}/stubs" NO_DEFAULT_PATH)
endif()

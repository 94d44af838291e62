# cuDNN's plans for GPUs that are not here, by libpercheron_cudnn.so where that is built.

if(NOT TARGET percheron_cudnn OR NOT BUILD_TESTING)
  message(STATUS "cudnn_plans_test is left out: there is no libpercheron_cudnn.so")
  return()
endif()

# Every function of the driver's stub that fake_driver.cc does not have says that there is no device.
set(no_device 100)
execute_process(COMMAND "${CMAKE_NM}" -D --defined-only "${PERCHERON_CUDA_DRIVER_STUB}" OUTPUT_VARIABLE symbols
                        COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/fake_driver.cc" own REGEX "^int cu")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS fake_driver.cc)
string(REGEX MATCHALL "T cu[A-Za-z0-9_]+" symbols "${symbols}")
set(functions "extern \"C\" {\n")
foreach(symbol IN LISTS symbols)
  string(SUBSTRING "${symbol}" 2 -1 name)
  if(NOT own MATCHES "int ${name}\\(")
    string(APPEND functions "int ${name}() { return ${no_device}; }\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/no_device.cc" CONTENT "${functions}}\n")

add_library(fake_driver MODULE fake_driver.cc "${CMAKE_CURRENT_BINARY_DIR}/no_device.cc")
set(fake_driver_folder "${CMAKE_CURRENT_BINARY_DIR}/fake_driver")
set_target_properties(fake_driver PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${fake_driver_folder}" PREFIX ""
                                             OUTPUT_NAME libcuda SUFFIX .so.1)

percheron_test(
  cudnn_plans_test
  SOURCES
  cudnn_plans_test.cc
  "${PROJECT_SOURCE_DIR}/kernels/cuda/attention_library.cc"
  DEPS
  base
  TIMEOUT
  300)
target_compile_definitions(
  cudnn_plans_test PRIVATE PERCHERON_CUDNN_MODULE="$<TARGET_FILE:percheron_cudnn>")
target_link_libraries(cudnn_plans_test PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(cudnn_plans_test percheron_cudnn fake_driver)
set_tests_properties(cudnn_plans_test PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${fake_driver_folder}")

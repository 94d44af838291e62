# percheron_test(<name> SOURCES <file>... [DEPS <dep>...] [LABELS <label>...] [TIMEOUT <seconds>] [APART <file>...])
#   makes a GoogleTest program and one CTest entry, run from the repository root. Deps as in percheron_layer().
#   Label `tsan` marks a test that loads neither CAF nor libgomp; these run under ThreadSanitizer too.
#   APART: files that define a name which another file of the program defines too (percheron_compile_together()).
# percheron_test_library(<name> SOURCES <file>... [DEPS <dep>...])
#   makes what several test programs share.
# percheron_python_tests(<name> <folder>)
#   makes one CTest entry of a folder's Python unit tests, test_*.py, run from the repository root.
# percheron_bench(<name> SOURCES <file>... [DEPS <dep>...])
#   makes a Google Benchmark program, built by the target percheron_benches only.

include_guard(GLOBAL)

add_custom_target(percheron_benches)
if(BUILD_TESTING)
  add_custom_target(percheron_tests)
  add_custom_target(percheron_tsan_tests)

  # Owns the precompiled GoogleTest header that the test programs share, and their main().
  add_library(percheron_test_main STATIC "${PROJECT_SOURCE_DIR}/tests/test_main.cc")
  target_link_libraries(
    percheron_test_main
    PUBLIC GTest::gtest GTest::gmock Threads::Threads
    PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
  target_precompile_headers(percheron_test_main PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  if(PERCHERON_SHARE_COMPILATION)
    target_precompile_headers(
      percheron_test_main
      PRIVATE <algorithm>
              <chrono>
              <cmath>
              <filesystem>
              <fstream>
              <functional>
              <map>
              <memory>
              <numeric>
              <optional>
              <sstream>
              <string>
              <thread>
              <vector>
              <nlohmann/json.hpp>)
  endif()
  # GCC shares a precompiled header only among equal flags: those of an executable, not of a library.
  set_target_properties(percheron_test_main PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(percheron_test_main PRIVATE -fPIE)
endif()

# Of what uses the tests' precompiled header. GCC 12 reports more of its false positives on std::string
# (cmake/percheron_compiler.cmake) where the library's code comes from such a header; the other presets warn.
function(percheron_use_test_header name)
  target_precompile_headers(${name} REUSE_FROM percheron_test_main)
  if(PERCHERON_SHARE_COMPILATION AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endfunction()

# percheron_compile_together(<program> [<file>...]): compiles the program's files four at a time, because most of a
# file's time goes to headers and templates that the others use too. Not those given, whose unnamed namespaces
# hold a name of another file's: "redefinition" by the compiler says which. See PERCHERON_SHARE_COMPILATION.
function(percheron_compile_together name)
  if(NOT PERCHERON_SHARE_COMPILATION)
    return()
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(percheron_test_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "percheron_test_library(${name}) does not know '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT BUILD_TESTING)
    return()
  endif()
  percheron_targets_of(targets ${arg_DEPS})
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${targets} GTest::gtest GTest::gmock)
  percheron_use_test_header(${name})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE)
endfunction()

function(percheron_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;DEPS;LABELS;APART")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "percheron_test(${name}) does not know '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  percheron_targets_of(targets ${arg_DEPS})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${targets} percheron_test_main)
  percheron_use_test_header(${name})
  percheron_compile_together(${name} ${arg_APART})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  add_dependencies(percheron_tests ${name})
  if(tsan IN_LIST arg_LABELS)
    add_dependencies(percheron_tsan_tests ${name})
  endif()
endfunction()

function(percheron_python_tests name folder)
  if(NOT BUILD_TESTING OR NOT EXISTS "${PROJECT_SOURCE_DIR}/${folder}")
    return()
  endif()
  # The interpreter is chosen when the test runs, as the program chooses it.
  set(python "\${PERCHERON_PYTHON:-.venv/bin/python}")
  add_test(
    NAME ${name}
    COMMAND sh -c "exec ${python} -m unittest discover -s ${folder}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT "PYTHONPATH=tools/percheron_prepare")
endfunction()

function(percheron_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  if(NOT TARGET benchmark::benchmark)
    message(STATUS "Google Benchmark not found: ${name} is left out")
    return()
  endif()
  percheron_targets_of(targets ${arg_DEPS})
  add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${targets} benchmark::benchmark)
  add_dependencies(percheron_benches ${name})
endfunction()

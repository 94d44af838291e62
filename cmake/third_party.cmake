# Every library from outside, as an imported target. Which layer may use which: percheron_layer.cmake.

find_package(Threads REQUIRED)
find_package(fmt CONFIG REQUIRED) # fmt::fmt
find_package(spdlog CONFIG REQUIRED) # spdlog::spdlog
find_package(Protobuf REQUIRED) # protobuf::libprotobuf, protobuf::protoc
find_package(OpenMP REQUIRED COMPONENTS CXX) # OpenMP::OpenMP_CXX
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL) # OpenSSL::Crypto, OpenSSL::SSL
find_package(yaml-cpp CONFIG REQUIRED)
find_package(CLI11 CONFIG QUIET)
find_package(nlohmann_json CONFIG QUIET)
find_package(CAF CONFIG QUIET COMPONENTS core io)
find_package(prometheus-cpp CONFIG QUIET) # prometheus-cpp::core
if(BUILD_TESTING)
  find_package(GTest CONFIG REQUIRED) # GTest::gtest, GTest::gmock
  find_package(benchmark CONFIG QUIET) # benchmark::benchmark, optional
endif()

# percheron_find_library(<target> HEADER <file> [LIBRARY <name>]): for packages without a CMake file.
function(percheron_find_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;LIBRARY" "")
  string(MAKE_C_IDENTIFIER "${target}" id)
  find_path(${id}_INCLUDE_DIR ${arg_HEADER} REQUIRED)
  if(arg_LIBRARY)
    find_library(${id}_LIBRARY ${arg_LIBRARY} REQUIRED)
    add_library(${target} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${${id}_LIBRARY}")
  else()
    add_library(${target} INTERFACE IMPORTED GLOBAL)
  endif()
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${${id}_INCLUDE_DIR}")
endfunction()

percheron_find_library(xxhash::xxhash HEADER xxhash.h) # Used header-only.
if(NOT TARGET nlohmann_json::nlohmann_json)
  percheron_find_library(nlohmann_json::nlohmann_json HEADER nlohmann/json.hpp)
endif()
if(NOT TARGET CLI11::CLI11)
  percheron_find_library(CLI11::CLI11 HEADER CLI/CLI.hpp)
endif()
if(NOT TARGET prometheus-cpp::core)
  percheron_find_library(prometheus-cpp::core HEADER prometheus/registry.h LIBRARY prometheus-cpp-core)
endif()
if(NOT TARGET civetweb::civetweb) # prometheus-cpp's package brings it.
  percheron_find_library(civetweb::civetweb HEADER civetweb.h LIBRARY civetweb)
endif()
# Not by its CMake package: Debian's asks for OpenCL's headers, which nothing here uses.
percheron_find_library(DNNL::dnnl HEADER oneapi/dnnl/dnnl.hpp LIBRARY dnnl)
percheron_find_library(Curses::curses HEADER curses.h LIBRARY ncursesw)
if(PERCHERON_UCX)
  find_package(ucx CONFIG REQUIRED) # ucx::ucp, ucx::ucs
endif()
find_package(Gloo CONFIG REQUIRED)
if(NOT TARGET Gloo::gloo) # Debian's has no namespace.
  add_library(Gloo::gloo INTERFACE IMPORTED GLOBAL)
  target_link_libraries(Gloo::gloo INTERFACE gloo)
endif()
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED GLOBAL) # yaml-cpp before 0.8 has no namespace.
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()
if(NOT TARGET CAF::core) # CAF before 0.18, as Debian has it, ships no CMake file.
  percheron_find_library(CAF::core HEADER caf/all.hpp LIBRARY caf_core)
  percheron_find_library(CAF::io HEADER caf/io/all.hpp LIBRARY caf_io)
  target_link_libraries(CAF::core INTERFACE Threads::Threads)
  target_link_libraries(CAF::io INTERFACE CAF::core)
endif()

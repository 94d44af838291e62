# How every target of the project is compiled. Files that need an instruction set of their own say so
# with set_source_files_properties(); nothing here depends on the machine that builds.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF) # Also keeps GCC from contracting a*b+c, so results do not depend on flags.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

set(PERCHERON_SANITIZE
    ""
    CACHE STRING "Sanitizers to build with, as -fsanitize= takes them")

# For whole builds; without it each file proves that it includes what it uses.
option(PERCHERON_SHARE_COMPILATION
       "Compile the files of a program several at a time, the tests' with precompiled standard headers" OFF)

# For C++ only: nvcc has options of its own (kernels/cuda/plugin).
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>") # False positives on std::string in GCC 12 (GCC bug 105651).
endif()
if(PERCHERON_SANITIZE)
  add_compile_options(-fsanitize=${PERCHERON_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PERCHERON_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized) # Instrumentation hides initialisation from GCC.
  endif()
endif()

find_program(PERCHERON_CCACHE ccache)
if(PERCHERON_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness ccache refuses every file that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
                                  CCACHE_SLOPPINESS=pch_defines,time_macros "${PERCHERON_CCACHE}")
endif()

# cmake -DFROM=<layer> -DTO=<dependency> -P check_edge.cmake: fails unless the edge is allowed.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/percheron_layer.cmake")
percheron_check_edge("${FROM}" "${TO}")

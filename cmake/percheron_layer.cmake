# The order of the layers, enforced at configure time (docs/architecture.md).
#
# percheron_layer(<layer>[_<part>] SOURCES <file>... [DEPS <dep>...] [PRIVATE_DEPS <dep>...])
#
# makes the static library percheron_<layer>[_<part>] of the calling folder. A <dep> is a layer (base), a
# part of one (actors_policy) or an imported target (fmt::fmt). A dependency on a higher layer, or on a
# library that this layer may not see, ends the configuration.

include_guard(GLOBAL)

set(PERCHERON_LAYERS base kernels data model actors tools) # Each may see those before it.
set(PERCHERON_LAYERS_SEEING_proto data actors tools)

# Which layers may link a library from outside, by the target's name up to "::".
set(PERCHERON_LAYERS_SEEING_Threads ${PERCHERON_LAYERS})
set(PERCHERON_LAYERS_SEEING_fmt ${PERCHERON_LAYERS})
set(PERCHERON_LAYERS_SEEING_spdlog ${PERCHERON_LAYERS})
set(PERCHERON_LAYERS_SEEING_nlohmann_json ${PERCHERON_LAYERS})
set(PERCHERON_LAYERS_SEEING_xxhash base)
set(PERCHERON_LAYERS_SEEING_protobuf proto data actors tools)
set(PERCHERON_LAYERS_SEEING_DNNL kernels)
set(PERCHERON_LAYERS_SEEING_OpenMP kernels)
set(PERCHERON_LAYERS_SEEING_Gloo kernels)
set(PERCHERON_LAYERS_SEEING_OpenSSL data)
set(PERCHERON_LAYERS_SEEING_ucx data)
set(PERCHERON_LAYERS_SEEING_CAF actors)
set(PERCHERON_LAYERS_SEEING_prometheus-cpp actors)
set(PERCHERON_LAYERS_SEEING_civetweb actors)
set(PERCHERON_LAYERS_SEEING_CLI11 tools)
set(PERCHERON_LAYERS_SEEING_Curses tools)
set(PERCHERON_LAYERS_SEEING_yaml-cpp tools)

# Sets `out` to the layer that `name` is or is a part of, or to "" when it is none.
function(percheron_layer_of name out)
  string(REGEX REPLACE "_.*" "" layer "${name}")
  if(NOT layer IN_LIST PERCHERON_LAYERS AND NOT layer STREQUAL "proto")
    set(layer "")
  endif()
  set(${out} "${layer}" PARENT_SCOPE)
endfunction()

# Ends the configuration unless layer `from` may depend on `to`, a layer or an imported target.
function(percheron_check_edge from to)
  percheron_layer_of("${from}" from_layer)
  if(NOT from_layer)
    message(FATAL_ERROR "${from} is no layer: percheron_layer() knows ${PERCHERON_LAYERS} and proto")
  endif()
  percheron_layer_of("${to}" to_layer)
  if(to_layer STREQUAL from_layer)
    return()
  endif()
  if(to MATCHES "::" OR to_layer STREQUAL "proto")
    string(REGEX REPLACE "::.*" "" to_name "${to}")
    if(NOT from_layer IN_LIST PERCHERON_LAYERS_SEEING_${to_name})
      message(FATAL_ERROR "layer ${from} may not depend on ${to}: only "
                          "'${PERCHERON_LAYERS_SEEING_${to_name}}' may see it")
    endif()
    return()
  endif()
  if(NOT to_layer)
    message(FATAL_ERROR "${from} depends on ${to}, which is neither a layer nor an imported target")
  endif()
  list(FIND PERCHERON_LAYERS ${from_layer} from_rank)
  list(FIND PERCHERON_LAYERS ${to_layer} to_rank)
  if(from_rank LESS to_rank)
    message(FATAL_ERROR "upward edge: layer ${from} may not depend on ${to}; "
                        "the order is ${PERCHERON_LAYERS}, proto a leaf")
  endif()
endfunction()

# Sets `out` to the targets that `deps` (layers and imported targets) name.
function(percheron_targets_of out)
  set(targets "")
  foreach(dep IN LISTS ARGN)
    percheron_layer_of("${dep}" layer)
    if(layer)
      string(PREPEND dep "percheron_")
    endif()
    if(NOT TARGET ${dep})
      message(FATAL_ERROR "target ${dep} does not exist; layers come lower first")
    endif()
    list(APPEND targets ${dep})
  endforeach()
  set(${out} "${targets}" PARENT_SCOPE)
endfunction()

function(percheron_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;PRIVATE_DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "percheron_layer(${name}) does not know '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  foreach(dep IN LISTS arg_DEPS arg_PRIVATE_DEPS)
    percheron_check_edge(${name} ${dep})
  endforeach()
  percheron_targets_of(public_targets ${arg_DEPS})
  percheron_targets_of(private_targets ${arg_PRIVATE_DEPS})
  add_library(percheron_${name} STATIC ${arg_SOURCES})
  target_include_directories(percheron_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(percheron_${name} PUBLIC ${public_targets} PRIVATE ${private_targets})
endfunction()

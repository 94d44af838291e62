# Bugs planted in the tensor-core kernels of attention's gradients, which attention_mutants_test must
# find. Each is a copy of the kernels in a namespace of its own, with one text in place of another.
set(mutants_folder "${CMAKE_CURRENT_BINARY_DIR}/attention_mutants")
set(kernels_folder "${PROJECT_SOURCE_DIR}/kernels/cuda")
set(mutated_files attention_bf16_tiles.cuh attention_bf16_backward.cu)
set(mutant_sources "")
set(mutant_list "")

function(percheron_attention_mutant name old new)
  set(text "")
  foreach(file ${mutated_files})
    file(READ "${kernels_folder}/${file}" part)
    string(APPEND text "${part}")
    set_property(
      DIRECTORY
      APPEND
      PROPERTY CMAKE_CONFIGURE_DEPENDS "${kernels_folder}/${file}")
  endforeach()
  string(REPLACE "#pragma once" "" text "${text}")
  string(REPLACE "#include \"kernels/cuda/attention_bf16_tiles.cuh\"" "" text "${text}")
  string(REPLACE "namespace percheron::cuda {" "namespace percheron::cuda::${name} {" text "${text}")
  # One size of heads is enough.
  string(REPLACE "    case 96: return put_kernels<96>(queue, a, tiles);\n" "" text "${text}")
  string(REPLACE "put_kernels<128>(" "put_kernels<64>(" text "${text}")
  if(NOT old STREQUAL "")
    string(FIND "${text}" "${old}" first)
    string(FIND "${text}" "${old}" last REVERSE)
    if(first EQUAL -1 OR NOT first EQUAL last)
      message(FATAL_ERROR "${name}: the kernels of attention's gradients should have once: ${old}")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
  endif()
  file(CONFIGURE OUTPUT "${mutants_folder}/${name}.cu" CONTENT "${text}" @ONLY)
  set(mutant_sources ${mutant_sources} "${mutants_folder}/${name}.cu" PARENT_SCOPE)
  set(mutant_list "${mutant_list}PERCHERON_MUTANT(${name})\n" PARENT_SCOPE)
endfunction()

percheron_attention_mutant(no_bug "" "")
percheron_attention_mutant(
  no_barrier_before_lanes_are_overwritten [[__syncthreads();  // Before the buffer is written again.]] "")
percheron_attention_mutant(
  no_barrier_before_lanes_are_read
  [[__syncthreads();
    add_lanes<D>]]
  [[add_lanes<D>]])
percheron_attention_mutant(
  no_wait_for_lanes
  [[wait_copies<1>();
    __syncthreads();
    add_lanes<D>]]
  [[__syncthreads();
    add_lanes<D>]])
percheron_attention_mutant(
  no_barrier_before_keys_are_read
  [[__syncthreads();
    use(key, buffer);]]
  [[use(key, buffer);]])
percheron_attention_mutant(
  no_wait_for_keys
  [[wait_copies<1>();
    __syncthreads();
    use(key, buffer);]]
  [[__syncthreads();
    use(key, buffer);]])
percheron_attention_mutant(
  seen_keys_of_another_buffer [[segment, part, rows, key + kRows, buffer ^ 1);]]
  [[segment, part, rows, key + kRows, buffer);]])
percheron_attention_mutant(
  no_barrier_before_rows_are_overwritten
  [[__syncthreads();  // Before the next tile's rows are written.]] "")
percheron_attention_mutant(
  no_barrier_after_the_last_batch [[__syncthreads();  // Everybody is done with the batch before.]] "")
percheron_attention_mutant(
  no_barrier_in_the_scan [[__syncthreads();  // `totals` may be written again at once.]] "")
percheron_attention_mutant(
  wrong_column_of_keys [[const bool seen = keys.sees(key + fragment_column(j, e));]]
  [[const bool seen = keys.sees(key + fragment_column(j, e ^ 1));]])
percheron_attention_mutant(
  wrong_column_of_lanes [[const float delta = walk.lanes[buffer][fragment_column(j, e)].delta;]]
  [[const float delta = walk.lanes[buffer][fragment_column(j, 0)].delta;]])
percheron_attention_mutant(
  rows_of_a_fragment_swapped [[return lane_of_warp() / 4 + e / 2 * 8;]]
  [[return lane_of_warp() / 4 * 2 + e / 2;]])
percheron_attention_mutant(
  matrices_of_a_fragment_swapped
  [[b + (j * 8 + lane % 8 + lane / 16 * 8) * kStride + depth + lane / 8 % 2 * 8]]
  [[b + (j * 8 + lane % 8 + lane / 8 % 2 * 8) * kStride + depth + lane / 16 * 8]])
percheron_attention_mutant(
  an_interval_that_holds_its_end [[const bool seen = lane.sees(first_key + fragment_row(e));]]
  [[const int at = first_key + fragment_row(e);
      const bool seen = lane.sees(at) || at == lane.keys[0].end;]])
percheron_attention_mutant(
  a_second_interval_that_is_forgotten [[return keys[0].sees(key) || keys[1].sees(key);]]
  [[return keys[0].sees(key);]])
percheron_attention_mutant(
  unseen_keys_that_are_copied
  [[return seen[i] != 0 ? row_offset(x, first + i, head) : -1;]]
  [[return first + i < x.rows ? row_offset(x, first + i, head) : -1;]])
percheron_attention_mutant(
  a_tile_to_each_block_alone [[i += static_cast<int>(gridDim.x)) {]] [[i += count) {]])
percheron_attention_mutant(
  tiles_that_begin_anywhere [[if (row == 0) return true;]] [[return row == 0;]])
percheron_attention_mutant(
  keys_replaced_not_added [[row[fragment_column(j, e)] += factor]]
  [[row[fragment_column(j, e)] = factor]])
percheron_attention_mutant(
  unscaled_gradients_of_keys [[add_to_rows<D>(dk, a.scale,]] [[add_to_rows<D>(dk, 1.f,]])

file(CONFIGURE OUTPUT "${mutants_folder}/tests/kernels/attention_mutants.inc" CONTENT "${mutant_list}" @ONLY)
# They see kernels.h and the emulator, as the kernels themselves do.
set_source_files_properties(
  ${mutant_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-O1;-Wno-unknown-pragmas")
percheron_test(
  attention_mutants_test
  SOURCES
  attention_mutants_test.cc
  ${mutant_sources}
  DEPS
  kernels_emulator
  kernels_interface
  TIMEOUT
  600
  APART
  ${mutant_sources})
target_include_directories(attention_mutants_test PRIVATE "${mutants_folder}")

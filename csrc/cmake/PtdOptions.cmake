# Compile options of every target in this project; none of them reaches a consumer of ptd::core.
function(ptd_target_options target)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
                                             CXX_EXTENSIONS OFF)
  # No fused multiply-add and no fast-math: a double here equals the double that Python computes,
  # so the Python reference and the core order their candidates alike.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -ffp-contract=off
                                           $<$<CONFIG:Release>:-O3>)
  if(PTD_SANITIZE)
    # Recovery off: a finding ends the program, so a test cannot pass over it.
    target_compile_options(${target} PRIVATE -fsanitize=${PTD_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer -g)
    target_link_options(${target} PUBLIC -fsanitize=${PTD_SANITIZE})
  endif()
endfunction()

# The flags of each csrc/cpu/kernels_*.cpp.
function(ptd_instruction_sets)
  set(avx2 -mavx2 -mfma)
  set(avx512 -mavx2 -mfma -mavx512f -mavx512dq -mavx512bw -mavx512vl)
  set(avx512_bf16 ${avx512} -mavx512bf16 -mavx512vnni)
  set(amx ${avx512_bf16} -mamx-tile -mamx-bf16 -mamx-int8)
  foreach(name avx2 avx512 avx512_bf16 amx)
    set_property(SOURCE cpu/kernels_${name}.cpp APPEND PROPERTY COMPILE_OPTIONS ${${name}})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 takes the "undefined" operand inside its own AVX-512 intrinsics for a mistake of ours.
    # Following variables through inlined kernels doubles the time of a build with debug symbols.
    foreach(name scalar avx2 avx512 avx512_bf16 amx)
      set_property(SOURCE cpu/kernels_${name}.cpp APPEND
                   PROPERTY COMPILE_OPTIONS -Wno-uninitialized -Wno-maybe-uninitialized
                            -fno-var-tracking)
    endforeach()
  endif()
  if(PTD_SANITIZE)
    # Optimised further, five sets of inlined kernels take minutes to instrument.
    foreach(name scalar avx2 avx512 avx512_bf16 amx)
      set_property(SOURCE cpu/kernels_${name}.cpp APPEND PROPERTY COMPILE_OPTIONS -O1)
    endforeach()
  endif()
endfunction()

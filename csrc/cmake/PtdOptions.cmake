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

# Compiler and linker choices that hold for the whole tree.
find_program(DI_CCACHE ccache)
if(DI_CCACHE)
  # What a precompiled header (cmake/precompile.cmake) needs to be cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${DI_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DI_CCACHE})
endif()
find_program(DI_MOLD mold)
if(DI_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# No contraction: a*b+c is fused only where a kernel says so, or results would differ by compiler.
# Options structs are filled by designated initialisers: fields left out have their defaults.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off
                    -fno-math-errno -ffunction-sections -fdata-sections)
add_link_options(-static-libstdc++ -static-libgcc -Wl,--gc-sections)

if(DI_SANITIZE)
  # GCC takes its own instrumentation of std::function for reads of what was never set.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -g -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
endif()
if(DI_SANITIZE_THREAD)
  add_compile_options(-fsanitize=thread -g)
  add_link_options(-fsanitize=thread)
endif()
if(DI_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined
                      -fno-sanitize-recover=undefined -gline-tables-only)
  add_link_options(-fsanitize=address,undefined)
endif()

# di_precompile(TARGET...): their sources see cmake/precompiled.h without parsing it again; with
# di_precompile_tests also GoogleTest. Two headers are compiled for the whole tree. Sources include
# what they use all the same: every other preset builds without.
option(DI_PRECOMPILE "Parse common headers once" OFF)  # the presets cpu and fuzz turn it on
add_library(di_precompiled STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/empty.cc)
add_library(di_precompiled_tests STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/empty.cc)
target_link_libraries(di_precompiled_tests PRIVATE GTest::gtest)
foreach(target di_precompiled di_precompiled_tests)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE Threads::Threads)
endforeach()
if(DI_PRECOMPILE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")  # or no cache knows it again
  endif()
  target_precompile_headers(di_precompiled PRIVATE ${CMAKE_SOURCE_DIR}/cmake/precompiled.h)
  target_precompile_headers(di_precompiled_tests PRIVATE ${CMAKE_SOURCE_DIR}/cmake/precompiled.h
                            <gtest/gtest.h>)
endif()

# GCC 12 forgets that what comes from a precompiled header is a system's, and reports what it never
# reports of those headers elsewhere: false alarms about std::string.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(DI_PRECOMPILE_WARNINGS -Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow
      -Wno-restrict)
endif()

function(di_precompile)
  if(DI_PRECOMPILE)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM di_precompiled)
      target_compile_options(${target} PRIVATE ${DI_PRECOMPILE_WARNINGS})
    endforeach()
  endif()
endfunction()

function(di_precompile_tests)
  if(DI_PRECOMPILE)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM di_precompiled_tests)
      target_compile_options(${target} PRIVATE ${DI_PRECOMPILE_WARNINGS})
    endforeach()
  endif()
endfunction()

# di_folder(NAME DEPS ...): one library di_NAME from the folder's *.cc, one test program NAME_test
# from its *_test.cc, one libFuzzer program per *_fuzz.cc (with DI_FUZZ), and one Google Benchmark
# program NAME_bench from its *_bench.cc. Files are found by name, so no list can go stale.
# ISA: files under avx2/ avx512/ amx/ are compiled for that instruction set.
set(DI_FLAGS_avx2 -O3 -mavx2 -mfma -mf16c -mbmi -mbmi2)
# A check on every vector load makes unrolled kernels take many minutes to compile.
if(DI_SANITIZE)
  list(APPEND DI_FLAGS_avx2 -O1 -fno-sanitize=undefined)
elseif(DI_FUZZ)
  list(APPEND DI_FLAGS_avx2 -O0 -fno-sanitize=all)  # linked, but no fuzzer reaches them
endif()
set(DI_FLAGS_avx512 ${DI_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd
    -mavx512vnni -mavx512vbmi -mavx512bf16
    # GCC 12 takes the deliberately undefined operands of its own intrinsics for a mistake.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(DI_FLAGS_amx ${DI_FLAGS_avx512} -mamx-tile -mamx-int8 -mamx-bf16)

# Folders whose sources convert between number types only where they say so.
set(DI_CONVERSION_FOLDERS base tensor net cache text api models engine server)
set(DI_CONVERSION $<$<CXX_COMPILER_ID:GNU>:-Wconversion>)  # clang's also counts signs

add_custom_target(benches)  # all *_bench programs
add_custom_target(fuzzers)  # all *_fuzz programs

function(di_add_test name)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endfunction()

function(di_folder name)
  cmake_parse_arguments(ARG "" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  if(NOT DI_CUDA)
    list(FILTER sources EXCLUDE REGEX "/src/backend/cuda/")
  endif()
  set(tests ${sources})
  set(benches ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cc$")
  foreach(isa avx2 avx512 amx)
    set(isa_sources ${sources})
    list(FILTER isa_sources INCLUDE REGEX "/${isa}/")
    set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${DI_FLAGS_${isa}}"
                                SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
  if(NOT sources)
    set(sources ${CMAKE_SOURCE_DIR}/cmake/empty.cc)  # a folder that holds only headers so far
  endif()
  add_library(di_${name} STATIC ${sources})
  target_include_directories(di_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src
                             ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(di_${name} PRIVATE -Wshadow)
  if(name IN_LIST DI_CONVERSION_FOLDERS)
    target_compile_options(di_${name} PRIVATE ${DI_CONVERSION})
  endif()
  target_link_libraries(di_${name} PUBLIC ${ARG_DEPS} Threads::Threads)
  di_precompile(di_${name})
  if(DI_CUDA)
    di_add_kernels(di_${name})
  endif()
  if(tests AND NOT DI_FUZZ)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE di_${name} ${ARG_TEST_DEPS} GTest::gtest_main)
    di_precompile_tests(${name}_test)
    di_add_test(${name}_test)
  endif()
  if(benches AND benchmark_FOUND AND NOT DI_FUZZ)
    add_executable(${name}_bench EXCLUDE_FROM_ALL ${benches})
    target_link_libraries(${name}_bench PRIVATE di_${name} ${ARG_TEST_DEPS}
                          benchmark::benchmark_main)
    add_dependencies(benches ${name}_bench)
  endif()
  if(DI_FUZZ)
    foreach(file ${fuzzers})
      get_filename_component(target ${file} NAME_WE)
      add_executable(${target} ${file})
      target_link_libraries(${target} PRIVATE di_${name} ${ARG_TEST_DEPS})
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${target})
    endforeach()
  endif()
endfunction()

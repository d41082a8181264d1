# di_add_kernels(TARGET): compiles the folder's *.cu into it, with the CUDA runtime, which looks for
# the driver when the program runs. nvcc is called as a tool: the host compiler and its options stay
# those of the tree.
if(NOT DI_CUDA)
  return()
endif()
find_program(DI_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda/bin /opt/cuda/bin)
if(NOT DI_NVCC)
  message(FATAL_ERROR "DI_CUDA needs nvcc 13 or newer in PATH or in CUDA_PATH")
endif()
execute_process(COMMAND ${DI_NVCC} --version OUTPUT_VARIABLE nvcc_version)
string(REGEX MATCH "release ([0-9]+)" unused "${nvcc_version}")
if(CMAKE_MATCH_1 LESS 13)
  message(FATAL_ERROR "DI_CUDA needs nvcc 13 or newer; ${DI_NVCC} is ${CMAKE_MATCH_1}")
endif()
get_filename_component(nvcc_real ${DI_NVCC} REALPATH)
get_filename_component(DI_CUDA_ROOT ${nvcc_real}/../.. ABSOLUTE)
find_library(DI_CUDART libcudart_static.a REQUIRED PATHS ${DI_CUDA_ROOT}/lib64
             ${DI_CUDA_ROOT}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
set(DI_CUDA_ARCHITECTURES 90a 100a CACHE STRING "Kernels are compiled for these")
foreach(arch ${DI_CUDA_ARCHITECTURES})
  list(APPEND DI_NVCC_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(APPEND DI_NVCC_FLAGS -std=c++20 -O3 -Xcompiler=-Wall,-Wextra -Werror=all-warnings
     -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include)

function(di_add_kernels target)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS *.cu)
  if(NOT kernels)
    return()
  endif()
  foreach(source ${kernels})
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${DI_CCACHE} ${DI_NVCC} ${DI_NVCC_FLAGS} -MD -MF ${object}.d -c -o ${object} ${source}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Compiling ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  target_sources(${target} PRIVATE ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_include_directories(${target} SYSTEM PUBLIC ${DI_CUDA_ROOT}/include)
  target_compile_definitions(${target} PRIVATE DI_CUDA)
  target_link_libraries(${target} PUBLIC ${DI_CUDART} dl rt)
endfunction()

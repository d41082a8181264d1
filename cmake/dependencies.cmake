# Libraries from the system's packages, linked statically or header-only (docs/adr/0002).
find_package(Threads REQUIRED)

function(di_static_library target archive header)
  find_library(DI_LIB_${target} NAMES ${archive} REQUIRED)
  find_path(DI_INC_${target} NAMES ${header} REQUIRED)
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${DI_LIB_${target}} ${CMAKE_DL_LIBS})
  target_include_directories(${target} SYSTEM INTERFACE ${DI_INC_${target}})
endfunction()

di_static_library(dep_pcre2 libpcre2-8.a pcre2.h)
target_compile_definitions(dep_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)
di_static_library(dep_utf8proc libutf8proc.a utf8proc.h)
target_compile_definitions(dep_utf8proc INTERFACE UTF8PROC_STATIC)
di_static_library(dep_yaml_cpp libyaml-cpp.a yaml-cpp/yaml.h)
di_static_library(dep_crypto libcrypto.a openssl/evp.h)
di_static_library(dep_ssl libssl.a openssl/ssl.h)
target_link_libraries(dep_ssl INTERFACE dep_crypto)

find_package(GTest REQUIRED)
find_package(benchmark QUIET)

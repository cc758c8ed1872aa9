# Flags and helpers that every target of the project shares.
add_library(tessera_flags INTERFACE)
# A fused multiply-add happens only where the source says so (docs/numerics.md).
set(cxx_flags -ffp-contract=off -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
set(cuda_flags --fmad=false -Xcompiler=-ffp-contract=off,-Wall,-Wextra,-Wshadow,-Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND cxx_flags -Wno-restrict)  # false alarms on std::string in GCC 12 (GCC bug 105651)
endif()
if(TESSERA_WERROR)
  list(APPEND cxx_flags -Werror)
  list(APPEND cuda_flags -Werror=all-warnings)
endif()
target_compile_options(tessera_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES address AND TESSERA_SANITIZE MATCHES undefined)
    # AddressSanitizer ends what these two find; to look twice is a fifth of the time to compile.
    add_compile_options(-fno-sanitize=null,object-size)
  endif()
endif()

# tessera_precompile(NAME LINK ... HEADERS ...): a target whose compiled headers others reuse, where their flags are the
# same. A source includes what it uses all the same: many builds go without.
function(tessera_precompile name)
  if(NOT TESSERA_PRECOMPILE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/empty.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/empty.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} tessera_flags)
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# tessera_precompiled(NAME PRECOMPILED): a target that reuses them.
function(tessera_precompiled name precompiled)
  if(TESSERA_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM ${precompiled})
  endif()
endfunction()

set(TESSERA_COMMON_HEADERS
  <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <functional> <map> <memory> <optional> <set> <span> <string>
  <string_view> <thread> <utility> <vector> <fmt/format.h>)
if(TESSERA_PRECOMPILE)  # whoever reads fmt's header must read it alike
  target_compile_definitions(tessera_flags INTERFACE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>)
endif()
# Without nlohmann/json.hpp: its operator""_json calls the parser, which GCC then instantiates in every source.
tessera_precompile(tessera_headers LINK fmt::fmt HEADERS ${TESSERA_COMMON_HEADERS})

set(TESSERA_FLOORS "" CACHE INTERNAL "")

# Used in sources of the library only, and header-only: who links the library needs none of them.
set(TESSERA_HEADER_ONLY nlohmann_json::nlohmann_json tomlplusplus::tomlplusplus tessera_xxhash tessera_asio tessera_ucx CUDA::nvtx3)

# tessera_floor(NAME sources... ): a library tessera_NAME that sees include/ and the source root; users
# link it as tessera::NAME, from this tree or installed.
function(tessera_floor name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  foreach(library IN LISTS TESSERA_HEADER_ONLY)
    list(TRANSFORM ARG_PRIVATE REPLACE "^${library}$" "$<BUILD_INTERFACE:${library}>")
  endforeach()
  add_library(tessera_${name} ${ARG_SOURCES})  # static, or as BUILD_SHARED_LIBS says
  add_library(tessera::${name} ALIAS tessera_${name})
  set_target_properties(tessera_${name} PROPERTIES EXPORT_NAME ${name} DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
  target_compile_features(tessera_${name} PUBLIC cxx_std_20)
  target_include_directories(tessera_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(tessera_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(tessera_${name} PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:tessera_flags> ${ARG_PRIVATE})
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST ARG_PRIVATE)  # a flag of its own
    tessera_precompiled(tessera_${name} tessera_headers)
  endif()
  set(TESSERA_FLOORS "${TESSERA_FLOORS};tessera_${name}" CACHE INTERNAL "")
endfunction()

# tessera_room(FLOOR SOURCES ... [PRIVATE ...]): called in a folder of its own, adds its sources to the library of a floor,
# and the libraries that they need.
function(tessera_room floor)
  cmake_parse_arguments(ARG "" "" "SOURCES;PRIVATE" ${ARGN})
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/]")
  target_sources(tessera_${floor} PRIVATE ${ARG_SOURCES})
  foreach(library IN LISTS TESSERA_HEADER_ONLY)
    list(TRANSFORM ARG_PRIVATE REPLACE "^${library}$" "$<BUILD_INTERFACE:${library}>")
  endforeach()
  target_link_libraries(tessera_${floor} PRIVATE ${ARG_PRIVATE})
endfunction()

# tessera_timeout(SECONDS TEST...): how long each of these may take. Instrumented code takes several times as long.
function(tessera_timeout seconds)
  if(TESSERA_SANITIZE)
    math(EXPR seconds "4 * ${seconds}")
  endif()
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${seconds})
endfunction()

# tessera_computes(TEST...): tests that keep a core busy, of which two run at a time where ctest is given
# tests/two_cores.json. Others wait most of their time, for a deadline or a peer, and run beside them.
function(tessera_computes)
  set_tests_properties(${ARGN} PROPERTIES RESOURCE_GROUPS "cores:1")
endfunction()

# tessera_test_objects(NAME SOURCES ... LINK ...): tests that several programs link.
function(tessera_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} tessera_flags GTest::gtest)
  tessera_precompiled(${name} tessera_test_headers)
endfunction()

# tessera_test(NAME [SOURCES ...] LINK ... [LABELS ...] [TIMEOUT seconds] [SHARDS n] [COST seconds] [WAITS]): one GoogleTest
# program, registered with ctest; with SHARDS as NAME_1 to NAME_n, which share its tests and may run at the same time. COST
# says that it takes long, so that it starts early; WAITS that it does little else, so that others run beside it.
function(tessera_test name)
  cmake_parse_arguments(ARG "WAITS" "TIMEOUT;SHARDS;COST" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} tessera_flags GTest::gtest_main)
  # Another language, or a flag of its own, has no use for them.
  if(NOT "${ARG_SOURCES}" MATCHES "\\.c(;|$)" AND NOT "OpenMP::OpenMP_CXX" IN_LIST ARG_LINK)
    tessera_precompiled(${name} tessera_test_headers)
  endif()
  if(ARG_SHARDS)
    foreach(shard RANGE 1 ${ARG_SHARDS})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${name}_${shard} COMMAND ${name})
      set_tests_properties(${name}_${shard} PROPERTIES
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
      list(APPEND tests ${name}_${shard})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set(tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${ARG_LABELS}")
  if(ARG_COST)
    set_tests_properties(${tests} PROPERTIES COST ${ARG_COST})
  endif()
  if(NOT ARG_WAITS)
    tessera_computes(${tests})
  endif()
  tessera_timeout(${ARG_TIMEOUT} ${tests})
endfunction()

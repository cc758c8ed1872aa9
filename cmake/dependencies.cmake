# The libraries Tessera stands on. All are Debian packages; GoogleTest and Benchmark can also come from sources
# (FETCHCONTENT_SOURCE_DIR_GOOGLETEST, FETCHCONTENT_SOURCE_DIR_BENCHMARK).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED)

include(cmake/tessera_dnnl.cmake)
if(NOT TARGET tessera_dnnl)
  message(FATAL_ERROR "oneDNN was not found: install libdnnl-dev, or set TESSERA_DNNL_INCLUDE and TESSERA_DNNL_LIBRARY")
endif()

find_path(TESSERA_XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(tessera_xxhash INTERFACE)
target_include_directories(tessera_xxhash SYSTEM INTERFACE ${TESSERA_XXHASH_INCLUDE})
target_compile_definitions(tessera_xxhash INTERFACE XXH_INLINE_ALL)

# Optional parts: AUTO takes what is found, ON insists.
set(TESSERA_WITH_MPI AUTO CACHE STRING "Ranks as processes, by Open MPI or MPICH: AUTO, ON or OFF")
set_property(CACHE TESSERA_WITH_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT TESSERA_WITH_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX TRUE)  # the C++ bindings that MPI 3 removed
  if(TESSERA_WITH_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS CXX)
  else()
    find_package(MPI REQUIRED COMPONENTS CXX)
  endif()
endif()
set(TESSERA_HAS_MPI FALSE)
if(MPI_CXX_FOUND AND NOT TESSERA_WITH_MPI STREQUAL "OFF")
  set(TESSERA_HAS_MPI TRUE)
endif()
include(cmake/cuda.cmake)

include(FetchContent)
if(TESSERA_TESTS)
  FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
                       FIND_PACKAGE_ARGS NAMES GTest)
  FetchContent_MakeAvailable(googletest)
endif()
if(TESSERA_BENCHMARKS)
  set(BENCHMARK_ENABLE_TESTING OFF)
  FetchContent_Declare(benchmark URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
                       FIND_PACKAGE_ARGS NAMES benchmark)
  FetchContent_MakeAvailable(benchmark)
endif()

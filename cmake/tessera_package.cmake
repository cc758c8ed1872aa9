# Debian packages, made by `cpack -G DEB`: tessera, the tool and shared libraries where these are built, and
# libtessera-dev, the headers, the archives and the files for CMake and pkg-config. scripts/package.sh makes them.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR "The developers of Tessera")
set(CPACK_PACKAGE_CONTACT "The developers of Tessera")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains models larger than one device's memory")

set(CPACK_COMPONENTS_ALL dev)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION "Headers, libraries and the files for CMake and pkg-config of Tessera, a C++20
library that shards parameters, gradients and optimizer states over ranks
(ZeRO stages 0 to 3). It has a C API.")
set(runtime FALSE)
if(TESSERA_TOOL OR TESSERA_SHARED)
  set(runtime TRUE)
  list(APPEND CPACK_COMPONENTS_ALL runtime)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME tessera)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
  if(NOT TESSERA_HAS_CUDA)  # NVIDIA's libraries are in no package of Debian's
    set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
  endif()
  set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The tool of Tessera. It trains GPT-2 and Llama models from a configuration
file, plans their memory, simulates clusters, and inspects and exports
checkpoints.")
endif()

# What a program that links the library needs on the machine that builds it.
set(depends "")
if(TESSERA_SHARED)
  set(depends "tessera (= ${PROJECT_VERSION})")
else()
  if(fmt_VERSION MATCHES "^[0-9]+")  # the archives have the names of this version
    math(EXPR next "${CMAKE_MATCH_0} + 1")
    set(depends "libfmt-dev (>= ${CMAKE_MATCH_0})" "libfmt-dev (<< ${next})")
  endif()
  list(APPEND depends libhwy-dev libdnnl-dev)
  if(TESSERA_HAS_MPI)
    string(FIND "${MPI_CXX_LIBRARIES}" mpich mpich)
    if(mpich EQUAL -1)
      list(APPEND depends libopenmpi-dev)
    else()
      list(APPEND depends libmpich-dev)
    endif()
  endif()
  if(TESSERA_HAS_LIBURING)
    list(APPEND depends liburing-dev)
  endif()
  if(TESSERA_HAS_TEXT)
    list(APPEND depends libpcre2-dev libicu-dev)
  endif()
  string(REGEX MATCH "^[0-9]+" gcc "${CMAKE_CXX_COMPILER_VERSION}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # with OpenMP's library
    list(APPEND depends libstdc++-${gcc}-dev)
  endif()
endif()
list(JOIN depends ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)

# Each package has the license where Debian looks for it.
install(FILES LICENSE DESTINATION share/doc/libtessera-dev RENAME copyright COMPONENT dev EXCLUDE_FROM_ALL)
if(runtime)
  install(FILES LICENSE DESTINATION share/doc/tessera RENAME copyright COMPONENT runtime EXCLUDE_FROM_ALL)
endif()
include(CPack)

# The imported target tessera_dnnl: oneDNN by its files. Debian's CMake config of it demands OpenCL. Used by the
# build and, installed beside tesseraConfig.cmake, by consumers: the library is looked for on their machine.
if(NOT TARGET tessera_dnnl)
  find_path(TESSERA_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_library(TESSERA_DNNL_LIBRARY dnnl)
  mark_as_advanced(TESSERA_DNNL_INCLUDE TESSERA_DNNL_LIBRARY)
  if(TESSERA_DNNL_INCLUDE AND TESSERA_DNNL_LIBRARY)
    add_library(tessera_dnnl INTERFACE IMPORTED GLOBAL)
    set_target_properties(tessera_dnnl PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_DNNL_INCLUDE}"
      INTERFACE_LINK_LIBRARIES "${TESSERA_DNNL_LIBRARY}")
  endif()
endif()

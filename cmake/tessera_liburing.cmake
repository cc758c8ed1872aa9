# The imported target tessera_liburing, by its files. Used by the build and, installed beside tesseraConfig.cmake, by
# consumers: the library is looked for on their machine.
if(NOT TARGET tessera_liburing)
  find_path(TESSERA_LIBURING_INCLUDE liburing.h)
  find_library(TESSERA_LIBURING_LIBRARY uring)
  mark_as_advanced(TESSERA_LIBURING_INCLUDE TESSERA_LIBURING_LIBRARY)
  if(TESSERA_LIBURING_INCLUDE AND TESSERA_LIBURING_LIBRARY)
    add_library(tessera_liburing INTERFACE IMPORTED GLOBAL)
    set_target_properties(tessera_liburing PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_LIBURING_INCLUDE}"
      INTERFACE_LINK_LIBRARIES "${TESSERA_LIBURING_LIBRARY}")
  endif()
endif()

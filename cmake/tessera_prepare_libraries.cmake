# The imported target tessera_prepare_libraries: zlib, Zstandard and simdjson, by their files. Used by the tool alone.
foreach(of "ZLIB zlib.h z" "ZSTD zstd.h zstd" "SIMDJSON simdjson.h simdjson")
  separate_arguments(of)
  list(GET of 0 name)
  list(GET of 1 header)
  list(GET of 2 library)
  find_path(TESSERA_${name}_INCLUDE ${header})
  find_library(TESSERA_${name}_LIBRARY ${library})
  mark_as_advanced(TESSERA_${name}_INCLUDE TESSERA_${name}_LIBRARY)
endforeach()
if(TESSERA_ZLIB_INCLUDE AND TESSERA_ZLIB_LIBRARY AND TESSERA_ZSTD_INCLUDE AND TESSERA_ZSTD_LIBRARY
   AND TESSERA_SIMDJSON_INCLUDE AND TESSERA_SIMDJSON_LIBRARY)
  add_library(tessera_prepare_libraries INTERFACE IMPORTED GLOBAL)
  set_target_properties(tessera_prepare_libraries PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_ZLIB_INCLUDE};${TESSERA_ZSTD_INCLUDE};${TESSERA_SIMDJSON_INCLUDE}"
    INTERFACE_LINK_LIBRARIES "${TESSERA_ZLIB_LIBRARY};${TESSERA_ZSTD_LIBRARY};${TESSERA_SIMDJSON_LIBRARY}")
endif()

# The imported targets tessera_pcre2 and tessera_icu, by their files. Used by the build and, installed beside
# tesseraConfig.cmake, by consumers: the libraries are looked for on their machine.
if(NOT TARGET tessera_pcre2)
  find_path(TESSERA_PCRE2_INCLUDE pcre2.h)
  find_library(TESSERA_PCRE2_LIBRARY pcre2-8)
  mark_as_advanced(TESSERA_PCRE2_INCLUDE TESSERA_PCRE2_LIBRARY)
  if(TESSERA_PCRE2_INCLUDE AND TESSERA_PCRE2_LIBRARY)
    add_library(tessera_pcre2 INTERFACE IMPORTED GLOBAL)
    set_target_properties(tessera_pcre2 PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_PCRE2_INCLUDE}"
      INTERFACE_LINK_LIBRARIES "${TESSERA_PCRE2_LIBRARY}")
  endif()
endif()
if(NOT TARGET tessera_icu)
  find_path(TESSERA_ICU_INCLUDE unicode/normalizer2.h)
  find_library(TESSERA_ICU_LIBRARY icuuc)
  mark_as_advanced(TESSERA_ICU_INCLUDE TESSERA_ICU_LIBRARY)
  if(TESSERA_ICU_INCLUDE AND TESSERA_ICU_LIBRARY)
    add_library(tessera_icu INTERFACE IMPORTED GLOBAL)
    set_target_properties(tessera_icu PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_ICU_INCLUDE}"
      INTERFACE_LINK_LIBRARIES "${TESSERA_ICU_LIBRARY}")
  endif()
endif()

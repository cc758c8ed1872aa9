# What `cmake --install` lays down for users of the library: headers, one archive per floor, the package that
# find_package(tessera) reads, and the files of pkg-config. Included after the last floor of the library, before the tool.
# The components are `runtime`, what programs need when they run, and `dev`, what they are built from.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera ${TESSERA_FLOORS} EXPORT tesseraTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package} COMPONENT dev)

configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/tessera_dnnl.cmake ${PROJECT_SOURCE_DIR}/cmake/tessera_liburing.cmake
              ${PROJECT_SOURCE_DIR}/cmake/tessera_nvidia.cmake ${PROJECT_SOURCE_DIR}/cmake/tessera_text_libraries.cmake
        DESTINATION ${package} COMPONENT dev)
include(cmake/tessera_pkgconfig.cmake)

# `cmake --install`: headers, library, program, and what find_package and pkg-config read. No installed file holds an
# absolute path, so the tree can be moved as a whole.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(cmake/launcher_documents.cmake)

# Libraries that lie where the loader does not look by itself are found where they were at build time.
set_property(TARGET lockstep PROPERTY INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS lockstep EXPORT LockstepTargets)
if(TARGET lockstep_preload)
  install(TARGETS lockstep_preload)
endif()
if(TARGET lockstep_program)
  install(TARGETS lockstep_program)
endif()
install_launcher_documents(${CMAKE_INSTALL_DATADIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep TYPE INCLUDE)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
configure_package_config_file(cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
# Before 1.0 a new minor version may break what compiled.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        DESTINATION ${package_folder})

file(RELATIVE_PATH prefix_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

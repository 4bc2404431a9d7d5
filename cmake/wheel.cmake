# The wheel: the library inside the package, the program on the path. A wheel is an archive without links, so the library
# has one plain name; what it needs beside the C library travels with it and is found from its own folder.
set_property(TARGET lockstep PROPERTY VERSION)
set_property(TARGET lockstep PROPERTY SOVERSION)
set_property(TARGET lockstep PROPERTY INSTALL_RPATH "$ORIGIN")
install(TARGETS lockstep LIBRARY DESTINATION lib)
install(TARGETS lockstep_program RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
if(HWY_LIBRARY MATCHES "\\.so")
  execute_process(COMMAND ${CMAKE_READELF} --dynamic ${HWY_LIBRARY} OUTPUT_VARIABLE hwy_dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "soname: \\[([^]]+)" hwy_soname "${hwy_dynamic}")
  file(REAL_PATH ${HWY_LIBRARY} hwy_file)
  install(PROGRAMS ${hwy_file} DESTINATION lib RENAME ${CMAKE_MATCH_1})
endif()

# Makes a target of the objects that it has in another build instead of its sources: what differs is how they are linked.
# An empty name of that build's folder changes nothing.
function(take_compiled target sources build)
  if(NOT build)
    return()
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
  set(objects)
  foreach(source IN LISTS ${sources})
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    string(REPLACE ../ __/ source ${source})  # as CMake names what lies outside
    list(APPEND objects ${build}/${folder}/CMakeFiles/${target}.dir/${source}.o)
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE)
  set(${sources} ${objects} PARENT_SCOPE)
endfunction()

# How the same thing is compiled as few times as possible.

# Files of a folder are compiled together, a few at a time: most of what a compiler does for one of them it need not do
# again for the next. So two files of a folder do not use one name for two things, not even inside their anonymous
# namespaces. Without it, as in the preset debug, every file is compiled by itself, which is quicker after a change in one.
option(LOCKSTEP_TOGETHER "Compile the files of a folder together" OFF)
set(files_at_once 8)
if(LOCKSTEP_TOGETHER)
  # What GCC 12 says of a file that is included by one other only, of a time that is copied, and at -O1 of std::string.
  add_compile_options(-Wno-subobject-linkage -Wno-dangling-pointer)
  if(LOCKSTEP_SANITIZE)
    add_compile_options(-Wno-array-bounds)
  endif()
endif()

# Makes of a list of sources one of files that include them. Sources that have options of their own, or say
# so (SKIP_UNITY_BUILD_INCLUSION), stay by themselves.
# (Not CMake's own way, whose files hold absolute paths, for which the compiler cache would miss in another clone.)
function(compile_together target sources)
  if(NOT LOCKSTEP_TOGETHER)
    return()
  endif()
  set(result)
  set(units)
  foreach(source IN LISTS ${sources})
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    get_source_file_property(own_options ${source} COMPILE_OPTIONS)
    get_source_file_property(by_itself ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(own_options OR by_itself)
      list(APPEND result ${source})
      continue()
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER ${folder} folder)
    list(APPEND files_of_${folder} ${source})
    list(LENGTH files_of_${folder} number)
    math(EXPR number "(${number} - 1) / ${files_at_once} + 1")
    set(unit ${folder}_${number})
    list(APPEND units ${unit})
    string(APPEND content_of_${unit} "#include \"${source}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES units)
  foreach(unit IN LISTS units)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/together/${target}/${unit}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content_of_${unit}}" @ONLY)  # written only when it changes
    list(APPEND result ${file})
  endforeach()
  include_directories(${PROJECT_SOURCE_DIR})
  set(${sources} ${result} PARENT_SCOPE)
endfunction()

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
    cmake_path(IS_PREFIX CMAKE_CURRENT_BINARY_DIR ${source} is_made)
    if(is_made)  # by compile_together
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    else()
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    endif()
    string(REPLACE ../ __/ source ${source})  # as CMake names what lies outside
    list(APPEND objects ${build}/${folder}/CMakeFiles/${target}.dir/${source}.o)
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE)
  set(${sources} ${objects} PARENT_SCOPE)
endfunction()

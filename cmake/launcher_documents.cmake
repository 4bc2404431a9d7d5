# Installs the manual page and the completion of the program `lockstep`, which launcher/CMakeLists.txt makes, below a folder
# `share`. From the folder of a program man and bash find those beside it, in a wheel's environment too.
function(install_launcher_documents share)
  if(NOT TARGET launcher_documents)
    return()
  endif()
  set(made ${PROJECT_BINARY_DIR}/launcher)
  install(FILES ${made}/lockstep.manual DESTINATION ${share}/man/man1 RENAME lockstep.1)
  install(FILES ${made}/lockstep.completion DESTINATION ${share}/bash-completion/completions RENAME lockstep)
endfunction()

# sdort_operator_files(VARIABLE NAME): the files of that name (a pattern) in the folders of operators/ that SDORT_OPERATORS asks
# for, relative to this project.
function(sdort_operator_files variable name)
  file(GLOB found RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS operators/*/${name})
  if(SDORT_OPERATORS)
    list(JOIN SDORT_OPERATORS "|" folders)
    list(FILTER found INCLUDE REGEX "^operators/(${folders})/")
  endif()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

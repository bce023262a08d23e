# find_package(outlive): the target outlive::outlive, for C and C++. Fortran programs also compile
# ${outlive_FORTRAN_SOURCE} with their own compiler, since its module files fit no other.
get_filename_component(_outlive_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET outlive::outlive)
  add_library(outlive::outlive SHARED IMPORTED)
  set_target_properties(outlive::outlive PROPERTIES
    IMPORTED_LOCATION "${_outlive_prefix}/lib/liboutlive.so.@ABI@"
    IMPORTED_SONAME "liboutlive.so.@ABI@"
    INTERFACE_INCLUDE_DIRECTORIES "${_outlive_prefix}/include")
endif()
set(outlive_FORTRAN_SOURCE "${_outlive_prefix}/include/outlive.F90")
unset(_outlive_prefix)

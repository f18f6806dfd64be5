# What find_package(ucall) reads, in PREFIX/lib/cmake/ucall: gives ucall::ucall.

get_filename_component(ucall_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
include("${CMAKE_CURRENT_LIST_DIR}/ucallTargets.cmake")
ucall_add_targets(
    "${ucall_prefix}/include"
    "${ucall_prefix}/lib/libucall.a"
    "${ucall_prefix}/lib/libucall${CMAKE_SHARED_LIBRARY_SUFFIX}")
unset(ucall_prefix)

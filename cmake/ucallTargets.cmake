# Defines ucall::static, ucall::shared and ucall::ucall, which is one of the two: the shared one if
# BUILD_SHARED_LIBS is on. Used by the build from source and by the installed package.

function(ucall_add_targets include_folder static_library shared_library)
    if(TARGET ucall::ucall)
        return()
    endif()
    find_package(Threads REQUIRED)

    add_library(ucall_static STATIC IMPORTED GLOBAL)
    set_target_properties(ucall_static PROPERTIES
        IMPORTED_LOCATION "${static_library}"
        INTERFACE_INCLUDE_DIRECTORIES "${include_folder}"
        INTERFACE_LINK_LIBRARIES "Threads::Threads;m;${CMAKE_DL_LIBS}")
    add_library(ucall::static ALIAS ucall_static)

    add_library(ucall_shared SHARED IMPORTED GLOBAL)
    set_target_properties(ucall_shared PROPERTIES
        IMPORTED_LOCATION "${shared_library}"
        INTERFACE_INCLUDE_DIRECTORIES "${include_folder}")
    add_library(ucall::shared ALIAS ucall_shared)

    if(BUILD_SHARED_LIBS)
        add_library(ucall::ucall ALIAS ucall_shared)
    else()
        add_library(ucall::ucall ALIAS ucall_static)
    endif()
endfunction()

# The C interface: ptd_capi, objects for programs of this project, and of them ptd::c, libptd.so.
#
# libptd.so holds the core, needs nothing but the C++ runtime, and shows no symbol but ptd_*. Its
# file has no version in its name: a wheel keeps no symbolic links. ptd_abi_version() tells it.
file(GLOB capi_sources CONFIGURE_DEPENDS capi/*.cpp)
add_library(ptd_capi OBJECT ${capi_sources})
ptd_target_options(ptd_capi)
set_target_properties(ptd_capi PROPERTIES POSITION_INDEPENDENT_CODE ON
                                          CXX_VISIBILITY_PRESET hidden
                                          VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(ptd_capi PUBLIC ptd_core)

add_library(ptd_c SHARED $<TARGET_OBJECTS:ptd_capi>)
add_library(ptd::c ALIAS ptd_c)
ptd_target_options(ptd_c)
set_target_properties(ptd_c PROPERTIES OUTPUT_NAME ptd EXPORT_NAME c LINKER_LANGUAGE CXX)
target_include_directories(
  ptd_c INTERFACE "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_libraries(ptd_c PRIVATE $<BUILD_INTERFACE:ptd_core>)
if(UNIX AND NOT APPLE)
  set(exports "${CMAKE_CURRENT_SOURCE_DIR}/capi/libptd.map")
  target_link_options(ptd_c PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(ptd_c PROPERTIES LINK_DEPENDS "${exports}")
endif()

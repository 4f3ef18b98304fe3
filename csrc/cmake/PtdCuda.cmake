# The CUDA kernels: ptd_cuda_objects, and of them ptd::cuda.
#
# CUDA's runtime is linked into whoever uses the objects, so nothing of CUDA but the driver has to be
# there when they run; and they load without a driver.
find_package(CUDAToolkit REQUIRED)
file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cu)
add_library(ptd_cuda_objects OBJECT ${cuda_sources})
set_target_properties(ptd_cuda_objects PROPERTIES
                      POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                      CUDA_EXTENSIONS OFF)
target_include_directories(ptd_cuda_objects PRIVATE include)
target_compile_options(ptd_cuda_objects PRIVATE -Xcompiler=-Wall)

add_library(ptd_cuda SHARED $<TARGET_OBJECTS:ptd_cuda_objects>)
add_library(ptd::cuda ALIAS ptd_cuda)
set_target_properties(ptd_cuda PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME cuda)
target_compile_features(ptd_cuda PUBLIC cxx_std_17)
target_include_directories(
  ptd_cuda PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>"
                  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_libraries(ptd_cuda PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>
                               INTERFACE CUDA::toolkit)

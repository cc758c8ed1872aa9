# The CUDA toolkit's libraries, and the imported targets tessera_nccl and tessera_cudnn where these lie beside it (or
# where TESSERA_NCCL_INCLUDE, TESSERA_NCCL_LIBRARY and the like say). Used by the build and, installed beside
# tesseraConfig.cmake, by consumers: the libraries are looked for on their machine. A toolkit is taken that has the
# major version of TESSERA_CUDA_VERSION, the build's. NVIDIA's pip wheels have lib/ without lib64/, and NCCL and cuDNN
# in folders of their own beside the toolkit's.
string(REGEX MATCH "^[0-9]+" tessera_cuda_major "${TESSERA_CUDA_VERSION}")
set(tessera_toolkit ${CUDAToolkit_ROOT})
if(NOT tessera_toolkit AND CMAKE_CUDA_COMPILER)
  get_filename_component(tessera_toolkit ${CMAKE_CUDA_COMPILER} DIRECTORY)
  set(tessera_toolkit ${tessera_toolkit}/..)
endif()
if(tessera_toolkit)  # under the names by which FindCUDAToolkit knows them; the wheels have no libcublasLt.so either
  find_library(CUDA_CUDART NAMES cudart libcudart.so.${tessera_cuda_major} NAMES_PER_DIR HINTS ${tessera_toolkit} PATH_SUFFIXES lib64 lib)
  find_library(CUDA_cublasLt_LIBRARY NAMES cublasLt libcublasLt.so.${tessera_cuda_major} NAMES_PER_DIR HINTS ${tessera_toolkit}
               PATH_SUFFIXES lib64 lib)
endif()
mark_as_advanced(CUDA_CUDART CUDA_cublasLt_LIBRARY)
find_package(CUDAToolkit ${tessera_cuda_major} QUIET)
if(CUDAToolkit_FOUND AND NOT CUDAToolkit_VERSION_MAJOR EQUAL tessera_cuda_major)
  set(CUDAToolkit_FOUND FALSE)
endif()

function(tessera_find_nvidia name folder header)
  string(TOUPPER ${name} upper)
  foreach(include IN LISTS CUDAToolkit_INCLUDE_DIRS)
    list(APPEND roots ${include}/.. ${include}/../../${folder})
  endforeach()
  find_path(TESSERA_${upper}_INCLUDE ${header} HINTS ${roots} PATH_SUFFIXES include)
  find_library(TESSERA_${upper}_LIBRARY NAMES ${name} ${ARGN} NAMES_PER_DIR HINTS ${roots} PATH_SUFFIXES lib64 lib)
  mark_as_advanced(TESSERA_${upper}_INCLUDE TESSERA_${upper}_LIBRARY)
  if(TESSERA_${upper}_INCLUDE AND TESSERA_${upper}_LIBRARY AND NOT TARGET tessera_${name})
    add_library(tessera_${name} INTERFACE IMPORTED GLOBAL)
    set_target_properties(tessera_${name} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_${upper}_INCLUDE}"
      INTERFACE_LINK_LIBRARIES "${TESSERA_${upper}_LIBRARY}")
  endif()
endfunction()
if(CUDAToolkit_FOUND)
  tessera_find_nvidia(nccl nccl nccl.h libnccl.so.2)
  tessera_find_nvidia(cudnn cudnn cudnn_graph.h libcudnn.so.9)
endif()

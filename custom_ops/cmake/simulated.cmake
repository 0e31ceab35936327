# The kernels as CPU code, one library for each kind of wave and matrix unit: what tests run in place of a GPU.
file(GLOB simulated_sources CONFIGURE_DEPENDS simulated/*.cpp operators/*/simulated.cpp)
sdort_operator_files(with_kernels kernel.h)
set(simulated_text "#include \"simulated/simulated.h\"\n")
foreach(kernel ${with_kernels})
  string(REGEX REPLACE "operators/(.+)/kernel.h" "\\1" operator ${kernel})
  set(header operators/${operator}/geometry.h)
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    set(header operators/${operator}/${operator}.h)  # rows/geometry.h has the rest
  endif()
  string(APPEND simulated_text "#include \"${header}\"\nSDORT_SIMULATED_OPERATOR(${operator})\n")
endforeach()
file(CONFIGURE OUTPUT ${code_folder}/simulated_operators.cpp CONTENT "${simulated_text}" @ONLY)
list(APPEND simulated_sources ${code_folder}/simulated_operators.cpp)
foreach(machine "mfma:64:SDORT_MATRIX_MFMA" "wmma_gfx11:32:SDORT_MATRIX_WMMA_GFX11" "wmma_gfx12:32:SDORT_MATRIX_WMMA_GFX12"
        "mma_sync:32:SDORT_MATRIX_MMA_SYNC")
  string(REPLACE ":" ";" parts ${machine})
  list(GET parts 0 name)
  list(GET parts 1 wave)
  list(GET parts 2 matrix)
  add_library(sdort_simulated_${name} SHARED device/simulated.cpp ${device_source} ${simulated_sources})
  target_compile_definitions(sdort_simulated_${name} PRIVATE SDORT_SIMULATED_WAVE=${wave} ${matrix}=1)
  # -O3 takes twice as long to compile as -O1, and the tests run each kernel for milliseconds.
  target_compile_options(sdort_simulated_${name} PRIVATE -O1 -Wall -Wextra -Werror -Wno-restrict -Wno-unknown-pragmas
                         -fvisibility=default -mf16c)
  target_include_directories(sdort_simulated_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_options(sdort_simulated_${name} PRIVATE -Wl,--no-undefined)
endforeach()

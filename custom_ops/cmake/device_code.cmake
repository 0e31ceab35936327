# Compiles every operators/*/*kernel.h, in one source an architecture, and embeds the results. Sets SDORT_DEVICE_CODE (sources
# to link) and device_source.
set(code_folder ${CMAKE_BINARY_DIR}/code)
file(MAKE_DIRECTORY ${code_folder})
sdort_operator_files(kernels *kernel.h)
list(TRANSFORM kernels REPLACE "(.+)" "#include \"\\1\"")
list(JOIN kernels "\n" includes)
set(device_source ${code_folder}/kernels.cpp)
file(CONFIGURE OUTPUT ${device_source} CONTENT "${includes}\n" @ONLY)
file(GLOB device_headers CONFIGURE_DEPENDS operators/*/*.h rows/*.h device/*.h)
set(objects "")  # vendor:architecture:file
set(left_out "")

set(hip_flags -x hip -nogpuinc -nogpulib --cuda-device-only --no-gpu-bundle-output -mcode-object-version=5 -O3
              -std=c++20 -Wall -Werror -Wno-unused-command-line-argument -Wno-pass-failed -I${CMAKE_CURRENT_SOURCE_DIR})
set(cuda_flags -O3 -std=c++20 -Werror all-warnings -I${CMAKE_CURRENT_SOURCE_DIR})

if(NOT SDORT_HIP STREQUAL "OFF")
  find_program(SDORT_HIP_COMPILER NAMES amdclang++ clang++-22 clang++-21 clang++-20 clang++-19 clang++
               HINTS $ENV{ROCM_PATH}/llvm/bin /opt/rocm/llvm/bin)
  set(empty ${code_folder}/empty.hip)
  file(WRITE ${empty} "")
  foreach(arch ${SDORT_HIP_ARCHS})
    set(failed 1)
    if(SDORT_HIP_COMPILER)
      execute_process(COMMAND ${SDORT_HIP_COMPILER} ${hip_flags} --offload-arch=${arch} -c ${empty} -o ${empty}.o
                      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    endif()
    if(failed)
      list(APPEND left_out ${arch})
      continue()
    endif()
    set(object ${code_folder}/${arch}.hsaco)
    add_custom_command(OUTPUT ${object} DEPENDS ${device_source} ${device_headers} VERBATIM
                       COMMAND ${SDORT_HIP_COMPILER} ${hip_flags} --offload-arch=${arch} -c ${device_source} -o ${object})
    list(APPEND objects hip:${arch}:${object})
  endforeach()
  if(left_out AND SDORT_HIP STREQUAL "ON")
    message(FATAL_ERROR "no compiler for ${left_out}: install clang-19, lld-19 and llvm-19, or ROCm, "
                        "or pass -DSDORT_HIP_COMPILER=<clang++>")
  endif()
endif()

if(NOT SDORT_CUDA STREQUAL "OFF")
  find_program(SDORT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(SDORT_NVCC)
    list(GET SDORT_CUDA_ARCHS 0 oldest)
    set(ptx ${code_folder}/compute_${oldest}.ptx)
    add_custom_command(OUTPUT ${ptx} DEPENDS ${device_source} ${device_headers} VERBATIM
                       COMMAND ${SDORT_NVCC} ${cuda_flags} -x cu -arch=compute_${oldest} -ptx ${device_source} -o ${ptx})
    foreach(arch ${SDORT_CUDA_ARCHS})
      set(object ${code_folder}/sm_${arch}.cubin)
      string(REGEX REPLACE "^90$" "90a" target ${arch})  # every GPU of compute capability 9.0 has its instructions
      set(language -x cu)
      set(source ${device_source})
      if(target STREQUAL oldest)
        set(language "")
        set(source ${ptx})  # its own PTX on the way there would be the same
      endif()
      add_custom_command(OUTPUT ${object} DEPENDS ${source} ${device_headers} VERBATIM
                         COMMAND ${SDORT_NVCC} ${cuda_flags} -gencode arch=compute_${target},code=sm_${target} -cubin ${language} ${source} -o ${object})
      list(APPEND objects cuda:sm_${arch}:${object})
    endforeach()
    list(APPEND objects cuda:compute_${oldest}:${ptx})
  elseif(SDORT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "nvcc is not here: install the CUDA toolkit or set CUDA_HOME")
  else()
    list(APPEND left_out "NVIDIA GPUs (no nvcc)")
  endif()
endif()

# One assembly file brings the bytes in, one C++ file lists them. Objects are aligned as loaders want ELF files, and end
# with a zero, as PTX is text.
set(assembly ".section .rodata\n")
set(declarations "")
set(rows "")
set(files "")
foreach(entry ${objects})
  string(REPLACE ":" ";" parts ${entry})
  list(GET parts 0 vendor)
  list(GET parts 1 arch)
  list(GET parts 2 file)
  list(APPEND files ${file})
  set(symbol sdort_code_${vendor}_${arch})
  string(APPEND assembly ".balign 4096\n.hidden ${symbol}\n.global ${symbol}\n${symbol}:\n.incbin \"${file}\"\n"
                         ".hidden ${symbol}_end\n.global ${symbol}_end\n${symbol}_end:\n.byte 0\n")
  string(APPEND declarations "extern \"C\" const unsigned char ${symbol}[], ${symbol}_end[];\n")
  string(APPEND rows "    {\"${vendor}\", \"${arch}\", ${symbol}, ${symbol}_end},\n")
endforeach()
set(table ${CMAKE_CURRENT_SOURCE_DIR}/tuning/shipped.tsv)
list(APPEND files ${table})
string(APPEND assembly ".hidden sdort_shipped_table\n.global sdort_shipped_table\nsdort_shipped_table:\n.incbin \"${table}\"\n"
                       ".hidden sdort_shipped_table_end\n.global sdort_shipped_table_end\nsdort_shipped_table_end:\n")
string(APPEND assembly ".section .note.GNU-stack,\"\",@progbits\n")
if(WIN32)  # whose object files hide what is not exported, and name their sections otherwise
  string(REGEX REPLACE "\\.hidden [^\n]+\n|\\.section \\.note[^\n]+\n" "" assembly "${assembly}")
  string(REPLACE ".section .rodata" ".section .rdata,\"dr\"" assembly "${assembly}")
endif()
file(CONFIGURE OUTPUT ${code_folder}/code_objects.S CONTENT "${assembly}" @ONLY)
file(CONFIGURE OUTPUT ${code_folder}/code_objects.cpp CONTENT "#include \"driver/code_objects.h\"
${declarations}
namespace sdort {
const CodeObject kCodeObjects[] = {
${rows}    {nullptr, nullptr, nullptr, nullptr},
};
const size_t kCodeObjectCount = sizeof kCodeObjects / sizeof *kCodeObjects - 1;
}  // namespace sdort
" @ONLY)
set(SDORT_DEVICE_CODE ${code_folder}/code_objects.S ${code_folder}/code_objects.cpp)
set_source_files_properties(${code_folder}/code_objects.S PROPERTIES OBJECT_DEPENDS "${files}")

set(built "")
foreach(entry ${objects})
  string(REGEX REPLACE "^[a-z]+:([^:]+):.*" "\\1" arch ${entry})
  list(APPEND built ${arch})
endforeach()
message(STATUS "machine code: ${built}")
message(STATUS "left out: ${left_out}")

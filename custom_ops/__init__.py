"""The sources of libsdort_ops.so (see CMakeLists.txt), installed with the package; `sdort ops build` compiles them."""

// What all files of Metal kernels share; it stands in front of each when a library is compiled.
//
// Everything here is also C++: the tests beside compile it against headers that stand for metal_stdlib, and hold the kernels
// against the formulas on any machine. Activations and sums are f32.
#include <metal_stdlib>
using namespace metal;

// Memory of a threadgroup that a kernel declares or is given; C++ has other words for it.
#ifndef SHARED
#define SHARED threadgroup
#define SHARED_AT(index) [[threadgroup(index)]]
#endif

constant constexpr uint SIMD = 32;
// Threads of a threadgroup, where a kernel takes threadgroups.
constant constexpr uint THREADS = 128;

// Loops over arrays in registers, which would lie in memory if one were left.
#define UNROLLED _Pragma("clang loop unroll(full)") for

// Shared by all kernels. Activations and sums are f32; a kernel writes every element of its output.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define WARP 32

// Kernels overlap: a kernel's blocks may start while the last blocks of the previous one still run, load data that no
// kernel writes, and then wait here before anything else. On devices without this feature (before compute capability
// 9.0) kernels start one after the other, and both functions are no-ops.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// For kernels that have nothing to do ahead.
__device__ __forceinline__ void begin() {
    let_next_start();
    wait_for_inputs();
}

// Copies 16 bytes to shared memory without going through a register.
__device__ __forceinline__ void copy16(void *to, const void *from) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Waits until all but the last N groups of copies have arrived.
template <int N> __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Sum over a block of at most 1024 threads, returned to every thread; `scratch` has 32 elements.
__device__ __forceinline__ float block_sum(float value, float *scratch) {
    value = warp_sum(value);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = lane < (blockDim.x + WARP - 1) / WARP ? scratch[lane] : 0.0f;
    value = warp_sum(value);
    __syncthreads();
    return value;
}

// Maximum over a block, returned to every thread.
__device__ __forceinline__ float block_max(float value, float *scratch) {
    value = warp_max(value);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = lane < (blockDim.x + WARP - 1) / WARP ? scratch[lane] : -INFINITY;
    value = warp_max(value);
    __syncthreads();
    return value;
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T> __device__ __forceinline__ T from_float(float value);
template <> __device__ __forceinline__ float from_float<float>(float value) { return value; }
template <> __device__ __forceinline__ __half from_float<__half>(float value) { return __float2half_rn(value); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

// Activation functions by the caller's ids: SiLU, GELU with the error function, GELU with tanh; from 4 on sigmoid and
// softplus. NaN stays NaN.
__device__ __forceinline__ float activation(int kind, float x) {
    if (kind == 0) return x / (1.0f + expf(-x));
    if (kind == 1) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    if (kind == 4) return 1.0f / (1.0f + expf(-x));
    if (kind == 5) return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    const float inner = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

// The middle of a gated MLP: `activation(gate) · up`, or gpt-oss's gate if the kind is CLAMPED.
static constexpr int CLAMPED = 3;
__device__ __forceinline__ float gated(int kind, float gate, float up, float alpha, float limit) {
    if (kind != CLAMPED) return activation(kind, gate) * up;
    const float held = fminf(gate, limit);
    return held / (1.0f + expf(-alpha * held)) * (fminf(fmaxf(up, -limit), limit) + 1.0f);
}

// D = A · B + D for a 16×16 A and a 16×8 B of bf16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Same for f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

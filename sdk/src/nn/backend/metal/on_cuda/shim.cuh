// Stands for Apple's headers where the kernels are rewritten for nvcc (see check.py): real threads, real barriers.
#pragma once
#include <cuda_fp16.h>
#include <cstdint>

using uchar = uint8_t;

namespace metal {
template <typename To, typename From> static __device__ __forceinline__ To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
static __device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
static __device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

constexpr unsigned LANES = 0xFFFFFFFFu;
template <typename T> static __device__ __forceinline__ T simd_shuffle_xor(T value, unsigned mask) {
    return __shfl_xor_sync(LANES, value, mask);
}
template <typename T> static __device__ __forceinline__ T simd_shuffle(T value, unsigned lane) {
    return __shfl_sync(LANES, value, lane);
}
template <typename T> static __device__ __forceinline__ T simd_shuffle_down(T value, unsigned by) {
    return __shfl_down_sync(LANES, value, by);
}
template <typename T> static __device__ __forceinline__ T simd_broadcast(T value, unsigned lane) {
    return __shfl_sync(LANES, value, lane);
}
template <typename T> static __device__ __forceinline__ T simd_broadcast_first(T value) { return __shfl_sync(LANES, value, 0); }
template <typename T> static __device__ __forceinline__ T simd_sum(T value) {
    for (unsigned mask = 16; mask; mask /= 2) value += __shfl_xor_sync(LANES, value, mask);
    return value;
}
template <typename T> static __device__ __forceinline__ T simd_max(T value) {
    for (unsigned mask = 16; mask; mask /= 2) {
        const T other = __shfl_xor_sync(LANES, value, mask);
        value = other > value ? other : value;
    }
    return value;
}
template <typename T> static __device__ __forceinline__ T simd_min(T value) {
    for (unsigned mask = 16; mask; mask /= 2) {
        const T other = __shfl_xor_sync(LANES, value, mask);
        value = other < value ? other : value;
    }
    return value;
}
static __device__ __forceinline__ bool simd_any(bool value) { return __any_sync(LANES, value); }
static __device__ __forceinline__ bool simd_all(bool value) { return __all_sync(LANES, value); }

namespace precise {
static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
static __device__ __forceinline__ float exp(float x) { return expf(x); }
} // namespace precise

// A matrix of 8 × 8 values. Lane 4 · a + b has those at (a, 2b) and (a, 2b + 1), or, if it lies transposed, at (2b, a) and
// (2b + 1, a): the layouts of mma's first and second factor, so that none of what the kernels multiply has to change places
// but values as the second factor.
template <typename T, int Columns, int Rows> struct simdgroup_matrix {
    T values[2];
    bool is_transposed;
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;

static __device__ __forceinline__ unsigned matrix_lane() { return threadIdx.x % 32; }

// A row of a matrix begins at an even value in all kernels, and at an eighth one where values are halves; memcheck confirms
// it.
static __device__ __forceinline__ void simdgroup_load(simdgroup_matrix<float, 8, 8> &to, const float *from,
                                                      unsigned long per_row = 8, ulong2 origin = ulong2{0, 0},
                                                      bool is_transposed = false) {
    const unsigned lane = matrix_lane();
    const float2 two = *(const float2 *)(from + (origin.y + lane / 4) * per_row + origin.x + lane % 4 * 2);
    to.values[0] = two.x, to.values[1] = two.y;
    to.is_transposed = is_transposed;
}
// Halves lie transposed always, as only second factors are halves.
static __device__ __forceinline__ void simdgroup_load(simdgroup_matrix<half, 8, 8> &to, const half *from,
                                                      unsigned long per_row = 8, ulong2 origin = ulong2{0, 0},
                                                      bool is_transposed = false) {
    const unsigned lane = matrix_lane();
    from += origin.y * per_row + origin.x;
    half2 two;
    if (is_transposed) {
        two = *(const half2 *)(from + lane / 4 * per_row + lane % 4 * 2);
    } else {
        uint32_t both;
        const uint32_t row = __cvta_generic_to_shared(from + lane % 8 * per_row);
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(both) : "r"(row) : "memory");
        memcpy(&two, &both, 4);
    }
    to.values[0] = __low2half(two), to.values[1] = __high2half(two);
    to.is_transposed = true;
}

static __device__ __forceinline__ void transpose(simdgroup_matrix<float, 8, 8> &matrix) {
    const unsigned lane = matrix_lane(), a = lane / 4, b = lane % 4;
    float moved[2];
    for (unsigned i = 0; i < 2; i++) {
        const unsigned from = (2 * b + i) * 4 + a / 2;
        const float even = __shfl_sync(LANES, matrix.values[0], from), odd = __shfl_sync(LANES, matrix.values[1], from);
        moved[i] = a % 2 ? odd : even;
    }
    matrix.values[0] = moved[0], matrix.values[1] = moved[1];
    matrix.is_transposed = !matrix.is_transposed;
}

template <typename T>
static __device__ __forceinline__ void simdgroup_store(simdgroup_matrix<T, 8, 8> from, T *to, unsigned long per_row = 8,
                                                       ulong2 origin = ulong2{0, 0}, bool is_transposed = false) {
    if (from.is_transposed != is_transposed) transpose(from);
    const unsigned lane = matrix_lane();
    to += (origin.y + lane / 4) * per_row + origin.x + lane % 4 * 2;
    to[0] = from.values[0], to[1] = from.values[1];
}

template <typename T, int Columns, int Rows>
static __device__ __forceinline__ simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
    return {{value, value}, false};
}

// mma multiplies 16 × 8 by 8 × 8 values of 11 bits. A float is two of those but for its last bits: the second ones of the first
// factor take the rows that a matrix of 8 does not need, 2048 times as large, so that small ones do not vanish. Sums are
// rounded here, as mma cuts bits off.
static __device__ __forceinline__ void product(float *sum, const float *a, const half *b) {
    const half2 high = __floats2half2_rn(a[0], a[1]), second = __halves2half2(b[0], b[1]);
    const float2 kept = __half22float2(high);
    const half2 low = __floats2half2_rn((a[0] - kept.x) * 2048.0f, (a[1] - kept.y) * 2048.0f);
    uint32_t first[2], other;
    memcpy(&first[0], &high, 4), memcpy(&first[1], &low, 4), memcpy(&other, &second, 4);
    float products[4];
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=f"(products[0]), "=f"(products[1]), "=f"(products[2]), "=f"(products[3])
        : "r"(first[0]), "r"(first[1]), "r"(other), "f"(0.0f));
    for (unsigned i = 0; i < 2; i++) sum[i] += fmaf(products[i + 2], 1.0f / 2048.0f, products[i]);
}

// The same with values of 19 bits, for factors that are both floats.
static __device__ __forceinline__ void product(float *sum, const float *a, const float *b) {
    uint32_t high[2], low[2], second[2];
    for (unsigned i = 0; i < 2; i++) {
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high[i]) : "f"(a[i]));
        low[i] = __float_as_uint(a[i] - __uint_as_float(high[i]));
        second[i] = __float_as_uint(b[i]);
    }
    float products[4];
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(products[0]), "=f"(products[1]), "=f"(products[2]), "=f"(products[3])
        : "r"(high[0]), "r"(low[0]), "r"(high[1]), "r"(low[1]), "r"(second[0]), "r"(second[1]), "f"(0.0f));
    for (unsigned i = 0; i < 2; i++) sum[i] += products[i] + products[i + 2];
}

template <typename B>
static __device__ __forceinline__ void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8> &to,
                                                                     simdgroup_matrix<float, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                                                     simdgroup_matrix<float, 8, 8> sum) {
    if (a.is_transposed) transpose(a);
    if (sum.is_transposed) transpose(sum);
    if constexpr (sizeof(B) == 4) {
        if (!b.is_transposed) transpose(b);
        float high[2], rest[2];
        for (unsigned i = 0; i < 2; i++) {
            uint32_t cut;
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(cut) : "f"(b.values[i]));
            high[i] = __uint_as_float(cut), rest[i] = b.values[i] - high[i];
        }
        product(sum.values, a.values, rest);
        product(sum.values, a.values, high);
    } else {
        product(sum.values, a.values, b.values);
    }
    to = sum;
}

template <typename B>
static __device__ __forceinline__ void simdgroup_multiply(simdgroup_matrix<float, 8, 8> &to, simdgroup_matrix<float, 8, 8> a,
                                                          simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(to, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}
} // namespace metal

// Rows of cached keys and values, which kernels see as bytes: plain numbers, or packed in 8 or 4 bits as in kv_packed.rs.
//
// A packed row is rotated by a Hadamard matrix and then rounded: blocks of 32 values, each an f16 scale and codes. Blocks
// have 34 or 18 bytes, so within a row only two bytes at a time are aligned; but 16 rows are a multiple of 16 bytes.
#pragma once
#include "common.cuh"

// Values of a packed block, and most values that are rotated together.
static constexpr int PACKED = 32, ROTATED_MAX = 128;

// How many values of rows of this size are rotated together.
__host__ __device__ constexpr int rotated(int dim) { return (dim & -dim) < ROTATED_MAX ? dim & -dim : ROTATED_MAX; }

template <typename T> struct Plain {
    static constexpr bool IS_PACKED = false;
    // Rows that are copied to shared memory together.
    static constexpr int RUN = 1;

    __device__ __forceinline__ static int bytes(int dim) { return dim * sizeof(T); }
    // Bytes from row to row in shared memory: rows start in different banks, 16-byte aligned.
    __device__ __forceinline__ static int stride(int dim) { return bytes(dim) + 32; }

    // Values i to i + 7 of a row, for an i that they divide.
    __device__ __forceinline__ static void load8(const uint8_t *row, int i, float (&to)[8]);
    __device__ __forceinline__ static float2 load2(const uint8_t *row, int i);
};

template <> __device__ __forceinline__ void Plain<__half>::load8(const uint8_t *row, int i, float (&to)[8]) {
    const uint4 raw = *(const uint4 *)(row + 2 * i);
    const __half2 *pairs = (const __half2 *)&raw;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float2 pair = __half22float2(pairs[j]);
        to[2 * j] = pair.x;
        to[2 * j + 1] = pair.y;
    }
}
template <> __device__ __forceinline__ void Plain<float>::load8(const uint8_t *row, int i, float (&to)[8]) {
    const float4 a = *(const float4 *)(row + 4 * i), b = *(const float4 *)(row + 4 * i + 16);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
template <> __device__ __forceinline__ float2 Plain<__half>::load2(const uint8_t *row, int i) {
    return __half22float2(*(const __half2 *)(row + 2 * i));
}
template <> __device__ __forceinline__ float2 Plain<float>::load2(const uint8_t *row, int i) { return *(const float2 *)(row + 4 * i); }

template <int BITS> struct Packed {
    static constexpr bool IS_PACKED = true;
    static constexpr int RUN = 16;
    static constexpr int BLOCK_BYTES = 2 + PACKED * BITS / 8;

    __device__ __forceinline__ static int bytes(int dim) { return (dim + PACKED - 1) / PACKED * BLOCK_BYTES; }
    __device__ __forceinline__ static int stride(int dim) { return bytes(dim); }

    __device__ __forceinline__ static const uint8_t *block(const uint8_t *row, int i) { return row + i / PACKED * BLOCK_BYTES; }
    __device__ __forceinline__ static __half scale(const uint8_t *row, int i) { return *(const __half *)block(row, i); }

    // The codes of values i and i + 1, for an even i. An f16 of 1024 and more has a step of 1, so a code that is moved to
    // where it is not negative becomes a number by the byte in front of it.
    __device__ __forceinline__ static __half2 codes(const uint8_t *row, int i) {
        constexpr int BIAS = 1 << (BITS - 1);
        const int at = i % PACKED;
        uint32_t raw;
        if constexpr (BITS == 8) raw = *(const uint16_t *)(block(row, i) + 2 + at);
        else raw = *(const uint16_t *)(block(row, i) + 2 + at % 16) >> (at / 16 * 4) & 0x0F0F;
        const uint32_t numbers = __byte_perm(raw ^ BIAS * 0x0101, 0x64646464, 0x4140);
        return __hsub2(*(const __half2 *)&numbers, __float2half2_rn(1024 + BIAS));
    }

    __device__ __forceinline__ static float2 load2(const uint8_t *row, int i) {
        const float2 pair = __half22float2(codes(row, i));
        const float by = __half2float(scale(row, i));
        return make_float2(pair.x * by, pair.y * by);
    }
    __device__ __forceinline__ static void load8(const uint8_t *row, int i, float (&to)[8]) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 pair = load2(row, i + 2 * j);
            to[2 * j] = pair.x;
            to[2 * j + 1] = pair.y;
        }
    }

    // The same in f16.
    __device__ __forceinline__ static uint4 halves8(const uint8_t *row, int i) {
        const __half2 by = __half2half2(scale(row, i));
        __align__(16) __half2 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pairs[j] = __hmul2(codes(row, i + 2 * j), by);
        return *(const uint4 *)pairs;
    }

    // Rounds a block, of which each lane of a warp has a value.
    __device__ __forceinline__ static void pack(float value, int lane, uint8_t *block) {
        const float most = warp_max(fmaxf(value, 0.0f)), least = -warp_max(fmaxf(-value, 0.0f));
        const float largest = most >= -least ? most : least;
        // Of 4 bits the largest value gets the one code more that there is below zero.
        const float exact = BITS == 8 ? fabsf(largest) / 127.0f : largest / -8.0f;
        const __half scale = __float2half_rn(fminf(fmaxf(exact, -65504.0f), 65504.0f));
        const float rounded = __half2float(scale), inverse = rounded == 0.0f ? 0.0f : 1.0f / rounded;
        const int code = min(max(__float2int_rn(value * inverse), BITS == 8 ? -127 : -8), BITS == 8 ? 127 : 7);
        if (lane == 0) *(__half *)block = scale;
        if constexpr (BITS == 8) {
            block[2 + lane] = (uint8_t)code;
        } else {
            const int high = __shfl_xor_sync(0xffffffffu, code, 16);
            if (lane < 16) block[2 + lane] = (uint8_t)((code & 15) | high << 4);
        }
    }
};

// Rotates 128 values of a row, or fewer with zeros behind them, in groups: lane i of a warp has values i, i + 32, i + 64
// and i + 96.
__device__ __forceinline__ void rotate_row(float (&values)[4], int group, int lane) {
    for (int half = 1; half < min(group, WARP); half *= 2) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float other = __shfl_xor_sync(0xffffffffu, values[j], half);
            values[j] = lane & half ? other - values[j] : values[j] + other;
        }
    }
#pragma unroll
    for (int half = 1; half < 4; half *= 2) {
        if (group <= half * WARP) break;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j & half) continue;
            const float first = values[j], second = values[j + half];
            values[j] = first + second;
            values[j + half] = first - second;
        }
    }
    const float scale = 1.0f / sqrtf((float)group);
#pragma unroll
    for (int j = 0; j < 4; j++) values[j] *= scale;
}

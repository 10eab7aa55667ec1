// The block formats that our products read, as `weights.rs` lays them out: Q4_K and Q5_K as in GGUF files, Q6_K and Q8_0
// with the scale of each block apart, so that what a thread loads is aligned.
#pragma once
#include "common.cuh"

// A scale and a minimum of Q4_K and Q5_K: six bits each, of 8 groups in 12 bytes.
__device__ __forceinline__ void scale_and_min(const uint8_t *packed, int group, int &scale, int &minimum) {
    if (group < 4) {
        scale = packed[group] & 63;
        minimum = packed[group + 4] & 63;
    } else {
        scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4);
        minimum = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
    }
}

// Value `at` of block `block` of each format.
struct Q4K {
    static constexpr int BYTES = 144, BLOCK = 256;
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *, size_t block, int at) {
        const uint8_t *b = data + block * BYTES;
        const __half2 d = *(const __half2 *)b;
        int scale, minimum;
        scale_and_min(b + 4, at / 32, scale, minimum);
        const uint8_t byte = b[16 + at / 64 * 32 + at % 32];
        const int q = at % 64 < 32 ? byte & 15 : byte >> 4;
        return __low2float(d) * scale * q - __high2float(d) * minimum;
    }
};

struct Q5K {
    static constexpr int BYTES = 176, BLOCK = 256;
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *, size_t block, int at) {
        const uint8_t *b = data + block * BYTES;
        const __half2 d = *(const __half2 *)b;
        int scale, minimum;
        scale_and_min(b + 4, at / 32, scale, minimum);
        const uint8_t byte = b[48 + at / 64 * 32 + at % 32];
        const int q = (at % 64 < 32 ? byte & 15 : byte >> 4) | ((b[16 + at % 32] >> (at / 32)) & 1) << 4;
        return __low2float(d) * scale * q - __high2float(d) * minimum;
    }
};

struct Q6K {
    static constexpr int BYTES = 208, BLOCK = 256;
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *scales, size_t block, int at) {
        const uint8_t *b = data + block * BYTES;
        const int half = at / 128, quarter = at % 128 / 32, l = at % 32;
        const uint8_t low = b[half * 64 + (quarter & 1) * 32 + l];
        const int high = (b[128 + half * 32 + l] >> (2 * quarter)) & 3;
        const int q = ((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32;
        return __half2float(scales[block]) * ((const int8_t *)b)[192 + at / 16] * q;
    }
};

struct Q80 {
    static constexpr int BYTES = 32, BLOCK = 32;
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *scales, size_t block, int at) {
        return __half2float(scales[block]) * ((const int8_t *)data)[block * BYTES + at];
    }
};

// The block formats that our products read, as laid out by `weights.rs`: Q4_K and Q5_K as in GGUF files, Q6_K and Q8_0
// with each block's scale stored separately, so that a thread's loads are aligned; other 4-bit formats as indices into
// a table.
#pragma once
#include "common.cuh"

// A 6-bit scale and a 6-bit minimum of Q4_K and Q5_K; 8 groups in 12 bytes.
__device__ __forceinline__ void scale_and_min(const uint8_t *packed, int group, int &scale, int &minimum) {
    if (group < 4) {
        scale = packed[group] & 63;
        minimum = packed[group + 4] & 63;
    } else {
        scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4);
        minimum = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
    }
}

// Value `at` of block `block` in each format, and the number of blocks per row.
struct Q4K {
    static constexpr int BYTES = 144, BLOCK = 256;
    static __device__ __forceinline__ int blocks(int width) { return width / BLOCK; }
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
    static __device__ __forceinline__ int blocks(int width) { return width / BLOCK; }
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
    static __device__ __forceinline__ int blocks(int width) { return width / BLOCK; }
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *scales, size_t block, int at) {
        const uint8_t *b = data + block * BYTES;
        const int half = at / 128, quarter = at % 128 / 32, l = at % 32;
        const uint8_t low = b[half * 64 + (quarter & 1) * 32 + l];
        const int high = (b[128 + half * 32 + l] >> (2 * quarter)) & 3;
        const int q = ((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32;
        return __half2float(scales[block]) * ((const int8_t *)b)[192 + at / 16] * q;
    }
};

// Four groups of 32 signed bytes: a thread's eight values of each (few_rows.cuh), two groups at a time.
struct Q80 {
    static constexpr int BLOCK = 32;
    static __device__ __forceinline__ int blocks(int width) { return (width + 127) / 128 * 4; }
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *scales, size_t block, int at) {
        const int group = block % 4;
        const int8_t *part = (const int8_t *)data + block / 4 * 128;
        return __half2float(scales[block]) * part[group / 2 * 64 + at / 8 * 16 + group % 2 * 8 + at % 8];
    }
};

// Same for 4-bit indices into a table stored before the first row.
template <bool MINIMUM> struct Table16 {
    static constexpr int BLOCK = 32;
    static __device__ __forceinline__ int blocks(int width) { return (width + 127) / 128 * 4; }
    static __device__ __forceinline__ float value(const uint8_t *data, const __half *scales, size_t block, int at) {
        const uint8_t byte = data[16 + block / 4 * 64 + at / 8 * 16 + block % 4 * 4 + at % 8 / 2];
        const float q = ((const int8_t *)data)[(byte >> (4 * (at % 2))) & 15];
        return MINIMUM ? __half2float(scales[2 * block]) * q - __half2float(scales[2 * block + 1]) : __half2float(scales[block]) * q;
    }
};

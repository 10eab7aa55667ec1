// Converts activations to the form that products of few rows read (see products.cu), with the threads of one block:
// either in the kernel `prepare`, which writes them to memory, or inside a product of a row or two. The width is a
// multiple of 32.
#pragma once
#include "common.cuh"

// For quantized weights: f16 values times the power of two that brings the row's maximum near 2¹³, each four in the
// order 0, 2, 1, 3, and their sums over 16 and 32 values, interleaved for eight rows. `row_scale` undoes the power.
__device__ __forceinline__ void prepare_row(const float *from, int width, uint16_t *high, float *sums, float *row_scale,
                                            float *scratch) {
    uint2 *to = (uint2 *)high;
    float most = 0.0f;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const float4 v = ((const float4 *)from)[i];
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    most = block_max(most, scratch);
    int exponent = 0;
    if (most > 0.0f && most < INFINITY) frexpf(most, &exponent);
    const float scale = ldexpf(1.0f, min(max(13 - exponent, -100), 100));
    if (threadIdx.x == 0) *row_scale = 1.0f / scale;
    float *sums16 = sums, *sums32 = sums + width / 16 * 8;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const float4 v = ((const float4 *)from)[i];
        const __half2 even = __floats2half2_rn(v.x * scale, v.z * scale), odd = __floats2half2_rn(v.y * scale, v.w * scale);
        to[i] = make_uint2(*(const uint32_t *)&even, *(const uint32_t *)&odd);
        const float2 e = __half22float2(even), o = __half22float2(odd);
        // Eight neighbouring threads share a group of 32.
        const uint32_t together = 0xFFu << (threadIdx.x % WARP / 8 * 8);
        float sum = (e.x + e.y) + (o.x + o.y);
        sum += __shfl_xor_sync(together, sum, 1);
        sum += __shfl_xor_sync(together, sum, 2);
        if (i % 4 == 0) sums16[i / 4 * 8] = sum;
        sum += __shfl_xor_sync(together, sum, 4);
        if (i % 8 == 0) sums32[i / 8 * 8] = sum;
    }
}

// For bf16 weights: each value's high and low half in bf16, 16 bits of mantissa in total.
__device__ __forceinline__ void prepare_halves(const float *from, int width, uint16_t *high, uint16_t *low, float *row_scale) {
    uint2 *to_high = (uint2 *)high, *to_low = (uint2 *)low;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const float4 v = ((const float4 *)from)[i];
        const __nv_bfloat162 a = __floats2bfloat162_rn(v.x, v.y), b = __floats2bfloat162_rn(v.z, v.w);
        const float2 fa = __bfloat1622float2(a), fb = __bfloat1622float2(b);
        const __nv_bfloat162 la = __floats2bfloat162_rn(v.x - fa.x, v.y - fa.y), lb = __floats2bfloat162_rn(v.z - fb.x, v.w - fb.y);
        to_high[i] = make_uint2(*(const uint32_t *)&a, *(const uint32_t *)&b);
        to_low[i] = make_uint2(*(const uint32_t *)&la, *(const uint32_t *)&lb);
    }
    if (threadIdx.x == 0) *row_scale = 1.0f;
}

// Prepares row `row`.
__device__ __forceinline__ void prepare_one(const float *from, int row, int width, int halves, uint16_t *high, uint16_t *low,
                                            float *sums, float *row_scales, float *scratch) {
    const size_t at = (size_t)row * width;
    if (halves) prepare_halves(from, width, high + at, low + at, row_scales + row);
    else prepare_row(from, width, high + at, sums + (size_t)(row / 8) * (width / 16 * 12) + row % 8, row_scales + row, scratch);
}

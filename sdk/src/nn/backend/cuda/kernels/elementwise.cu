// Norms, rotations, activations and the rows of tables: one launch each, a row or a head per block.
#include "common.cuh"

// x (+ delta) → its root-mean-square norm; the sum is written where there is a delta.
extern "C" __global__ void rms_norm(const float *x, const float *delta, const float *weight, float eps, int width,
                                    float *sum_out, float *out) {
    __shared__ float scratch[32];
    const size_t row = (size_t)blockIdx.x * width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float value = x[row + i];
        if (delta) {
            value += delta[row + i];
            sum_out[row + i] = value;
        }
        squares += value * value;
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / width + eps);
    const float *from = delta ? sum_out : x;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[row + i] = from[row + i] * scale * weight[i];
}

extern "C" __global__ void layer_norm(const float *x, const float *weight, const float *bias, float eps, int width,
                                      float *out) {
    __shared__ float scratch[32];
    const size_t row = (size_t)blockIdx.x * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[row + i];
    const float mean = block_sum(sum, scratch) / width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float centred = x[row + i] - mean;
        squares += centred * centred;
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
    }
}

// Sines and cosines of positions: [tokens, half] each.
extern "C" __global__ void angles(const uint32_t *positions, const float *frequencies, float amplitude, int tokens,
                                  int half, float *cos_out, float *sin_out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * half) return;
    float s, c;
    sincosf((float)positions[i / half] * frequencies[i % half], &s, &c);
    cos_out[i] = c * amplitude;
    sin_out[i] = s * amplitude;
}

// Rotates the first 2·half values of each head; a block per token.
extern "C" __global__ void rotate(const float *x, const float *cosines, const float *sines, int heads, int head_dim,
                                  int half, int interleaved, float *out) {
    const int token = blockIdx.x, width = heads * head_dim;
    const float *from = x + (size_t)token * width;
    float *to = out + (size_t)token * width;
    const float *c = cosines + (size_t)token * half, *s = sines + (size_t)token * half;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const int at = i % head_dim, head = i - at;
        if (at >= 2 * half) {
            to[i] = from[i];
        } else if (interleaved) {
            const int pair = at / 2;
            const float a = from[head + 2 * pair], b = from[head + 2 * pair + 1];
            to[i] = at % 2 == 0 ? a * c[pair] - b * s[pair] : a * s[pair] + b * c[pair];
        } else {
            const int pair = at % half;
            const float a = from[head + pair], b = from[head + half + pair];
            to[i] = at < half ? a * c[pair] - b * s[pair] : a * s[pair] + b * c[pair];
        }
    }
}

extern "C" __global__ void activate(const float *x, int kind, size_t count, float *out) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = activation(kind, x[i]);
}

// kind(gate) · up.
extern "C" __global__ void gate(const float *gates, const float *ups, int kind, size_t count, float *out) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = activation(kind, gates[i]) * ups[i];
}

extern "C" __global__ void add_bias(const float *bias, int width, size_t count, float *out) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] += bias[i % width];
}

// Brings rows of an activation into the form that products of few rows read (see products.cu), a block per row.
//
// For quantized weights (`halves` 0): f16 values times the power of two that brings the row's largest near 2¹³, each four
// in the order 0, 2, 1, 3, and their sums over 16 and 32 values, which lie for eight rows side by side. For bf16 weights
// (`halves` 1): the value's high and low half in bf16, together 16 bits of it. `row_scales` undoes the power of two.
extern "C" __global__ void prepare(const float *x, int width, int halves, uint16_t *high, uint16_t *low, float *sums,
                                   float *row_scales) {
    __shared__ float scratch[32];
    const int row = blockIdx.x;
    const float *from = x + (size_t)row * width;
    uint2 *to_high = (uint2 *)(high + (size_t)row * width), *to_low = (uint2 *)(low + (size_t)row * width);
    if (halves) {
        for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
            const float4 v = ((const float4 *)from)[i];
            const __nv_bfloat162 a = __floats2bfloat162_rn(v.x, v.y), b = __floats2bfloat162_rn(v.z, v.w);
            const float2 fa = __bfloat1622float2(a), fb = __bfloat1622float2(b);
            const __nv_bfloat162 la = __floats2bfloat162_rn(v.x - fa.x, v.y - fa.y), lb = __floats2bfloat162_rn(v.z - fb.x, v.w - fb.y);
            to_high[i] = make_uint2(*(const uint32_t *)&a, *(const uint32_t *)&b);
            to_low[i] = make_uint2(*(const uint32_t *)&la, *(const uint32_t *)&lb);
        }
        if (threadIdx.x == 0) row_scales[row] = 1.0f;
        return;
    }
    float most = 0.0f;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const float4 v = ((const float4 *)from)[i];
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    most = block_max(most, scratch);
    int exponent = 0;
    if (most > 0.0f && most < INFINITY) frexpf(most, &exponent);
    const float scale = ldexpf(1.0f, min(max(13 - exponent, -100), 100));
    if (threadIdx.x == 0) row_scales[row] = 1.0f / scale;
    float *sums16 = sums + (size_t)(row / 8) * (width / 16 * 12) + row % 8, *sums32 = sums16 + width / 16 * 8;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const float4 v = ((const float4 *)from)[i];
        const __half2 even = __floats2half2_rn(v.x * scale, v.z * scale), odd = __floats2half2_rn(v.y * scale, v.w * scale);
        to_high[i] = make_uint2(*(const uint32_t *)&even, *(const uint32_t *)&odd);
        const float2 e = __half22float2(even), o = __half22float2(odd);
        // Eight neighbours have a group of 32; the width is a multiple of it.
        const uint32_t together = 0xFFu << (threadIdx.x % WARP / 8 * 8);
        float sum = (e.x + e.y) + (o.x + o.y);
        sum += __shfl_xor_sync(together, sum, 1);
        sum += __shfl_xor_sync(together, sum, 2);
        if (i % 4 == 0) sums16[i / 4 * 8] = sum;
        sum += __shfl_xor_sync(together, sum, 4);
        if (i % 8 == 0) sums32[i / 8 * 8] = sum;
    }
}

// Values as bf16, for products of many rows.
extern "C" __global__ void to_bf16(const float *x, size_t count, __nv_bfloat16 *out) {
    const size_t i = 4 * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const float4 v = *(const float4 *)(x + i);
    ((__nv_bfloat162 *)(out + i))[0] = __floats2bfloat162_rn(v.x, v.y);
    ((__nv_bfloat162 *)(out + i))[1] = __floats2bfloat162_rn(v.z, v.w);
}

template <typename T>
__device__ __forceinline__ void dense_rows(const T *table, const uint32_t *ids, int width, float *out) {
    const T *from = table + (size_t)ids[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = to_float(from[i]);
}

extern "C" __global__ void rows_f32(const float *table, const uint32_t *ids, int width, float *out) {
    dense_rows(table, ids, width, out);
}
extern "C" __global__ void rows_f16(const __half *table, const uint32_t *ids, int width, float *out) {
    dense_rows(table, ids, width, out);
}
extern "C" __global__ void rows_bf16(const __nv_bfloat16 *table, const uint32_t *ids, int width, float *out) {
    dense_rows(table, ids, width, out);
}

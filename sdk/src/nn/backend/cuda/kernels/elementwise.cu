// Norms, rotations, activations and table lookups: one launch each, with a row or head per block.
#include "prepare.cuh"
#include "rows.cuh"

// Root-mean-square norm of x (+ delta); the sum is written if there is a delta.
extern "C" __global__ void rms_norm(const float *x, const float *weight, float eps, int width, float *out) {
    __shared__ float scratch[32];
    begin();
    const size_t row = (size_t)blockIdx.x * width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = x[row + i];
        squares += value * value;
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[row + i] = x[row + i] * scale * weight[i];
}

// For each row of logits: the index of the first maximum, the maximum, and the log-sum-exp, which is NaN if any logit
// is.
extern "C" __global__ void best(const float *logits, int width, float *out) {
    __shared__ float scratch[32];
    __shared__ int indices[32];
    begin();
    const float *row = logits + (size_t)blockIdx.x * width;
    float highest = -INFINITY;
    int index = width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = row[i];
        if (value > highest) {
            highest = value;
            index = i;
        }
    }
    const float all = block_max(highest, scratch);
    index = highest == all ? index : width;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) index = min(index, __shfl_xor_sync(0xffffffffu, index, offset));
    if (threadIdx.x % WARP == 0) indices[threadIdx.x / WARP] = index;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += expf(row[i] - all);
    // This barrier covers the indices, too.
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < (blockDim.x + WARP - 1) / WARP; warp++) index = min(index, indices[warp]);
        out[3 * blockIdx.x] = (float)index;
        out[3 * blockIdx.x + 1] = all;
        out[3 * blockIdx.x + 2] = all + logf(sum);
    }
}

extern "C" __global__ void layer_norm(const float *x, const float *weight, const float *bias, float eps, int width,
                                      float *out) {
    __shared__ float scratch[32];
    begin();
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
    begin();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tokens * half) return;
    float s, c;
    sincosf((float)positions[i / half] * frequencies[i % half], &s, &c);
    cos_out[i] = c * amplitude;
    sin_out[i] = s * amplitude;
}

// How heads are rotated: the first 2·half values of each, by the step's sines and cosines.
struct Rotation {
    const float *cosines, *sines;
    int head_dim, half, interleaved;

    // Value i of a token's heads, rotated.
    __device__ __forceinline__ float of(const float *from, int token, int i) const {
        const int at = i % head_dim, head = i - at;
        if (at >= 2 * half) return from[i];
        const int pair = interleaved ? at / 2 : at % half, is_second = interleaved ? at % 2 : at >= half;
        const float c = cosines[(size_t)token * half + pair], s = sines[(size_t)token * half + pair];
        const float a = from[interleaved ? head + 2 * pair : head + pair];
        const float b = from[interleaved ? head + 2 * pair + 1 : head + half + pair];
        return is_second ? a * s + b * c : a * c - b * s;
    }
};

// One value per thread; the grid is [tokens, values / threads], as images have more patches than the other sides may have blocks.
extern "C" __global__ void rotate(const float *x, const float *cosines, const float *sines, int heads, int head_dim,
                                  int half, int interleaved, float *out) {
    begin();
    const int token = blockIdx.x, width = heads * head_dim, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= width) return;
    const Rotation rotation{cosines, sines, head_dim, half, interleaved};
    out[(size_t)token * width + i] = rotation.of(x + (size_t)token * width, token, i);
}

// Slot of a padding row, which is not stored.
static constexpr uint32_t NO_SLOT = 0xFFFFFFFFu;

// Rotates queries and keys if there are sines, and writes keys and values to their slots: [kv_heads, slots, head_dim].
template <typename T>
__device__ __forceinline__ void store(const float *q, const float *k, const float *v, const Rotation &rotation,
                                      const uint32_t *slots, int heads, int kv_heads, size_t all_slots, float *q_out, T *keys,
                                      T *values) {
    const int token = blockIdx.y, head_dim = rotation.head_dim, queries = q_out ? heads * head_dim : 0, width = kv_heads * head_dim;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < queries) {
        q_out[(size_t)token * queries + i] = rotation.of(q + (size_t)token * queries, token, i);
        return;
    }
    i -= queries;
    if (i >= 2 * width || slots[token] == NO_SLOT) return;
    const int at = i % width;
    const float *from = (i < width ? k : v) + (size_t)token * width;
    const float value = i < width && rotation.cosines ? rotation.of(from, token, at) : from[at];
    (i < width ? keys : values)[((size_t)(at / head_dim) * all_slots + slots[token]) * head_dim + at % head_dim] = from_float<T>(value);
}

#define STORE(name, T)                                                                                                  \
    extern "C" __global__ void name(const float *q, const float *k, const float *v, const float *cosines,               \
                                    const float *sines, int half, int interleaved, const uint32_t *slots, int heads,    \
                                    int kv_heads, int head_dim, size_t all_slots, float *q_out, T *keys, T *values) {   \
        begin();                                                                                                        \
        const Rotation rotation{cosines, sines, head_dim, half, interleaved};                                           \
        store(q, k, v, rotation, slots, heads, kv_heads, all_slots, q_out, keys, values);                               \
    }

STORE(store_f16, __half)
STORE(store_f32, float)

// The same of packed rows, each by a warp. Queries are rotated as keys are. There may be no values.
template <typename Rows>
__device__ __forceinline__ void store_packed(const float *q, const float *k, const float *v, const Rotation &rotation,
                                             const uint32_t *slots, int heads, int kv_heads, size_t all_slots, float *q_out,
                                             uint8_t *keys, uint8_t *values) {
    const int token = blockIdx.y, head_dim = rotation.head_dim, group = rotated(head_dim), lane = threadIdx.x % WARP;
    const int queries = q_out ? heads : 0, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const bool is_query = row < queries, is_value = row >= queries + kv_heads;
    if (row >= queries + (v ? 2 : 1) * kv_heads || (!is_query && slots[token] == NO_SLOT)) return;
    const int head = is_query ? row : (row - queries) % kv_heads;
    const float *from = is_query ? q + (size_t)token * heads * head_dim : (is_value ? v : k) + (size_t)token * kv_heads * head_dim;
    float *query = q_out + ((size_t)token * heads + head) * head_dim;
    uint8_t *packed = (is_value ? values : keys) + ((size_t)head * all_slots + slots[token]) * Rows::bytes(head_dim);
    for (int start = 0; start < head_dim; start += ROTATED_MAX) {
        float part[ROTATED_MAX / WARP];
#pragma unroll
        for (int j = 0; j < ROTATED_MAX / WARP; j++) {
            const int at = start + j * WARP + lane, i = head * head_dim + at;
            part[j] = at >= head_dim ? 0.0f : is_value || !rotation.cosines ? from[i] : rotation.of(from, token, i);
        }
        rotate_row(part, group, lane);
#pragma unroll
        for (int j = 0; j < ROTATED_MAX / WARP; j++) {
            const int block = start + j * WARP, at = block + lane;
            if (block >= head_dim) break;
            if (!is_query) Rows::pack(part[j], lane, packed + block / PACKED * Rows::BLOCK_BYTES);
            else if (at < head_dim) query[at] = part[j];
        }
    }
}

#define STORE_PACKED(name, BITS)                                                                                        \
    extern "C" __global__ void name(const float *q, const float *k, const float *v, const float *cosines,               \
                                    const float *sines, int half, int interleaved, const uint32_t *slots, int heads,    \
                                    int kv_heads, int head_dim, size_t all_slots, float *q_out, uint8_t *keys,          \
                                    uint8_t *values) {                                                                  \
        begin();                                                                                                        \
        const Rotation rotation{cosines, sines, head_dim, half, interleaved};                                           \
        store_packed<Packed<BITS>>(q, k, v, rotation, slots, heads, kv_heads, all_slots, q_out, keys, values);          \
    }

STORE_PACKED(store_q8, 8)
STORE_PACKED(store_q4, 4)

extern "C" __global__ void activate(const float *x, int kind, size_t count, float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = activation(kind, x[i]);
}

// kind(gate) · up.
extern "C" __global__ void gate(const float *gates, const float *ups, int kind, size_t count, float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = activation(kind, gates[i]) * ups[i];
}

// factor · kind(x + bias): bias and factor have one value per column and may be null; a negative kind means no
// activation.
extern "C" __global__ void bias_act_scale(const float *x, const float *bias, int kind, const float *factor, int width, size_t count,
                                      float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float value = x[i];
    if (bias) value += bias[i % width];
    if (kind >= 0) value = activation(kind, value);
    out[i] = factor ? value * factor[i % width] : value;
}

// Copies up to four parts of rows, each `len` columns from `start` on; the grid is [values of the largest / threads,
// parts].
extern "C" __global__ void columns(const float *x, int width, int rows, int start0, int len0, float *out0, int start1, int len1,
                                   float *out1, int start2, int len2, float *out2, int start3, int len3, float *out3) {
    begin();
    const int part = blockIdx.y;
    const int start = part == 0 ? start0 : part == 1 ? start1 : part == 2 ? start2 : start3;
    const int len = part == 0 ? len0 : part == 1 ? len1 : part == 2 ? len2 : len3;
    float *out = part == 0 ? out0 : part == 1 ? out1 : part == 2 ? out2 : out3;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (size_t)rows * len) out[i] = x[i / len * width + start + i % len];
}

extern "C" __global__ void add(const float *x, const float *y, size_t count, float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = x[i] + y[i];
}

extern "C" __global__ void add_bias(const float *bias, int width, size_t count, float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] += bias[i % width];
}

// Converts rows of an activation to the form that products of few rows read, one block per row.
extern "C" __global__ void prepare(const float *x, int width, int halves, uint16_t *high, uint16_t *low, float *sums,
                                   float *row_scales) {
    __shared__ float scratch[32];
    begin();
    const int row = blockIdx.x;
    prepare_one(x + (size_t)row * width, row, width, halves, high, low, sums, row_scales, scratch);
}

// 16-bit values for products of many rows: bf16, or one eighth of the value in f16, which then reaches ±524,000. Larger
// finite values are clamped; values below 0.0005 are rounded to multiples of 5e-7.
__device__ __forceinline__ __nv_bfloat162 pair_of(float a, float b, __nv_bfloat16) { return __floats2bfloat162_rn(a, b); }
__device__ __forceinline__ float eighth(float value) {
    const float scaled = 0.125f * value;
    return fabsf(scaled) > 65504.0f && fabsf(scaled) < INFINITY ? copysignf(65504.0f, scaled) : scaled;
}
__device__ __forceinline__ __half2 pair_of(float a, float b, __half) { return __floats2half2_rn(eighth(a), eighth(b)); }

template <typename T> __device__ __forceinline__ void to_16_bits(const float *x, size_t count, T *out) {
    begin();
    const size_t i = 4 * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const float4 v = *(const float4 *)(x + i);
    const auto low = pair_of(v.x, v.y, T()), high = pair_of(v.z, v.w, T());
    *(uint2 *)(out + i) = make_uint2(*(const uint32_t *)&low, *(const uint32_t *)&high);
}
extern "C" __global__ void to_bf16(const float *x, size_t count, __nv_bfloat16 *out) { to_16_bits(x, count, out); }
extern "C" __global__ void to_f16(const float *x, size_t count, __half *out) { to_16_bits(x, count, out); }

template <typename T>
__device__ __forceinline__ void dense_rows(const T *table, const uint32_t *ids, int width, float *out) {
    const T *from = table + (size_t)ids[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = to_float(from[i]);
}

extern "C" __global__ void rows_f32(const float *table, const uint32_t *ids, int width, float *out) {
    begin();
    dense_rows(table, ids, width, out);
}
extern "C" __global__ void rows_f16(const __half *table, const uint32_t *ids, int width, float *out) {
    begin();
    dense_rows(table, ids, width, out);
}
extern "C" __global__ void rows_bf16(const __nv_bfloat16 *table, const uint32_t *ids, int width, float *out) {
    begin();
    dense_rows(table, ids, width, out);
}

// Patches of pixels, each with red, green and blue, as rows of the values that their bytes have; planar rows have the
// colors of a patch one after the other.
extern "C" __global__ void pixels(const uint8_t *bytes, const float *values, int area, int is_planar, size_t count, float *out) {
    begin();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int at = i % (3 * area), color = is_planar ? at / area : at % 3, pixel = is_planar ? at % area : at / 3;
    out[i] = values[256 * color + bytes[i - at + 3 * pixel + color]];
}

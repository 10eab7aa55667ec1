// Attention over the block tables of all sequences of a step, in one launch per layer.
//
// Keys and values lie as [kv_heads, slots, head_dim]; token i of a sequence has slot table[i / 16] · 16 + i % 16. For each
// token of a step the caller gives the number of tokens that it sees, itself included, and where its sequence's table
// begins. Two kernels: `attend` takes one token and the query heads of one key head to a block, and divides long contexts
// among blocks; `attend_tiles` takes 64 neighbouring tokens of a prompt and one head, on tensor cores.
//
// How `attend` divides a context depends on its length only, so a token's result is the same in any batch.
#include "common.cuh"

static constexpr int THREADS = 128, TILE = 64, SPLITS_MAX = 32, BLOCK_TOKENS = 16;

// The slot of a row that only fills up a batch: it is not remembered, and as it sees no token, nothing is computed for it.
static constexpr uint32_t NO_SLOT = 0xFFFFFFFFu;

struct Scores {
    float scale, softcap; // softcap 0: none
    int window;           // 0: none
};

__device__ __forceinline__ float capped(float score, const Scores &scores) {
    score *= scores.scale;
    return scores.softcap > 0.0f ? scores.softcap * tanhf(score / scores.softcap) : score;
}

template <typename T>
__device__ __forceinline__ void store(const float *k, const float *v, const uint32_t *slots, int heads, int head_dim,
                                      size_t all_slots, T *keys, T *values) {
    const int token = blockIdx.x, width = heads * head_dim;
    if (slots[token] == NO_SLOT) return;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const size_t to = ((size_t)(i / head_dim) * all_slots + slots[token]) * head_dim + i % head_dim;
        keys[to] = from_float<T>(k[(size_t)token * width + i]);
        values[to] = from_float<T>(v[(size_t)token * width + i]);
    }
}

extern "C" __global__ void store_f16(const float *k, const float *v, const uint32_t *slots, int heads, int head_dim,
                                     size_t all_slots, __half *keys, __half *values) {
    store(k, v, slots, heads, head_dim, all_slots, keys, values);
}
extern "C" __global__ void store_f32(const float *k, const float *v, const uint32_t *slots, int heads, int head_dim,
                                     size_t all_slots, float *keys, float *values) {
    store(k, v, slots, heads, head_dim, all_slots, keys, values);
}

// Eight values at an address that is a multiple of their size.
__device__ __forceinline__ void load8(const __half *from, float (&to)[8]) {
    const uint4 raw = *(const uint4 *)from;
    const __half2 *pairs = (const __half2 *)&raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = __half22float2(pairs[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}
__device__ __forceinline__ void load8(const float *from, float (&to)[8]) {
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
__device__ __forceinline__ float2 load2(const __half *from) { return __half22float2(*(const __half2 *)from); }
__device__ __forceinline__ float2 load2(const float *from) { return *(const float2 *)from; }

// The tokens are those from `first` on of `chosen`, or of the batch where that is null. `partials` has room for [tokens,
// heads, splits of the grid, head_dim + 2] and `counters`, all zero, for [tokens, head groups].
template <typename T, int G>
__device__ __forceinline__ void attend(const float *q, const T *keys, const T *values, const uint32_t *chosen,
                                       int first_token, const uint32_t *lens, const uint32_t *table_starts,
                                       const uint32_t *tables, Scores scores, int heads,
                                       int kv_heads, int head_dim, size_t all_slots, float *partials, uint32_t *counters,
                                       float *out) {
    extern __shared__ float shared[];
    __shared__ float weights[G][TILE], factor[G], peak[G], mass[G];
    __shared__ uint32_t slots[TILE];
    __shared__ bool is_last;
    float *queries = shared;                    // [G][head_dim]
    float *sums = shared + G * head_dim;        // [subsets][G][head_dim]

    const int split = blockIdx.x, at_token = first_token + blockIdx.z, tid = threadIdx.x;
    const int token = chosen ? chosen[at_token] : at_token;
    const int shared_by = heads / kv_heads, groups = (shared_by + G - 1) / G;
    const int kv_head = blockIdx.y / groups, first = kv_head * shared_by + blockIdx.y % groups * G;
    const int count = min(G, kv_head * shared_by + shared_by - first);

    const int len = lens[token], low = scores.window > 0 ? max(0, len - scores.window) : 0;
    const int base = low / TILE * TILE, all = len - base;
    const int chunk = all <= TILE * SPLITS_MAX ? TILE : (all + TILE * SPLITS_MAX - 1) / (TILE * SPLITS_MAX) * TILE;
    const int splits = (all + chunk - 1) / chunk;
    if (split >= splits) return;
    const int start = base + split * chunk, end = min(len, start + chunk);

    for (int i = tid; i < G * head_dim; i += THREADS) {
        const int head = i / head_dim;
        queries[i] = head < count ? q[((size_t)token * heads + first + head) * head_dim + i % head_dim] : 0.0f;
    }
    if (tid < G) peak[tid] = -INFINITY, mass[tid] = 0.0f;

    const int pairs = head_dim / 2, subsets = THREADS / pairs, pair = tid % pairs, subset = tid / pairs;
    float acc[G][2];
#pragma unroll
    for (int h = 0; h < G; h++) acc[h][0] = acc[h][1] = 0.0f;
    const uint32_t *table = tables + table_starts[token];
    const T *my_keys = keys + (size_t)kv_head * all_slots * head_dim, *my_values = values + (size_t)kv_head * all_slots * head_dim;

    for (int tile = start; tile < end; tile += TILE) {
        if (tid < TILE) {
            const int at = min(tile + tid, end - 1);
            slots[tid] = table[at / BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS;
        }
        __syncthreads();
        {
            // Two threads to a key, each with every other eight of its values.
            const int at = tid / 2;
            const T *key = my_keys + (size_t)slots[at] * head_dim;
            float dot[G];
#pragma unroll
            for (int h = 0; h < G; h++) dot[h] = 0.0f;
#pragma unroll 4
            for (int d = 8 * (tid % 2); d < head_dim; d += 16) {
                float piece[8];
                load8(key + d, piece);
#pragma unroll
                for (int h = 0; h < G; h++) {
                    const float4 a = *(const float4 *)(queries + h * head_dim + d), b = *(const float4 *)(queries + h * head_dim + d + 4);
                    dot[h] += a.x * piece[0] + a.y * piece[1] + a.z * piece[2] + a.w * piece[3];
                    dot[h] += b.x * piece[4] + b.y * piece[5] + b.z * piece[6] + b.w * piece[7];
                }
            }
            const bool is_seen = tile + at < end && tile + at >= low;
#pragma unroll
            for (int h = 0; h < G; h++) {
                dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], 1);
                if (tid % 2 == 0) weights[h][at] = is_seen ? capped(dot[h], scores) : -INFINITY;
            }
        }
        __syncthreads();
        for (int h = tid / WARP; h < G; h += THREADS / WARP) {
            const int lane = tid % WARP;
            const float a = weights[h][lane], b = weights[h][lane + WARP];
            const float before = peak[h], now = fmaxf(before, warp_max(fmaxf(a, b)));
            const float pa = expf(a - now), pb = expf(b - now);
            const float sum = warp_sum(pa + pb);
            weights[h][lane] = pa;
            weights[h][lane + WARP] = pb;
            __syncwarp();
            if (lane == 0) {
                factor[h] = expf(before - now);
                mass[h] = mass[h] * factor[h] + sum;
                peak[h] = now;
            }
        }
        __syncthreads();
        if (subset < subsets) {
#pragma unroll
            for (int h = 0; h < G; h++) acc[h][0] *= factor[h], acc[h][1] *= factor[h];
#pragma unroll 8
            for (int at = subset; at < TILE; at += subsets) {
                const float2 value = load2(my_values + (size_t)slots[at] * head_dim + 2 * pair);
#pragma unroll
                for (int h = 0; h < G; h++) acc[h][0] += weights[h][at] * value.x, acc[h][1] += weights[h][at] * value.y;
            }
        }
        __syncthreads();
    }

    if (subset < subsets) {
#pragma unroll
        for (int h = 0; h < G; h++) {
            sums[(subset * G + h) * head_dim + 2 * pair] = acc[h][0];
            sums[(subset * G + h) * head_dim + 2 * pair + 1] = acc[h][1];
        }
    }
    __syncthreads();
    const size_t stride = head_dim + 2;
    for (int i = tid; i < count * head_dim; i += THREADS) {
        const int h = i / head_dim, d = i % head_dim;
        float sum = 0.0f;
        for (int s = 0; s < subsets; s++) sum += sums[(s * G + h) * head_dim + d];
        if (splits == 1) {
            out[((size_t)token * heads + first + h) * head_dim + d] = sum / mass[h];
        } else {
            float *partial = partials + (((size_t)blockIdx.z * heads + first + h) * gridDim.x + split) * stride;
            partial[2 + d] = sum;
            if (d == 0) partial[0] = peak[h], partial[1] = mass[h];
        }
    }
    if (splits == 1) return;

    // The last block of a token to come here puts the parts together.
    __threadfence();
    __syncthreads();
    if (tid == 0) {
        uint32_t *counter = counters + (size_t)blockIdx.z * gridDim.y + blockIdx.y;
        is_last = atomicAdd(counter, 1u) == (uint32_t)splits - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = tid; i < count * head_dim; i += THREADS) {
        const int h = i / head_dim, d = i % head_dim;
        const float *part = partials + ((size_t)blockIdx.z * heads + first + h) * gridDim.x * stride;
        float top = -INFINITY;
        for (int s = 0; s < splits; s++) top = fmaxf(top, __ldcg(part + s * stride));
        float sum = 0.0f, total = 0.0f;
        for (int s = 0; s < splits; s++) {
            const float weight = expf(__ldcg(part + s * stride) - top);
            total += weight * __ldcg(part + s * stride + 1);
            sum += weight * __ldcg(part + s * stride + 2 + d);
        }
        out[((size_t)token * heads + first + h) * head_dim + d] = sum / total;
    }
}

#define ATTEND(name, T, G)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                               \
        name##_##G(const float *q, const T *keys, const T *values, const uint32_t *chosen, int first_token,             \
                   const uint32_t *lens, const uint32_t *table_starts, const uint32_t *tables, float scale, float softcap, int window, int heads, int kv_heads,             \
                   int head_dim, size_t all_slots, float *partials, uint32_t *counters, float *out) {                   \
        attend<T, G>(q, keys, values, chosen, first_token, lens, table_starts, tables, Scores{scale, softcap, window}, heads, kv_heads,      \
                     head_dim, all_slots, partials, counters, out);                                                     \
    }

ATTEND(attend_f16, __half, 1)
ATTEND(attend_f16, __half, 2)
ATTEND(attend_f16, __half, 4)
ATTEND(attend_f16, __half, 8)
ATTEND(attend_f32, float, 1)
ATTEND(attend_f32, float, 2)
ATTEND(attend_f32, float, 4)
ATTEND(attend_f32, float, 8)

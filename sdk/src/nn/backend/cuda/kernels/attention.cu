// Attention over the block tables of all sequences in a step, in one launch per layer.
//
// Keys and values are [kv_heads, slots, head_dim]; token i of a sequence has slot table[i / 16] · 16 + i % 16. For each
// token of a step the caller gives the number of tokens up to and including itself, where its sequence's table starts,
// and, in steps with images whose tokens see each other, the number of tokens that it sees. There are two kernels:
// `attend` handles one token and the query heads of one key head per block, or splits long contexts over several blocks
// when there are few tokens; `attend_tiles` handles 64 neighbouring tokens of a prompt and one head, on tensor cores.
//
// A context is split into chunks by its length alone, and the chunks' sums are combined in order, by one block or by
// several: a token's result is the same in any batch, to the last bit.
#include "rows.cuh"

static constexpr int THREADS = 128, TILE = 64, SPLITS_MAX = 32, BLOCK_TOKENS = 16;

struct Scores {
    float scale, softcap; // softcap 0: none
    int window;           // 0: none
};

__device__ __forceinline__ float capped(float score, const Scores &scores) {
    score *= scores.scale;
    return scores.softcap > 0.0f ? scores.softcap * tanhf(score / scores.softcap) : score;
}

// Partial sums over some keys: the largest score, the total mass relative to it, and one output value. `add` appends
// the next chunk, in steps that no compiler may fuse differently.
struct Sums {
    float peak, mass, value;

    __device__ __forceinline__ void add(const Sums &next) {
        const float now = fmaxf(peak, next.peak), before = expf(peak - now), after = expf(next.peak - now);
        mass = __fmaf_rn(mass, before, __fmul_rn(next.mass, after));
        value = __fmaf_rn(value, before, __fmul_rn(next.value, after));
        peak = now;
    }

    // The output of a head; its sink, if any, has mass but no value.
    __device__ __forceinline__ float mean(const float *sinks, int head) {
        if (sinks) add(Sums{sinks[head], 1.0f, 0.0f});
        return value / mass;
    }
};

// Rotates the outputs of some heads, in groups, so that they are as values were before these were packed.
__device__ __forceinline__ void turn_back(float *means, int count, int group, float *out) {
    for (int half = 1; half < group; half *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < count / 2; i += THREADS) {
            float *pair = means + i / half * 2 * half + i % half;
            const float first = pair[0], second = pair[half];
            pair[0] = first + second;
            pair[half] = first - second;
        }
    }
    __syncthreads();
    const float scale = 1.0f / sqrtf((float)group);
    for (int i = threadIdx.x; i < count; i += THREADS) out[i] = means[i] * scale;
}

// A sequence's keys and values of one head.
template <typename Rows> struct Past {
    const uint8_t *keys, *values;
    const uint32_t *table;
    int bytes, stride;

    // Starts copying the tile at `tile`, keys and then values. Positions beyond the last key repeat it, or are what is
    // behind it in its block; they are masked.
    __device__ __forceinline__ void fetch(uint8_t *tile_keys, uint8_t *tile_values, int tile, int end) const {
        const int pieces = Rows::RUN * bytes / 16;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint8_t *from = which ? values : keys;
            uint8_t *to = which ? tile_values : tile_keys;
            for (int i = threadIdx.x; i < TILE / Rows::RUN * pieces; i += THREADS) {
                const int key = i / pieces * Rows::RUN, piece = i % pieces * 16, at = min(tile + key, end - 1);
                const size_t slot = (size_t)table[at / BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS / Rows::RUN * Rows::RUN;
                copy16(to + key * stride + piece, from + slot * bytes + piece);
            }
            commit_copies();
        }
    }
};

// The tokens are those from `first` on in `chosen`, or in the batch if that is null. If the grid splits contexts,
// `partials` has room for [tokens, heads, splits, head_dim + 2] and `counters`, all zero, for [tokens, head groups]; a
// grid with one split handles whole contexts. `stages` tiles are in shared memory at once: 2, or 1 if that is too
// large.
template <typename Rows, int G>
__device__ __forceinline__ void attend(const float *q, const uint8_t *keys, const uint8_t *values, const uint32_t *chosen,
                                       int first_token, const uint32_t *lens, const uint32_t *ends,
                                       const uint32_t *table_starts, const uint32_t *tables, Scores scores, int heads,
                                       int kv_heads, int head_dim, size_t all_slots, int stages, const float *sinks,
                                       float *partials, uint32_t *counters, float *out) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float weights[G][TILE], factor[G], peak[G], mass[G];
    __shared__ bool is_last;
    constexpr int OUTPUTS = 2 * G;               // per thread at most: G · 256 / THREADS
    const int bytes = Rows::bytes(head_dim), stride = Rows::stride(head_dim);
    float *queries = shared;                               // [G][head_dim]
    float *sums = queries + G * head_dim;                  // [subsets][G][head_dim]
    uint8_t *tiles = (uint8_t *)(sums + G * 2 * THREADS);  // [stages][keys, values][TILE][stride]
    begin();

    const int split = blockIdx.x, at_token = first_token + blockIdx.z, tid = threadIdx.x;
    const int token = chosen ? chosen[at_token] : at_token;
    const int shared_by = heads / kv_heads, groups = (shared_by + G - 1) / G;
    const int kv_head = blockIdx.y / groups, first = kv_head * shared_by + blockIdx.y % groups * G;
    const int count = min(G, kv_head * shared_by + shared_by - first);

    const int len = ends ? ends[token] : lens[token];
    const int low = scores.window > 0 ? max(0, (int)lens[token] - scores.window) : 0;
    const int base = low / TILE * TILE, all = len - base;
    const int chunk = all <= TILE * SPLITS_MAX ? TILE : (all + TILE * SPLITS_MAX - 1) / (TILE * SPLITS_MAX) * TILE;
    const int splits = (all + chunk - 1) / chunk, is_whole = gridDim.x == 1;
    if (split >= splits) return;
    const int start = base + split * chunk, end = is_whole ? len : min(len, start + chunk);

    const size_t head_start = (size_t)kv_head * all_slots * bytes;
    const Past<Rows> past{keys + head_start, values + head_start, tables + table_starts[token], bytes, stride};
    past.fetch(tiles, tiles + TILE * stride, start, end);
    for (int i = tid; i < G * head_dim; i += THREADS) {
        const int head = i / head_dim;
        queries[i] = head < count ? q[((size_t)token * heads + first + head) * head_dim + i % head_dim] : 0.0f;
    }
    if (tid < G) peak[tid] = -INFINITY, mass[tid] = 0.0f;

    const int pairs = head_dim / 2, subsets = THREADS / pairs, pair = tid % pairs, subset = tid / pairs;
    float acc[G][2];
#pragma unroll
    for (int h = 0; h < G; h++) acc[h][0] = acc[h][1] = 0.0f;
    Sums total[OUTPUTS];
    int stage = 0;

    for (int tile = start; tile < end; tile += TILE) {
        uint8_t *tile_keys = tiles + stage * 2 * TILE * stride, *tile_values = tile_keys + TILE * stride;
        const bool fetches = stages == 2 && tile + TILE < end;
        if (fetches) {
            stage ^= 1;
            uint8_t *next = tiles + stage * 2 * TILE * stride;
            past.fetch(next, next + TILE * stride, tile + TILE, end);
            wait_for_copies<3>();
        } else {
            wait_for_copies<1>();
        }
        __syncthreads();
        {
            // Two threads per key, each with every other group of eight values.
            const int at = tid / 2;
            const uint8_t *key = tile_keys + at * stride;
            float dot[G];
#pragma unroll
            for (int h = 0; h < G; h++) dot[h] = 0.0f;
#pragma unroll 4
            for (int d = 8 * (tid % 2); d < head_dim; d += 16) {
                float piece[8];
                Rows::load8(key, d, piece);
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
        if (fetches) wait_for_copies<2>();
        else wait_for_copies<0>();
        __syncthreads();
        if (subset < subsets) {
#pragma unroll
            for (int h = 0; h < G; h++) acc[h][0] *= factor[h], acc[h][1] *= factor[h];
#pragma unroll 8
            for (int at = subset; at < TILE; at += subsets) {
                // What is behind the last key in its block may be NaN.
                const int row = Rows::IS_PACKED ? min(at, end - 1 - tile) : at;
                const float2 value = Rows::load2(tile_values + row * stride, 2 * pair);
#pragma unroll
                for (int h = 0; h < G; h++) acc[h][0] += weights[h][at] * value.x, acc[h][1] += weights[h][at] * value.y;
            }
        }
        const bool ends_chunk = tile + TILE >= end || (tile + TILE - base) % chunk == 0;
        if (ends_chunk) {
            if (subset < subsets) {
#pragma unroll
                for (int h = 0; h < G; h++) {
                    sums[(subset * G + h) * head_dim + 2 * pair] = acc[h][0];
                    sums[(subset * G + h) * head_dim + 2 * pair + 1] = acc[h][1];
                    acc[h][0] = acc[h][1] = 0.0f;
                }
            }
            __syncthreads();
#pragma unroll
            for (int j = 0; j < OUTPUTS; j++) {
                const int i = tid + j * THREADS, h = i / head_dim, d = i % head_dim;
                if (i >= count * head_dim) break;
                Sums these{peak[h], mass[h], 0.0f};
                for (int s = 0; s < subsets; s++) these.value += sums[(s * G + h) * head_dim + d];
                if (tile < start + chunk) total[j] = these;
                else total[j].add(these);
            }
            __syncthreads();
            if (tid < G) peak[tid] = -INFINITY, mass[tid] = 0.0f;
        }
        __syncthreads();
        if (stages == 1 && tile + TILE < end) past.fetch(tile_keys, tile_values, tile + TILE, end);
    }

    const size_t stride_of_part = head_dim + 2;
    float *rows = out + ((size_t)token * heads + first) * head_dim, *means = Rows::IS_PACKED ? sums : rows;
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) {
        const int i = tid + j * THREADS, h = i / head_dim, d = i % head_dim;
        if (i >= count * head_dim) break;
        if (is_whole || splits == 1) {
            means[i] = total[j].mean(sinks, first + h);
        } else {
            float *part = partials + (((size_t)blockIdx.z * heads + first + h) * gridDim.x + split) * stride_of_part;
            part[2 + d] = total[j].value;
            if (d == 0) part[0] = total[j].peak, part[1] = total[j].mass;
        }
    }
    if (is_whole || splits == 1) {
        if constexpr (Rows::IS_PACKED) turn_back(sums, count * head_dim, rotated(head_dim), rows);
        return;
    }

    // The last block of a token to arrive combines the parts.
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
        const float *part = partials + ((size_t)blockIdx.z * heads + first + h) * gridDim.x * stride_of_part;
        Sums all_parts{__ldcg(part), __ldcg(part + 1), __ldcg(part + 2 + d)};
#pragma unroll 8
        for (int s = 1; s < splits; s++) {
            const float *from = part + s * stride_of_part;
            all_parts.add(Sums{__ldcg(from), __ldcg(from + 1), __ldcg(from + 2 + d)});
        }
        means[i] = all_parts.mean(sinks, first + h);
    }
    if constexpr (Rows::IS_PACKED) turn_back(sums, count * head_dim, rotated(head_dim), rows);
}

#define ATTEND(name, Rows, G)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                               \
        name##_##G(const float *q, const uint8_t *keys, const uint8_t *values, const uint32_t *chosen, int first_token, \
                   const uint32_t *lens, const uint32_t *ends, const uint32_t *table_starts, const uint32_t *tables,    \
                   float scale, float softcap, int window, int heads, int kv_heads, int head_dim, size_t all_slots,     \
                   int stages, const float *sinks, float *partials, uint32_t *counters, float *out) {                   \
        attend<Rows, G>(q, keys, values, chosen, first_token, lens, ends, table_starts, tables,                         \
                        Scores{scale, softcap, window}, heads, kv_heads, head_dim, all_slots, stages, sinks, partials,  \
                        counters, out);                                                                                 \
    }
#define ATTEND_ALL(name, Rows) ATTEND(name, Rows, 1) ATTEND(name, Rows, 2) ATTEND(name, Rows, 4) ATTEND(name, Rows, 8)

ATTEND_ALL(attend_f16, Plain<__half>)
ATTEND_ALL(attend_f32, Plain<float>)
ATTEND_ALL(attend_q8, Packed<8>)
ATTEND_ALL(attend_q4, Packed<4>)

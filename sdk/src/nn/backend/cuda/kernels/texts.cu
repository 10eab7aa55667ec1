// Attention within whole texts and images, in both directions, on tensor cores: some rows of a text and one head per
// block, online softmax over tiles of its keys (arXiv 2205.14135, 2307.08691). Texts are packed without padding.
//
// Every number is split into two bf16, which have 16 bits of it and the range of an f32: queries, keys, values and
// weights alike. Of the four products of the parts, the one of both low ones is left out. Encoders in f32 keep their
// digits that way, and no activation overflows.
//
// Tiles of keys start at the first key of a text, and a warp computes its rows by itself: a row depends neither on other
// texts nor on the number of rows in a block, to the last bit.
#include "common.cuh"

// Rows in an entry of the list of tiles. Larger blocks take several entries, and leave out the others.
static constexpr int TILE_ROWS = 64;
static constexpr float LOG2_E = 1.4426950408889634f;

// Two numbers as pairs of bf16.
struct Pairs {
    uint32_t high, low;

    __device__ __forceinline__ Pairs(float a, float b) {
        const __nv_bfloat162 first = __floats2bfloat162_rn(a, b);
        const float2 taken = __bfloat1622float2(first);
        const __nv_bfloat162 rest = __floats2bfloat162_rn(a - taken.x, b - taken.y);
        high = *(const uint32_t *)&first;
        low = *(const uint32_t *)&rest;
    }
};

__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const __nv_bfloat16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], const __nv_bfloat16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

// Splits keys and values, [tokens, heads, head_dim], into [heads, tokens, 2, padded]: the high parts of a head and then
// the low ones, each with zeros behind it. The grid is [pairs of all / threads, keys and values].
extern "C" __global__ void split_heads(const float *keys, const float *values, int tokens, int heads, int head_dim,
                                       int padded, uint32_t *split_keys, uint32_t *split_values) {
    begin();
    const int pairs = padded / 2;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / pairs;
    if (row >= (size_t)tokens * heads) return;
    const int pair = i % pairs, token = row / heads, head = row % heads;
    const float *from = (blockIdx.y ? values : keys) + row * head_dim;
    const float2 both = 2 * pair < head_dim ? *(const float2 *)(from + 2 * pair) : make_float2(0.0f, 0.0f);
    const Pairs parts(both.x, both.y);
    uint32_t *to = (blockIdx.y ? split_values : split_keys) + ((size_t)head * tokens + token) * padded;
    to[pair] = parts.high;
    to[pairs + pair] = parts.low;
}

// How scores are made: of the first of `distances` biases per head, if there are any, and within `reach` if that is not
// negative.
struct Sight {
    const float *biases;
    int distances, reach;
};

// A tile: the text's first token in the batch, its number of tokens, and the first of the tile's rows in the text.
template <int D, int WARPS, int STRIPS, int KEYS>
__device__ __forceinline__ void attend_texts(const float *q, const __nv_bfloat16 *keys, const __nv_bfloat16 *values,
                                             const int4 *tiles, float scale, Sight sight, int tokens, int heads,
                                             int kv_heads, int head_dim, int stages, float *out) {
    constexpr int STRIDE = 2 * D + 8, ROWS = WARPS * STRIPS * 16, STEPS = D / 16, TILE = 2 * KEYS * STRIDE;
    constexpr int AT_ONCE = KEYS / 8 < 4 ? KEYS / 8 : 4;
    // Largest head whose queries a warp holds in registers.
    constexpr bool IS_HELD = STRIPS == 1 ? D <= 128 : D <= 80;
    begin();
    extern __shared__ __align__(16) __nv_bfloat16 memory[];
    const int4 tile = tiles[blockIdx.x];
    if (tile.z % ROWS != 0) return;
    const int first = tile.x, len = tile.y, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int warp_row = tile.z + warp * STRIPS * 16;
    const bool has_rows = warp_row < len;

    uint32_t query[IS_HELD ? STRIPS : 1][IS_HELD ? STEPS : 1][2][4];
    __nv_bfloat16 *query_rows = memory + stages * TILE + warp * STRIPS * 16 * STRIDE;
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = min(warp_row + 16 * m + 8 * half + g, len - 1);
            const float *from = q + ((size_t)(first + row) * heads + head) * head_dim;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) {
                const int at = 8 * i + 2 * t;
                const float2 both = at < head_dim ? *(const float2 *)(from + at) : make_float2(0.0f, 0.0f);
                const Pairs parts(both.x * scale, both.y * scale);
                if constexpr (IS_HELD) {
                    query[m][i / 2][0][half + 2 * (i % 2)] = parts.high;
                    query[m][i / 2][1][half + 2 * (i % 2)] = parts.low;
                } else {
                    uint32_t *to = (uint32_t *)(query_rows + (16 * m + 8 * half + g) * STRIDE + at);
                    to[0] = parts.high;
                    to[D / 2] = parts.low;
                }
            }
        }
    }
    __syncwarp();

    const int low = sight.reach >= 0 ? max(0, tile.z - sight.reach) / KEYS * KEYS : 0;
    const int end = sight.reach >= 0 ? min(len, min(len, tile.z + ROWS) + sight.reach) : len;
    const size_t head_start = ((size_t)kv_head * tokens + first) * 2 * D;
    // Positions beyond the last key repeat it and are masked.
    const auto fetch = [&](int stage, int start) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const __nv_bfloat16 *from = (which ? values : keys) + head_start;
            __nv_bfloat16 *to = memory + stage * TILE + which * KEYS * STRIDE;
#pragma unroll
            for (int i = threadIdx.x; i < KEYS * (D / 4); i += WARPS * WARP) {
                const int key = i / (D / 4), piece = i % (D / 4) * 8;
                copy16(to + key * STRIDE + piece, from + (size_t)min(start + key, len - 1) * 2 * D + piece);
            }
        }
        commit_copies();
    };

    float acc[STRIPS][D / 8][4], peak[STRIPS][2], mass[STRIPS][2];
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
#pragma unroll
        for (int i = 0; i < D / 8; i++) acc[m][i][0] = acc[m][i][1] = acc[m][i][2] = acc[m][i][3] = 0.0f;
        peak[m][0] = peak[m][1] = -INFINITY;
        mass[m][0] = mass[m][1] = 0.0f;
    }

    int stage = 0;
    if (stages == 2) fetch(0, low);
    for (int start = low; start < end; start += KEYS) {
        const __nv_bfloat16 *key_tile = memory + stage * TILE, *value_tile = key_tile + KEYS * STRIDE;
        if (stages == 1) fetch(0, start);
        if (stages == 2 && start + KEYS < end) {
            stage ^= 1;
            fetch(stage, start + KEYS);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        if (has_rows) {
            float s[STRIPS][KEYS / 8][4];
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                uint32_t part[STRIPS][2][4];
#pragma unroll
                for (int m = 0; m < STRIPS; m++) {
#pragma unroll
                    for (int is_low = 0; is_low < 2; is_low++) {
                        if constexpr (IS_HELD) {
#pragma unroll
                            for (int j = 0; j < 4; j++) part[m][is_low][j] = query[m][i][is_low][j];
                        } else {
                            load_matrices(part[m][is_low], query_rows + (16 * m + lane % 16) * STRIDE + is_low * D + 16 * i + lane / 16 * 8);
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < KEYS / 8; n += AT_ONCE) {
                    uint32_t key[AT_ONCE][4];
#pragma unroll
                    for (int j = 0; j < AT_ONCE; j++)
                        load_matrices(key[j], key_tile + (8 * (n + j) + lane % 8) * STRIDE + lane / 16 * D + 16 * i + lane / 8 % 2 * 8);
#pragma unroll
                    for (int product = 0; product < 3; product++)
#pragma unroll
                        for (int m = 0; m < STRIPS; m++)
#pragma unroll
                            for (int j = 0; j < AT_ONCE; j++) {
                                const int of_key = product == 1 ? 2 : 0;
                                mma_bf16(s[m][n + j], part[m][product == 2], key[j][of_key], key[j][of_key + 1]);
                            }
                }
            }
            const bool is_cut = start + KEYS > len || sight.reach >= 0;
#pragma unroll
            for (int m = 0; m < STRIPS; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = warp_row + 16 * m + 8 * half + g;
                    float top = peak[m][half];
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            float &score = s[m][n][2 * half + c];
                            const int key = start + 8 * n + 2 * t + c;
                            if (sight.biases) {
                                const int distance = min(max(key - row + sight.distances / 2, 0), sight.distances - 1);
                                score += LOG2_E * sight.biases[(size_t)head * sight.distances + distance];
                            }
                            if (is_cut && (key >= len || (sight.reach >= 0 && abs(key - row) > sight.reach))) score = -INFINITY;
                            top = fmaxf(top, score);
                        }
                    }
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                    // A row that has seen no key yet keeps a finite peak, as −∞ − −∞ is NaN.
                    const float base = top == -INFINITY ? 0.0f : top, factor = power_of_two(peak[m][half] - base);
                    peak[m][half] = top;
                    float sum = 0.0f;
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            float &score = s[m][n][2 * half + c];
                            score = power_of_two(score - base);
                            sum += score;
                        }
                    }
                    mass[m][half] = mass[m][half] * factor + sum;
#pragma unroll
                    for (int i = 0; i < D / 8; i++) acc[m][i][2 * half] *= factor, acc[m][i][2 * half + 1] *= factor;
                }
            }
#pragma unroll
            for (int k = 0; k < KEYS / 16; k++) {
                uint32_t weight[STRIPS][2][4];
#pragma unroll
                for (int m = 0; m < STRIPS; m++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const float *both = s[m][2 * k + j / 2] + j % 2 * 2;
                        const Pairs parts(both[0], both[1]);
                        weight[m][0][j] = parts.high;
                        weight[m][1][j] = parts.low;
                    }
                }
#pragma unroll
                for (int i = 0; i < STEPS; i += 2) {
                    constexpr int COLUMNS = 2;
                    uint32_t value[COLUMNS][2][4];
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                        for (int is_low = 0; is_low < 2; is_low++)
                            if (i + j < STEPS)
                                load_transposed(value[j][is_low], value_tile + (16 * k + lane % 16) * STRIDE + is_low * D + 16 * (i + j) + lane / 16 * 8);
#pragma unroll
                    for (int product = 0; product < 3; product++)
#pragma unroll
                        for (int m = 0; m < STRIPS; m++)
#pragma unroll
                            for (int j = 0; j < 2 * COLUMNS; j++)
                                if (i + j / 2 < STEPS) {
                                    const uint32_t *part = value[j / 2][product == 1] + j % 2 * 2;
                                    mma_bf16(acc[m][2 * i + j], weight[m][product == 2], part[0], part[1]);
                                }
                }
            }
        }
        __syncthreads();
    }
    if (!has_rows) return;
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = mass[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float factor = 1.0f / sum;
            const int row = warp_row + 16 * m + 8 * half + g;
            if (row >= len) continue;
            float *to = out + ((size_t)(first + row) * heads + head) * head_dim;
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                if (8 * i + 2 * t < head_dim)
                    *(float2 *)(to + 8 * i + 2 * t) = make_float2(acc[m][i][2 * half] * factor, acc[m][i][2 * half + 1] * factor);
        }
    }
}

#define ATTEND_TEXTS(D, ROWS, WARPS, STRIPS, KEYS)                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP)                                                            \
        attend_texts_##D##_##ROWS(const float *q, const __nv_bfloat16 *keys, const __nv_bfloat16 *values,                \
                                  const int4 *tiles, float scale, const float *biases, int distances, int reach,         \
                                  int tokens, int heads, int kv_heads, int head_dim, int stages, float *out) {           \
        static_assert(WARPS * STRIPS * 16 == ROWS && ROWS % TILE_ROWS == 0, "");                                         \
        attend_texts<D, WARPS, STRIPS, KEYS>(q, keys, values, tiles, scale * LOG2_E, Sight{biases, distances, reach},    \
                                             tokens, heads, kv_heads, head_dim, stages, out);                            \
    }

// Heads of up to this many values, in blocks of so many rows; as in texts.rs.
ATTEND_TEXTS(32, 64, 4, 1, 64)
ATTEND_TEXTS(32, 128, 8, 1, 64)
ATTEND_TEXTS(64, 64, 4, 1, 64)
ATTEND_TEXTS(64, 128, 8, 1, 64)
ATTEND_TEXTS(80, 64, 4, 1, 64)
ATTEND_TEXTS(80, 128, 8, 1, 64)
ATTEND_TEXTS(96, 64, 4, 1, 64)
ATTEND_TEXTS(96, 128, 8, 1, 64)
ATTEND_TEXTS(128, 64, 4, 1, 32)
ATTEND_TEXTS(128, 128, 8, 1, 32)
ATTEND_TEXTS(256, 64, 4, 1, 32)

// Attention of prompt chunks on tensor cores: 64 neighbouring tokens of a sequence and one head per block, online
// softmax over tiles of 64 keys (arXiv 2205.14135, 2307.08691). Keys and values as in attention.cu; a tile of them is in f16,
// to which packed rows are widened.
#include "rows.cuh"

static constexpr int KEYS = 64, BLOCK_TOKENS = 16, WARPS = 4;

__device__ __forceinline__ uint32_t pack(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *(const uint32_t *)&pair;
}

// Largest head whose queries a warp holds in registers; those of larger heads are read from shared memory.
static constexpr int HELD = 192;

// Rotates two rows of sums as products of matrices leave them: a quarter of a warp has a row, and each of its four lanes
// two values out of eight.
template <int D> __device__ __forceinline__ void turn_back(float (&acc)[D / 8][4], int lane) {
    constexpr int GROUP = rotated(D);
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
#pragma unroll
        for (int row = 0; row < 4; row += 2) {
            const float first = acc[i][row], second = acc[i][row + 1];
            acc[i][row] = first + second;
            acc[i][row + 1] = first - second;
        }
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float other = __shfl_xor_sync(0xffffffffu, acc[i][c], bit);
                acc[i][c] = lane & bit ? other - acc[i][c] : acc[i][c] + other;
            }
        }
    }
#pragma unroll
    for (int half = 1; half < GROUP / 8; half *= 2) {
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            if (i & half) continue;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float first = acc[i][c], second = acc[i + half][c];
                acc[i][c] = first + second;
                acc[i + half][c] = first - second;
            }
        }
    }
    const float scale = 1.0f / sqrtf((float)GROUP);
#pragma unroll
    for (int i = 0; i < D / 8; i++) acc[i][0] *= scale, acc[i][1] *= scale, acc[i][2] *= scale, acc[i][3] *= scale;
}

// A tile: the index of its first token in the batch, its number of tokens, the number of tokens of its sequence before
// the first, and the start of the sequence's table. A token sees those up to itself, or as many as `ends` says.
template <typename Rows, int D>
__device__ __forceinline__ void attend_tiles(const float *q, const uint8_t *keys, const uint8_t *values, const int4 *tiles,
                                             const uint32_t *ends, const uint32_t *tables, float scale, float softcap,
                                             int window, int heads, int kv_heads, size_t all_slots, const float *sinks,
                                             float *out) {
    constexpr int STRIDE = D + 8;
    begin();
    extern __shared__ __align__(16) __half memory[];
    __half *key_tile = memory, *value_tile = memory + KEYS * STRIDE;
    const int4 tile = tiles[blockIdx.x];
    const int first = tile.x, count = tile.y, before = tile.z, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const uint32_t *table = tables + tile.w;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int row0 = warp * 16 + g, row1 = row0 + 8;
    const int at0 = before + row0, at1 = before + row1;
    const int end0 = ends ? ends[first + min(row0, count - 1)] : at0 + 1;
    const int end1 = ends ? ends[first + min(row1, count - 1)] : at1 + 1;

    constexpr bool IS_HELD = D <= HELD;
    uint32_t query[IS_HELD ? D / 16 : 1][4];
    __half *query_tile = value_tile + KEYS * STRIDE + row0 * STRIDE + 2 * t;
    const float *q0 = q + ((size_t)(first + min(row0, count - 1)) * heads + head) * D;
    const float *q1 = q + ((size_t)(first + min(row1, count - 1)) * heads + head) * D;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const float2 a = *(const float2 *)(q0 + 16 * i + 2 * t), b = *(const float2 *)(q1 + 16 * i + 2 * t);
        const float2 c = *(const float2 *)(q0 + 16 * i + 2 * t + 8), d = *(const float2 *)(q1 + 16 * i + 2 * t + 8);
        const uint32_t part[4] = {pack(a.x, a.y), pack(b.x, b.y), pack(c.x, c.y), pack(d.x, d.y)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (IS_HELD) query[i][j] = part[j];
            else *(uint32_t *)(query_tile + j % 2 * 8 * STRIDE + 16 * i + j / 2 * 8) = part[j];
        }
    }

    float acc[D / 8][4];
#pragma unroll
    for (int i = 0; i < D / 8; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    float peak0 = -INFINITY, peak1 = -INFINITY, mass0 = 0.0f, mass1 = 0.0f;
    int end = before + count;
    if (ends)
        for (int row = 0; row < count; row++) end = max(end, (int)ends[first + row]);
    const int low = window > 0 ? max(0, before + 1 - window) / KEYS * KEYS : 0;
    const int bytes = Rows::bytes(D);
    const size_t head_start = (size_t)kv_head * all_slots * bytes;

    for (int tile_start = low; tile_start < end; tile_start += KEYS) {
        // Keys, then values, each as one group of copies; positions beyond the last key repeat it and are masked.
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint8_t *from = (which ? values : keys) + head_start;
            __half *to = which ? value_tile : key_tile;
            for (int i = threadIdx.x; i < KEYS * (D / 8); i += WARPS * WARP) {
                const int key = i / (D / 8), piece = i % (D / 8), at = min(tile_start + key, end - 1);
                const size_t slot = (size_t)table[at / BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS;
                if constexpr (Rows::IS_PACKED) *(uint4 *)(to + key * STRIDE + 8 * piece) = Rows::halves8(from + slot * bytes, 8 * piece);
                else copy16(to + key * STRIDE + 8 * piece, from + slot * bytes + 16 * piece);
            }
            commit_copies();
        }
        wait_for_copies<1>();
        __syncthreads();
        float s[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t part[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if constexpr (IS_HELD) part[j] = query[i][j];
                else part[j] = *(const uint32_t *)(query_tile + j % 2 * 8 * STRIDE + 16 * i + j / 2 * 8);
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                const __half *key = key_tile + (8 * n + g) * STRIDE + 2 * t + 16 * i;
                mma_f16(s[n], part, *(const uint32_t *)key, *(const uint32_t *)(key + 8));
            }
        }
        float top0 = peak0, top1 = peak1;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int key = tile_start + 8 * n + 2 * t + c % 2, at = c < 2 ? at0 : at1;
                float score = s[n][c] * scale;
                if (softcap > 0.0f) score = softcap * tanhf(score / softcap);
                const bool is_seen = key < (c < 2 ? end0 : end1) && (window <= 0 || at - key < window);
                s[n][c] = is_seen ? score : -INFINITY;
            }
            top0 = fmaxf(top0, fmaxf(s[n][0], s[n][1]));
            top1 = fmaxf(top1, fmaxf(s[n][2], s[n][3]));
        }
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
            top0 = fmaxf(top0, __shfl_xor_sync(0xffffffffu, top0, offset));
            top1 = fmaxf(top1, __shfl_xor_sync(0xffffffffu, top1, offset));
        }
        // A row that has seen no key yet keeps a finite peak, as −∞ − −∞ is NaN.
        const float base0 = top0 == -INFINITY ? 0.0f : top0, base1 = top1 == -INFINITY ? 0.0f : top1;
        const float factor0 = __expf(peak0 - base0), factor1 = __expf(peak1 - base1);
        peak0 = top0, peak1 = top1;
        mass0 *= factor0, mass1 *= factor1;
#pragma unroll
        for (int i = 0; i < D / 8; i++) acc[i][0] *= factor0, acc[i][1] *= factor0, acc[i][2] *= factor1, acc[i][3] *= factor1;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][0] = __expf(s[n][0] - base0), s[n][1] = __expf(s[n][1] - base0);
            s[n][2] = __expf(s[n][2] - base1), s[n][3] = __expf(s[n][3] - base1);
            mass0 += s[n][0] + s[n][1];
            mass1 += s[n][2] + s[n][3];
        }
        wait_for_copies<0>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const uint32_t p[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]),
                                   pack(s[2 * k + 1][0], s[2 * k + 1][1]), pack(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                const __half *value = value_tile + (16 * k + lane % 16) * STRIDE + 16 * i + 8 * (lane / 16);
                uint32_t b0, b1, b2, b3;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(b0), "=r"(b1), "=r"(b2), "=r"(b3)
                             : "r"((uint32_t)__cvta_generic_to_shared(value)));
                mma_f16(acc[2 * i], p, b0, b1);
                mma_f16(acc[2 * i + 1], p, b2, b3);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
        mass0 += __shfl_xor_sync(0xffffffffu, mass0, offset);
        mass1 += __shfl_xor_sync(0xffffffffu, mass1, offset);
    }
    if (sinks) {
        // A sink has mass but no value.
        mass0 += __expf(sinks[head] - peak0);
        mass1 += __expf(sinks[head] - peak1);
    }
    const float scale0 = 1.0f / mass0, scale1 = 1.0f / mass1;
    if constexpr (Rows::IS_PACKED) turn_back<D>(acc, lane);
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        if (row0 < count) {
            float *to = out + ((size_t)(first + row0) * heads + head) * D + 8 * i + 2 * t;
            *(float2 *)to = make_float2(acc[i][0] * scale0, acc[i][1] * scale0);
        }
        if (row1 < count) {
            float *to = out + ((size_t)(first + row1) * heads + head) * D + 8 * i + 2 * t;
            *(float2 *)to = make_float2(acc[i][2] * scale1, acc[i][3] * scale1);
        }
    }
}

#define ATTEND_TILES(name, Rows, D)                                                                                     \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP)                                                           \
        name##_##D(const float *q, const uint8_t *keys, const uint8_t *values, const int4 *tiles,                       \
                   const uint32_t *ends, const uint32_t *tables, float scale, float softcap, int window,                \
                   int heads, int kv_heads, size_t all_slots, const float *sinks, float *out) {                         \
        attend_tiles<Rows, D>(q, keys, values, tiles, ends, tables, scale, softcap, window, heads, kv_heads, all_slots, \
                              sinks, out);                                                                              \
    }
#define ATTEND_TILES_ALL(name, Rows)                                                                                    \
    ATTEND_TILES(name, Rows, 64)                                                                                        \
    ATTEND_TILES(name, Rows, 80)                                                                                        \
    ATTEND_TILES(name, Rows, 96)                                                                                        \
    ATTEND_TILES(name, Rows, 128)                                                                                       \
    ATTEND_TILES(name, Rows, 192)                                                                                       \
    ATTEND_TILES(name, Rows, 256)

ATTEND_TILES_ALL(attend_tiles_f16, Plain<__half>)
ATTEND_TILES_ALL(attend_tiles_q8, Packed<8>)
ATTEND_TILES_ALL(attend_tiles_q4, Packed<4>)

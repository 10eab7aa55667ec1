// Products of few rows with weight matrices: out[row, n] = Σ_k x[row, k] · W[n, k] (+ bias[n]).
//
// Every weight is read once, in its storage format, and multiplied on the tensor cores: a quantized one as an exact
// integer in f16, with an f16 activation that `prepare` has scaled by a power of two; a bf16 one with the two bf16
// halves of the activation. Scales are applied to a block's sums in f32. A block of warps computes 16 outputs for up to
// 8·T rows: its warps divide the columns of W, and their sums are added in order. So the composition of a sum depends
// only on W's columns: a row's result is the same to the last bit, however many other rows there are.
//
// A product of a row or two with bf16 weights prepares its own activation, which costs less than a separate kernel (for
// quantized weights see one_row.cuh); a gated one computes 16 outputs of both matrices, and writes `gated` of them.
//
// The fragments of a 16×16 times 16×8 product: thread (g, t) = (lane / 4, lane % 4) holds rows g and g + 8 of W and
// column g of xᵀ, at the same values of k. Which values these are does not matter to a sum, so a thread takes adjacent
// ones: of a group of 32 values either 8, or 4 of each half.
#pragma once
#include "prepare.cuh"
#include "quants.cuh"

// Byte-sized integers of a word as 1024 + q in f16: bytes 0 and 2, and bytes 1 and 3.
__device__ __forceinline__ uint32_t even_bytes(uint32_t word) { return (word & 0x00FF00FFu) | 0x64006400u; }
__device__ __forceinline__ uint32_t odd_bytes(uint32_t word) { return ((word >> 8) & 0x00FF00FFu) | 0x64006400u; }

static constexpr int WARPS_MAX = 16, OUTPUTS = 16, PART = 128;

// One of the matrices that share an activation. `last_block` is the end of its blocks in the grid; `added`, if not
// null, is added to the product.
struct Segment {
    const uint8_t *data;
    const __half *scales;
    const float *bias, *added;
    float *out;
    int outputs, last_block, format, unused;
};
// `alpha` and `limit` belong to a clamped gate.
struct Segments {
    Segment of[3];
    float alpha, limit;
};

// The activation: `x` itself for a row or two, or the output of `prepare`.
struct Activation {
    const float *x;
    const uint16_t *high, *low;
    const float *sums, *row_scales;
};

// An activation as written by `prepare`: values by column g of each of T tiles; sums over 16 and over 32 values, eight
// rows interleaved.
template <int T> struct Columns {
    const uint16_t *high[T], *low[T];
    const float *sums16[T], *sums32[T];
    int lane;

    __device__ __forceinline__ Columns(const uint16_t *high_in, const uint16_t *low_in, const float *sums, int rows, int inputs) {
        const int g = threadIdx.x % WARP / 4;
        lane = threadIdx.x % 4;
#pragma unroll
        for (int tile = 0; tile < T; tile++) {
            // Columns beyond the last repeat it; their results are not written.
            const size_t at = (size_t)min(tile * 8 + g, rows - 1) * inputs + 8 * lane;
            high[tile] = high_in + at;
            low[tile] = low_in + at;
            sums16[tile] = sums + (size_t)tile * (inputs / 16 * 12) + 2 * lane;
            sums32[tile] = sums16[tile] + inputs / 16 * 8;
        }
    }
};

// Adds the product of 32 columns in "eights": each thread has values 8·t to 8·t + 7 of both rows, as two fragments.
template <int T>
__device__ __forceinline__ void multiply_eights(float (&d)[T][4], const uint32_t (&a0)[4], const uint32_t (&a1)[4],
                                                const Columns<T> &x, int k) {
#pragma unroll
    for (int tile = 0; tile < T; tile++) {
        const uint4 h = *(const uint4 *)(x.high[tile] + k);
        mma_f16(d[tile], a0, h.x, h.y);
        mma_f16(d[tile], a1, h.z, h.w);
    }
}

template <int T> __device__ __forceinline__ void clear(float (&d)[T][4]) {
#pragma unroll
    for (int tile = 0; tile < T; tile++) d[tile][0] = d[tile][1] = d[tile][2] = d[tile][3] = 0.0f;
}

// total += scale · d − offset · sum, for the thread's two rows and two columns.
template <int T>
__device__ __forceinline__ void scaled(float (&total)[T][4], const float (&d)[T][4], float2 scale, float2 offset,
                                       const float *const (&sums)[T], int group) {
#pragma unroll
    for (int tile = 0; tile < T; tile++) {
        const float2 sum = *(const float2 *)(sums[tile] + 8 * group);
        total[tile][0] = fmaf(scale.x, d[tile][0], fmaf(-offset.x, sum.x, total[tile][0]));
        total[tile][1] = fmaf(scale.x, d[tile][1], fmaf(-offset.x, sum.y, total[tile][1]));
        total[tile][2] = fmaf(scale.y, d[tile][2], fmaf(-offset.y, sum.x, total[tile][2]));
        total[tile][3] = fmaf(scale.y, d[tile][3], fmaf(-offset.y, sum.y, total[tile][3]));
    }
}

__device__ __forceinline__ float byte_of(uint32_t word, int at) { return (float)((word >> (8 * at)) & 0xFFu); }

// Each format defines where two rows of W are, how to load a thread's share of 128 of their columns, and how to add
// their product. HEAD is the number of bytes before the first row; BANK_OFFSET is the row stride in shared memory
// modulo 128 at which a warp's loads hit different banks.
template <bool FIVE> struct KBlocks {
    static constexpr bool HALVES = false;
    static constexpr int HEAD = 0, BANK_OFFSET = 32, BYTES = FIVE ? 176 : 144, QUANTS = FIVE ? 48 : 16;
    struct Part {
        uint4 head0, head1;
        uint2 q0[2], q1[2], h0, h1;
    };
    const uint8_t *row0, *row1;
    int lane;

    static __device__ __forceinline__ int row_bytes(int inputs) { return inputs / 256 * BYTES; }
    static __device__ __forceinline__ int row_scales(int) { return 0; }
    __device__ __forceinline__ KBlocks(const uint8_t *row0, const uint8_t *row1, const __half *, const __half *, const uint8_t *, int)
        : row0(row0), row1(row1), lane(threadIdx.x % 4) {}

    __device__ __forceinline__ void load(Part &p, int part) const {
        const uint8_t *b0 = row0 + (size_t)(part / 2) * BYTES, *b1 = row1 + (size_t)(part / 2) * BYTES;
        p.head0 = *(const uint4 *)b0;
        p.head1 = *(const uint4 *)b1;
        const int at = QUANTS + 64 * (part % 2) + 8 * lane;
        p.q0[0] = *(const uint2 *)(b0 + at), p.q0[1] = *(const uint2 *)(b0 + at + 32);
        p.q1[0] = *(const uint2 *)(b1 + at), p.q1[1] = *(const uint2 *)(b1 + at + 32);
        if (FIVE) p.h0 = *(const uint2 *)(b0 + 16 + 8 * lane), p.h1 = *(const uint2 *)(b1 + 16 + 8 * lane);
    }

    // Scales and minimums of four groups in one half, a byte each.
    static __device__ __forceinline__ uint2 scales_of(const uint4 &head, int half) {
        const uint32_t a = head.y, b = head.z, c = head.w;
        return half == 0 ? make_uint2(a & 0x3F3F3F3Fu, b & 0x3F3F3F3Fu)
                         : make_uint2((c & 0x0F0F0F0Fu) | ((a >> 2) & 0x30303030u), ((c >> 4) & 0x0F0F0F0Fu) | ((b >> 2) & 0x30303030u));
    }

    template <int T> __device__ __forceinline__ void add(float (&total)[T][4], const Columns<T> &x, const Part &p, int part) const {
        const int half = part % 2;
        const float2 d0 = __half22float2(*(const __half2 *)&p.head0.x), d1 = __half22float2(*(const __half2 *)&p.head1.x);
        const uint2 s0 = scales_of(p.head0, half), s1 = scales_of(p.head1, half);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a0[4], a1[4];
            if (FIVE) {
                const int shift = 4 * (i % 2), bit = 4 * half + i;
                const uint32_t w00 = ((p.q0[i / 2].x >> shift) & 0x0F0F0F0Fu) | (((p.h0.x >> bit) & 0x01010101u) << 4);
                const uint32_t w01 = ((p.q0[i / 2].y >> shift) & 0x0F0F0F0Fu) | (((p.h0.y >> bit) & 0x01010101u) << 4);
                const uint32_t w10 = ((p.q1[i / 2].x >> shift) & 0x0F0F0F0Fu) | (((p.h1.x >> bit) & 0x01010101u) << 4);
                const uint32_t w11 = ((p.q1[i / 2].y >> shift) & 0x0F0F0F0Fu) | (((p.h1.y >> bit) & 0x01010101u) << 4);
                a0[0] = even_bytes(w00), a0[1] = even_bytes(w10), a0[2] = odd_bytes(w00), a0[3] = odd_bytes(w10);
                a1[0] = even_bytes(w01), a1[1] = even_bytes(w11), a1[2] = odd_bytes(w01), a1[3] = odd_bytes(w11);
            } else {
                // Low nibbles become 1024 + q, high ones 64 + q, without shifts.
                const uint32_t mask = i % 2 ? 0x00F000F0u : 0x000F000Fu, base = i % 2 ? 0x54005400u : 0x64006400u;
                const uint2 q0 = p.q0[i / 2], q1 = p.q1[i / 2];
                a0[0] = (q0.x & mask) | base, a0[1] = (q1.x & mask) | base;
                a0[2] = ((q0.x >> 8) & mask) | base, a0[3] = ((q1.x >> 8) & mask) | base;
                a1[0] = (q0.y & mask) | base, a1[1] = (q1.y & mask) | base;
                a1[2] = ((q0.y >> 8) & mask) | base, a1[3] = ((q1.y >> 8) & mask) | base;
            }
            float d[T][4];
            clear(d);
            multiply_eights(d, a0, a1, x, part * PART + 32 * i);
            const float2 scale = make_float2(d0.x * byte_of(s0.x, i), d1.x * byte_of(s1.x, i));
            const float base = FIVE || i % 2 == 0 ? 1024.0f : 64.0f;
            const float2 offset = make_float2(fmaf(base, scale.x, d0.y * byte_of(s0.y, i)), fmaf(base, scale.y, d1.y * byte_of(s1.y, i)));
            scaled(total, d, scale, offset, x.sums32, part * 4 + i);
        }
    }
};

struct SixBits {
    static constexpr bool HALVES = false;
    static constexpr int HEAD = 0, BANK_OFFSET = 32;
    struct Part {
        uint32_t low0[4], low1[4], high0[2], high1[2];
        uint2 scales0, scales1;
        float d0, d1;
    };
    const uint8_t *row0, *row1;
    const __half *scales0, *scales1;
    int lane;

    static __device__ __forceinline__ int row_bytes(int inputs) { return inputs / 256 * Q6K::BYTES; }
    static __device__ __forceinline__ int row_scales(int inputs) { return inputs / 256; }
    __device__ __forceinline__ SixBits(const uint8_t *row0, const uint8_t *row1, const __half *scales0, const __half *scales1, const uint8_t *, int)
        : row0(row0), row1(row1), scales0(scales0), scales1(scales1), lane(threadIdx.x % 4) {}

    __device__ __forceinline__ void load(Part &p, int part) const {
        const int half = part % 2;
        const uint8_t *b0 = row0 + (size_t)(part / 2) * Q6K::BYTES, *b1 = row1 + (size_t)(part / 2) * Q6K::BYTES;
        p.d0 = __half2float(scales0[part / 2]), p.d1 = __half2float(scales1[part / 2]);
        p.scales0 = *(const uint2 *)(b0 + 192 + 8 * half), p.scales1 = *(const uint2 *)(b1 + 192 + 8 * half);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 64 * half + 16 * i + 4 * lane;
            p.low0[i] = *(const uint32_t *)(b0 + at), p.low1[i] = *(const uint32_t *)(b1 + at);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = 128 + 32 * half + 16 * i + 4 * lane;
            p.high0[i] = *(const uint32_t *)(b0 + at), p.high1[i] = *(const uint32_t *)(b1 + at);
        }
    }

    template <int T> __device__ __forceinline__ void add(float (&total)[T][4], const Columns<T> &x, const Part &p, int part) const {
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int from = 2 * (quarter % 2) + i, nibble = quarter < 2 ? 0 : 4;
                const uint32_t w0 = ((p.low0[from] >> nibble) & 0x0F0F0F0Fu) | (((p.high0[i] >> (2 * quarter)) & 0x03030303u) << 4);
                const uint32_t w1 = ((p.low1[from] >> nibble) & 0x0F0F0F0Fu) | (((p.high1[i] >> (2 * quarter)) & 0x03030303u) << 4);
                const uint32_t a[4] = {even_bytes(w0), even_bytes(w1), odd_bytes(w0), odd_bytes(w1)};
                const int group = 2 * quarter + i;
                float d[T][4];
                clear(d);
#pragma unroll
                for (int tile = 0; tile < T; tile++) {
                    // The pointer is at 8 · lane in a group of 32; here a thread takes 4 · lane in a group of 16.
                    const uint2 h = *(const uint2 *)(x.high[tile] + part * PART + 16 * group - 4 * lane);
                    mma_f16(d[tile], a, h.x, h.y);
                }
                const uint32_t word0 = group < 4 ? p.scales0.x : p.scales0.y, word1 = group < 4 ? p.scales1.x : p.scales1.y;
                const float2 scale = make_float2(p.d0 * (int8_t)(word0 >> (8 * (group % 4))), p.d1 * (int8_t)(word1 >> (8 * (group % 4))));
                scaled(total, d, scale, make_float2(1056.0f * scale.x, 1056.0f * scale.y), x.sums16, part * 8 + group);
            }
        }
    }
};

// Groups of 32 with a scale each: signed bytes, or 4-bit indices into a table of 16 of these, stored before the first
// row. Some formats also have a minimum after each scale. Rows are padded to whole parts, in which a thread's values of
// all four groups are adjacent, so that it loads 16 bytes at a time.
template <int BITS, bool MINIMUM> struct Groups {
    static constexpr bool HALVES = false;
    static constexpr int HEAD = BITS == 4 ? 16 : 0, BANK_OFFSET = 64, WORDS = BITS / 4;
    struct Part {
        uint4 q0[WORDS], q1[WORDS];
        // Pairs of scales, or scales with minimums.
        uint32_t s0[MINIMUM ? 4 : 2], s1[MINIMUM ? 4 : 2];
    };
    const uint8_t *row0, *row1;
    const __half *scales0, *scales1;
    uint4 table;
    int lane, blocks;

    static __device__ __forceinline__ int parts(int inputs) { return (inputs + PART - 1) / PART; }
    static __device__ __forceinline__ int row_bytes(int inputs) { return parts(inputs) * (PART / 8 * BITS); }
    static __device__ __forceinline__ int row_scales(int inputs) { return parts(inputs) * (MINIMUM ? 8 : 4); }
    __device__ __forceinline__ Groups(const uint8_t *row0, const uint8_t *row1, const __half *scales0, const __half *scales1,
                                      const uint8_t *head, int inputs)
        : row0(row0), row1(row1), scales0(scales0), scales1(scales1), lane(threadIdx.x % 4), blocks(inputs / 32) {
        if (BITS == 4) table = *(const uint4 *)head;
    }

    __device__ __forceinline__ void load(Part &p, int part) const {
        const int at = part * (PART / 8 * BITS) + 16 * lane;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            p.q0[i] = *(const uint4 *)(row0 + at + 64 * i), p.q1[i] = *(const uint4 *)(row1 + at + 64 * i);
        }
        if constexpr (MINIMUM) {
            *(uint4 *)p.s0 = ((const uint4 *)scales0)[part], *(uint4 *)p.s1 = ((const uint4 *)scales1)[part];
        } else {
            *(uint2 *)p.s0 = ((const uint2 *)scales0)[part], *(uint2 *)p.s1 = ((const uint2 *)scales1)[part];
        }
    }

    // Looks up the signed bytes of four indices.
    __device__ __forceinline__ uint32_t looked_up(uint32_t indices, uint32_t which) const {
        const uint32_t low = __byte_perm(table.x, table.y, indices), high = __byte_perm(table.z, table.w, indices);
        return __byte_perm(low, high, which);
    }
    // A thread's eight values of group i, as signed bytes.
    __device__ __forceinline__ uint2 bytes_of(const uint4 (&q)[WORDS], int i) const {
        if constexpr (BITS == 8) {
            return i % 2 == 0 ? make_uint2(q[i / 2].x, q[i / 2].y) : make_uint2(q[i / 2].z, q[i / 2].w);
        } else {
            const uint32_t word = i == 0 ? q[0].x : i == 1 ? q[0].y : i == 2 ? q[0].z : q[0].w;
            const uint32_t indices = word & 0x77777777u, which = ((word >> 1) & 0x44444444u) | 0x32103210u;
            return make_uint2(looked_up(indices & 0xFFFF, which & 0xFFFF), looked_up(indices >> 16, which >> 16));
        }
    }
    // Scale and minimum of group i.
    static __device__ __forceinline__ float2 scale_of(const uint32_t (&s)[MINIMUM ? 4 : 2], int i) {
        if (MINIMUM) return __half22float2(*(const __half2 *)&s[MINIMUM ? i : 0]);
        const __half2 pair = *(const __half2 *)&s[i / 2];
        return make_float2(i % 2 == 0 ? __low2float(pair) : __high2float(pair), 0.0f);
    }

    template <int T> __device__ __forceinline__ void add(float (&total)[T][4], const Columns<T> &x, const Part &p, int part) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (part * 4 + i >= blocks) break;
            // A signed byte plus 128 becomes 1024 + q.
            const uint2 w0 = bytes_of(p.q0, i), w1 = bytes_of(p.q1, i);
            const uint32_t w00 = w0.x ^ 0x80808080u, w01 = w0.y ^ 0x80808080u, w10 = w1.x ^ 0x80808080u, w11 = w1.y ^ 0x80808080u;
            const uint32_t a0[4] = {even_bytes(w00), even_bytes(w10), odd_bytes(w00), odd_bytes(w10)};
            const uint32_t a1[4] = {even_bytes(w01), even_bytes(w11), odd_bytes(w01), odd_bytes(w11)};
            float d[T][4];
            clear(d);
            multiply_eights(d, a0, a1, x, part * PART + 32 * i);
            const float2 first = scale_of(p.s0, i), second = scale_of(p.s1, i);
            const float2 offset = make_float2(fmaf(1152.0f, first.x, first.y), fmaf(1152.0f, second.x, second.y));
            scaled(total, d, make_float2(first.x, second.x), offset, x.sums32, part * 4 + i);
        }
    }
};

using EightBits = Groups<8, false>;
using Nibbles = Groups<4, false>;
using LoweredNibbles = Groups<4, true>;

struct Bf16 {
    static constexpr bool HALVES = true;
    static constexpr int HEAD = 0, BANK_OFFSET = 32;
    struct Part {
        uint4 w0[4], w1[4];
    };
    const __nv_bfloat16 *row0, *row1;
    int lane, groups;

    static __device__ __forceinline__ int row_bytes(int inputs) { return 2 * inputs; }
    static __device__ __forceinline__ int row_scales(int) { return 0; }
    __device__ __forceinline__ Bf16(const uint8_t *row0, const uint8_t *row1, const __half *, const __half *, const uint8_t *, int inputs)
        : row0((const __nv_bfloat16 *)row0), row1((const __nv_bfloat16 *)row1), lane(threadIdx.x % 4), groups(inputs / 32) {}

    __device__ __forceinline__ void load(Part &p, int part) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = min(part * 4 + i, groups - 1) * 32 + 8 * lane;
            p.w0[i] = *(const uint4 *)(row0 + at), p.w1[i] = *(const uint4 *)(row1 + at);
        }
    }

    template <int T> __device__ __forceinline__ void add(float (&total)[T][4], const Columns<T> &x, const Part &p, int part) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (part * 4 + i >= groups) break;
            const uint32_t a0[4] = {p.w0[i].x, p.w1[i].x, p.w0[i].y, p.w1[i].y};
            const uint32_t a1[4] = {p.w0[i].z, p.w1[i].z, p.w0[i].w, p.w1[i].w};
#pragma unroll
            for (int tile = 0; tile < T; tile++) {
                const uint4 h = *(const uint4 *)(x.high[tile] + part * PART + 32 * i), l = *(const uint4 *)(x.low[tile] + part * PART + 32 * i);
                mma_bf16(total[tile], a0, h.x, h.y);
                mma_bf16(total[tile], a1, h.z, h.w);
                mma_bf16(total[tile], a0, l.x, l.y);
                mma_bf16(total[tile], a1, l.z, l.w);
            }
        }
    }
};

// Prepares rows in shared memory.
template <bool HALVES> __device__ __forceinline__ void prepare_here(Activation &x, int rows, int inputs, uint8_t *memory, float *scratch) {
    float *row_scales = (float *)memory, *sums = row_scales + 8;
    uint16_t *high = (uint16_t *)(sums + (HALVES ? 0 : inputs / 16 * 12)), *low = high + (HALVES ? rows * inputs : 0);
    for (int row = 0; row < rows; row++) {
        const float *from = x.x + (size_t)row * inputs;
        if (HALVES) prepare_halves(from, inputs, high + row * inputs, low + row * inputs, row_scales + row);
        else prepare_row(from, inputs, high + row * inputs, sums + row, row_scales + row, scratch);
    }
    __syncthreads();
    x = Activation{x.x, high, low, sums, row_scales};
}

// Shared memory holds the warps' sums and, if TILES is 0, the activation of a row or two, which is then prepared here.
template <typename Weights, int TILES, bool GATED>
__device__ __forceinline__ void few_rows(const Segments &segments, Activation x, int rows, int inputs, int kind, uint8_t *shared) {
    constexpr int T = TILES == 0 ? 1 : TILES;
    float (*partial)[T][OUTPUTS][9] = (float (*)[T][OUTPUTS][9])shared;
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int sharing = GATED ? warps / 2 : warps, block = blockIdx.x;
    const int end0 = segments.of[0].last_block, end1 = segments.of[1].last_block;
    const int which = GATED ? warp / sharing : block < end0 ? 0 : block < end1 ? 1 : 2;
    const Segment segment = which == 0 ? segments.of[0] : which == 1 ? segments.of[1] : segments.of[2];
    const int first = (block - (GATED || which == 0 ? 0 : which == 1 ? end0 : end1)) * OUTPUTS;
    const size_t n0 = min(first + g, segment.outputs - 1), n1 = min(first + g + 8, segment.outputs - 1);
    const int row_bytes = Weights::row_bytes(inputs), row_scales = Weights::row_scales(inputs);
    const uint8_t *rows_of_weight = segment.data + Weights::HEAD;
    const Weights weights(rows_of_weight + n0 * row_bytes, rows_of_weight + n1 * row_bytes, segment.scales + n0 * row_scales,
                          segment.scales + n1 * row_scales, segment.data, inputs);
    const int parts = (inputs + PART - 1) / PART;
    typename Weights::Part present, next;
    if (warp % sharing < parts) weights.load(next, warp % sharing);
    let_next_start();
    wait_for_inputs();
    if (TILES == 0) prepare_here<Weights::HALVES>(x, rows, inputs, shared + sizeof(partial[0]) * warps, (float *)shared);
    const Columns<T> columns(x.high, x.low, x.sums, rows, inputs);
    float total[T][4];
    clear(total);
    for (int part = warp % sharing; part < parts; part += sharing) {
        present = next;
        if (part + sharing < parts) weights.load(next, part + sharing);
        weights.template add<T>(total, columns, present, part);
    }
#pragma unroll
    for (int tile = 0; tile < T; tile++) {
        partial[warp][tile][g][2 * t] = total[tile][0];
        partial[warp][tile][g][2 * t + 1] = total[tile][1];
        partial[warp][tile][g + 8][2 * t] = total[tile][2];
        partial[warp][tile][g + 8][2 * t + 1] = total[tile][3];
    }
    __syncthreads();
    const Segment &to = GATED ? segments.of[0] : segment;
    for (int i = threadIdx.x; i < T * 8 * OUTPUTS; i += blockDim.x) {
        const int output = i % OUTPUTS, row = i / OUTPUTS, n = first + output;
        if (n >= to.outputs || row >= rows) continue;
        float sums[GATED ? 2 : 1];
#pragma unroll
        for (int matrix = 0; matrix < (GATED ? 2 : 1); matrix++) {
            float sum = 0.0f;
            for (int w = 0; w < sharing; w++) sum += partial[matrix * sharing + w][row / 8][output][row % 8];
            const float *bias = GATED && matrix == 1 ? segments.of[1].bias : to.bias;
            sums[matrix] = sum * x.row_scales[row] + (bias ? bias[n] : 0.0f);
        }
        const size_t at = (size_t)row * to.outputs + n;
        float value = sums[0];
        if (GATED) value = gated(kind, value, sums[GATED ? 1 : 0], segments.alpha, segments.limit);
        to.out[at] = to.added ? to.added[at] + value : value;
    }
}

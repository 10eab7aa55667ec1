// Products of a row or two with quantized weight matrices, on the integer tensor cores.
//
// With one row there is little to multiply and much to unpack, so what matters is the number of instructions per
// weight. Weights stay integers. An activation is two signed bytes, x = scale · (256 · high + low), with one scale per
// 32 values. A product of 16 rows of W with 32 columns has room for eight columns of activations; a row needs two of
// them, so four groups of columns are placed side by side, each padded with zeros where the others are. Four products
// thus leave the exact sums of four groups in the four threads that share rows of W, and each thread scales one of
// them. The activation is unknown until the previous kernel has ended, but W is known: by then a block has its rows in
// shared memory.
#pragma once
#include "few_rows.cuh"

// An activation of R rows in shared memory: bytes [R][2][inputs], scale and sum of every 32 values, and sums of every
// 16.
template <int R> struct Bytes {
    const int8_t *bytes;
    const float2 *scale_and_sum;
    const float *sums16;
    int inputs;
};

// D = A · B + D for a 16×32 A of unsigned bytes and a 32×8 B of signed bytes, or both signed.
template <bool SIGNED> __device__ __forceinline__ void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (SIGNED) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// The larger value, or NaN if either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

static constexpr float LARGEST = 127 * 256 + 127;

// Converts rows to that form, and waits for pending copies. The width is a multiple of 32.
template <int R> __device__ __forceinline__ Bytes<R> to_bytes(const float *x, int inputs, uint8_t *memory) {
    float2 *scale_and_sum = (float2 *)memory;
    float *sums16 = (float *)(scale_and_sum + R * (inputs / 32));
    int8_t *bytes = (int8_t *)(sums16 + R * (inputs / 16));
    for (int i = threadIdx.x; i < R * inputs / 4; i += blockDim.x) {
        const int row = R == 1 ? 0 : i / (inputs / 4), at = R == 1 ? i : i % (inputs / 4);
        const float4 v = ((const float4 *)x)[i];
        // Eight neighbouring threads share a group of 32.
        const uint32_t together = 0xFFu << (threadIdx.x % WARP / 8 * 8);
        float most = max_or_nan(max_or_nan(fabsf(v.x), fabsf(v.y)), max_or_nan(fabsf(v.z), fabsf(v.w)));
#pragma unroll
        for (int offset = 1; offset < 8; offset *= 2) most = max_or_nan(most, __shfl_xor_sync(together, most, offset));
        const float inverse = most > 0.0f ? LARGEST / most : 0.0f, scale = most / LARGEST;
        const int a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse);
        const int c = __float2int_rn(v.z * inverse), d = __float2int_rn(v.w * inverse);
        const int ah = (a + 128) >> 8, bh = (b + 128) >> 8, ch = (c + 128) >> 8, dh = (d + 128) >> 8;
        int8_t *to = bytes + (size_t)row * 2 * inputs + 4 * at;
        *(uint32_t *)to = (ah & 0xFF) | (bh & 0xFF) << 8 | (ch & 0xFF) << 16 | (uint32_t)dh << 24;
        *(uint32_t *)(to + inputs) = (a & 0xFF) | (b & 0xFF) << 8 | (c & 0xFF) << 16 | (uint32_t)d << 24;
        int sum = a + b + c + d;
        sum += __shfl_xor_sync(together, sum, 1);
        sum += __shfl_xor_sync(together, sum, 2);
        if (at % 4 == 0) sums16[row * (inputs / 16) + at / 4] = scale * sum;
        sum += __shfl_xor_sync(together, sum, 4);
        if (at % 8 == 0) scale_and_sum[row * (inputs / 32) + at / 8] = make_float2(scale, scale * sum);
    }
    wait_for_copies<0>();
    __syncthreads();
    return Bytes<R>{bytes, scale_and_sum, sums16, inputs};
}

// Sums of four groups of 32 columns: thread t gets those of group t, for its two rows of W.
template <int R, bool SIGNED>
__device__ __forceinline__ void four_groups(float2 (&sums)[R], const uint32_t (&a)[4][4], const Bytes<R> &x, int column) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int row = 0; row < R; row++) {
        const uint2 own = *(const uint2 *)(x.bytes + (size_t)(2 * row + g % 2) * x.inputs + column + 32 * (g / 2) + 8 * t);
        int d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4; i++) mma_bytes<SIGNED>(d, a[i], g / 2 == i ? own.x : 0, g / 2 == i ? own.y : 0);
        sums[row] = make_float2(256 * d[0] + d[1], 256 * d[2] + d[3]);
    }
}

// A thread's sums for its two rows of W, per row of the activation.
template <int R> struct Totals {
    float2 of[R];
};

template <int R, bool FIVE>
__device__ __forceinline__ void add_part(Totals<R> &total, const KBlocks<FIVE> &, const typename KBlocks<FIVE>::Part &p, const Bytes<R> &x, int part) {
    const int half = part % 2, t = threadIdx.x % 4;
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int shift = 4 * (i % 2);
        a[i][0] = (p.q0[i / 2].x >> shift) & 0x0F0F0F0Fu, a[i][1] = (p.q1[i / 2].x >> shift) & 0x0F0F0F0Fu;
        a[i][2] = (p.q0[i / 2].y >> shift) & 0x0F0F0F0Fu, a[i][3] = (p.q1[i / 2].y >> shift) & 0x0F0F0F0Fu;
        if (FIVE) {
            const int bit = 4 * half + i;
            a[i][0] |= ((p.h0.x >> bit) & 0x01010101u) << 4, a[i][1] |= ((p.h1.x >> bit) & 0x01010101u) << 4;
            a[i][2] |= ((p.h0.y >> bit) & 0x01010101u) << 4, a[i][3] |= ((p.h1.y >> bit) & 0x01010101u) << 4;
        }
    }
    float2 sums[R];
    four_groups<R, false>(sums, a, x, part * PART);
    const float2 d0 = __half22float2(*(const __half2 *)&p.head0.x), d1 = __half22float2(*(const __half2 *)&p.head1.x);
    const uint2 s0 = KBlocks<FIVE>::scales_of(p.head0, half), s1 = KBlocks<FIVE>::scales_of(p.head1, half);
    const float2 scale = make_float2(d0.x * byte_of(s0.x, t), d1.x * byte_of(s1.x, t));
    const float2 offset = make_float2(d0.y * byte_of(s0.y, t), d1.y * byte_of(s1.y, t));
#pragma unroll
    for (int row = 0; row < R; row++) {
        const float2 group = x.scale_and_sum[row * (x.inputs / 32) + part * 4 + t];
        total.of[row].x = fmaf(scale.x * group.x, sums[row].x, fmaf(-offset.x, group.y, total.of[row].x));
        total.of[row].y = fmaf(scale.y * group.x, sums[row].y, fmaf(-offset.y, group.y, total.of[row].y));
    }
}

template <int R, int BITS, bool MINIMUM>
__device__ __forceinline__ void add_part(Totals<R> &total, const Groups<BITS, MINIMUM> &weights,
                                         const typename Groups<BITS, MINIMUM>::Part &p, const Bytes<R> &x, int part) {
    const int group = part * 4 + threadIdx.x % 4;
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint2 w0 = weights.bytes_of(p.q0, i), w1 = weights.bytes_of(p.q1, i);
        a[i][0] = w0.x, a[i][1] = w1.x, a[i][2] = w0.y, a[i][3] = w1.y;
    }
    float2 sums[R];
    four_groups<R, true>(sums, a, x, part * PART);
    // There is no activation beyond the last column.
    if (group >= weights.blocks) return;
    // A thread only needs its own group's scale.
    float2 scale, minimum = make_float2(0.0f, 0.0f);
    if (MINIMUM) {
        const float2 first = __half22float2(((const __half2 *)weights.scales0)[group]);
        const float2 second = __half22float2(((const __half2 *)weights.scales1)[group]);
        scale = make_float2(first.x, second.x), minimum = make_float2(first.y, second.y);
    } else {
        scale = make_float2(__half2float(weights.scales0[group]), __half2float(weights.scales1[group]));
    }
#pragma unroll
    for (int row = 0; row < R; row++) {
        const float2 of_x = x.scale_and_sum[row * (x.inputs / 32) + group];
        total.of[row].x = fmaf(scale.x * of_x.x, sums[row].x, fmaf(-minimum.x, of_x.y, total.of[row].x));
        total.of[row].y = fmaf(scale.y * of_x.x, sums[row].y, fmaf(-minimum.y, of_x.y, total.of[row].y));
    }
}

// Groups of 16: a product of 32 columns covers two of them, whose activations are in different columns.
template <int R>
__device__ __forceinline__ void add_part(Totals<R> &total, const SixBits &, const SixBits::Part &p, const Bytes<R> &x, int part) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int quarter = 2 * half + i, nibble = half == 0 ? 0 : 4;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int from = 2 * i + j;
                a[i][2 * j] = ((p.low0[from] >> nibble) & 0x0F0F0F0Fu) | (((p.high0[j] >> (2 * quarter)) & 0x03030303u) << 4);
                a[i][2 * j + 1] = ((p.low1[from] >> nibble) & 0x0F0F0F0Fu) | (((p.high1[j] >> (2 * quarter)) & 0x03030303u) << 4);
            }
        }
        const uint32_t word0 = half == 0 ? p.scales0.x : p.scales0.y, word1 = half == 0 ? p.scales1.x : p.scales1.y;
        const float2 scale = make_float2(p.d0 * (int8_t)(word0 >> (8 * t)), p.d1 * (int8_t)(word1 >> (8 * t)));
#pragma unroll
        for (int row = 0; row < R; row++) {
            const int column = part * PART + 64 * half;
            const uint32_t own = *(const uint32_t *)(x.bytes + (size_t)(2 * row + g % 2) * x.inputs + column + 16 * (g / 2) + 4 * t);
            int d[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < 2; i++) mma_bytes<false>(d, a[i], g / 2 == 2 * i ? own : 0, g / 2 == 2 * i + 1 ? own : 0);
            const float group = x.scale_and_sum[row * (x.inputs / 32) + column / 32 + t / 2].x;
            const float sum16 = x.sums16[row * (x.inputs / 16) + column / 16 + t];
            total.of[row].x = fmaf(scale.x, fmaf(group, (float)(256 * d[0] + d[1]), -32.0f * sum16), total.of[row].x);
            total.of[row].y = fmaf(scale.y, fmaf(group, (float)(256 * d[2] + d[3]), -32.0f * sum16), total.of[row].y);
        }
    }
}

// Stride of a tile's rows of W in shared memory.
template <typename Weights> __device__ __forceinline__ int padded(int row_bytes) {
    return row_bytes + (128 + Weights::BANK_OFFSET - row_bytes % 128) % 128;
}

template <typename Weights, int R, bool GATED>
__device__ __forceinline__ void one_row(const Segments &segments, const float *x, int inputs, int kind, uint8_t *shared) {
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
    const int sharing = GATED ? warps / 2 : warps, block = blockIdx.x;
    const int end0 = segments.of[0].last_block, end1 = segments.of[1].last_block;
    const int which = GATED ? warp / sharing : block < end0 ? 0 : block < end1 ? 1 : 2;
    const Segment segment = which == 0 ? segments.of[0] : which == 1 ? segments.of[1] : segments.of[2];
    const int first = (block - (GATED || which == 0 ? 0 : which == 1 ? end0 : end1)) * OUTPUTS;
    // Load 16 rows of W, or of both matrices, into shared memory while the previous kernel still computes the
    // activation.
    const int row_bytes = Weights::row_bytes(inputs), stride = padded<Weights>(row_bytes), row_scales = Weights::row_scales(inputs);
    uint8_t *tile = shared + (GATED ? which : 0) * OUTPUTS * stride;
    __half *scales = (__half *)(shared + (GATED ? 2 : 1) * OUTPUTS * stride) + (GATED ? which : 0) * OUTPUTS * row_scales;
    float (*partial)[R][OUTPUTS] = (float (*)[R][OUTPUTS])(shared + (GATED ? 2 : 1) * OUTPUTS * (stride + 2 * row_scales));
    const int there = min(OUTPUTS, segment.outputs - first);
    for (int row = warp % sharing; row < there; row += sharing) {
        const uint8_t *from = segment.data + Weights::HEAD + (size_t)(first + row) * row_bytes;
        for (int at = 16 * lane; at < row_bytes; at += 16 * WARP) copy16(tile + row * stride + at, from + at);
    }
    commit_copies();
    for (int i = threadIdx.x % (32 * sharing); i < there * row_scales; i += 32 * sharing) scales[i] = segment.scales[(size_t)first * row_scales + i];
    let_next_start();
    wait_for_inputs();
    const Bytes<R> bytes = to_bytes<R>(x, inputs, (uint8_t *)partial[warps]);
    const int n0 = min(g, there - 1), n1 = min(g + 8, there - 1);
    const Weights weights(tile + n0 * stride, tile + n1 * stride, scales + n0 * row_scales, scales + n1 * row_scales, segment.data, inputs);
    Totals<R> total;
#pragma unroll
    for (int row = 0; row < R; row++) total.of[row] = make_float2(0.0f, 0.0f);
    const int parts = (inputs + PART - 1) / PART;
    for (int part = warp % sharing; part < parts; part += sharing) {
        typename Weights::Part present;
        weights.load(present, part);
        add_part<R>(total, weights, present, bytes, part);
    }
#pragma unroll
    for (int row = 0; row < R; row++) {
        float2 sum = total.of[row];
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
            sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
            sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
        }
        if (lane % 4 == 0) partial[warp][row][g] = sum.x, partial[warp][row][g + 8] = sum.y;
    }
    __syncthreads();
    const Segment &to = GATED ? segments.of[0] : segment;
    if (threadIdx.x >= R * OUTPUTS) return;
    const int output = threadIdx.x % OUTPUTS, row = threadIdx.x / OUTPUTS, n = first + output;
    if (n >= to.outputs) return;
    float sums[GATED ? 2 : 1];
#pragma unroll
    for (int matrix = 0; matrix < (GATED ? 2 : 1); matrix++) {
        float sum = 0.0f;
        for (int w = 0; w < sharing; w++) sum += partial[matrix * sharing + w][row][output];
        const float *bias = GATED && matrix == 1 ? segments.of[1].bias : to.bias;
        sums[matrix] = sum + (bias ? bias[n] : 0.0f);
    }
    const size_t at = (size_t)row * to.outputs + n;
    float value = sums[0];
    if (GATED) value = gated(kind, value, sums[GATED ? 1 : 0], segments.alpha, segments.limit);
    to.out[at] = to.added ? to.added[at] + value : value;
}

// Products of one activation with weight matrices, for a row or two (one_row.cuh) and for more (few_rows.cuh), and
// helpers for products of many rows and for embeddings: weights unpacked to f16, and table rows.
#include "one_row.cuh"

#define KERNEL(name, call)                                                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS_MAX *WARP, 1)                                                    \
        name(const __grid_constant__ Segments segments, const float *x, const uint16_t *high, const uint16_t *low,      \
             const float *sums, const float *row_scales, int rows, int inputs, int kind) {                              \
        extern __shared__ __align__(16) uint8_t shared[];                                                               \
        const Activation activation{x, high, low, sums, row_scales};                                                    \
        call;                                                                                                           \
    }
#define FEW_ROWS(name, Weights, T)                                                                                      \
    KERNEL(product_##name##_##T, (few_rows<Weights, T, false>(segments, activation, rows, inputs, kind, shared)))       \
    KERNEL(gated_##name##_##T, (few_rows<Weights, T, true>(segments, activation, rows, inputs, kind, shared)))
#define ONE_ROW_KERNEL(name, call)                                                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS_MAX *WARP, 2)                                                    \
        name(const __grid_constant__ Segments segments, const float *x, int inputs, int kind) {                         \
        extern __shared__ __align__(16) uint8_t shared[];                                                               \
        call;                                                                                                           \
    }
#define ONE_ROW(name, Weights, R)                                                                                       \
    ONE_ROW_KERNEL(product_##name##_rows##R, (one_row<Weights, R, false>(segments, x, inputs, kind, shared)))           \
    ONE_ROW_KERNEL(gated_##name##_rows##R, (one_row<Weights, R, true>(segments, x, inputs, kind, shared)))
#define QUANTIZED(name, Weights)                                                                                        \
    ONE_ROW(name, Weights, 1)                                                                                           \
    ONE_ROW(name, Weights, 2)                                                                                           \
    FEW_ROWS(name, Weights, 1)                                                                                          \
    FEW_ROWS(name, Weights, 2)                                                                                          \
    FEW_ROWS(name, Weights, 4)

QUANTIZED(q4k, KBlocks<false>)
QUANTIZED(q5k, KBlocks<true>)
QUANTIZED(q6k, SixBits)
QUANTIZED(q80, EightBits)
QUANTIZED(n4, Nibbles)
QUANTIZED(n4m, LoweredNibbles)
FEW_ROWS(bf16, Bf16, 0)
FEW_ROWS(bf16, Bf16, 1)
FEW_ROWS(bf16, Bf16, 2)
FEW_ROWS(bf16, Bf16, 4)

// Matrices of several quantized formats in one launch; `format` is the index in the order above.
__device__ __forceinline__ int format_here(const Segments &segments) {
    const int block = blockIdx.x;
    const int which = block < segments.of[0].last_block ? 0 : block < segments.of[1].last_block ? 1 : 2;
    return which == 0 ? segments.of[0].format : which == 1 ? segments.of[1].format : segments.of[2].format;
}
template <int T>
__device__ __forceinline__ void any_format(const Segments &segments, const Activation &x, int rows, int inputs, int kind, uint8_t *shared) {
    const int format = format_here(segments);
    if (format == 0) few_rows<KBlocks<false>, T, false>(segments, x, rows, inputs, kind, shared);
    else if (format == 1) few_rows<KBlocks<true>, T, false>(segments, x, rows, inputs, kind, shared);
    else if (format == 2) few_rows<SixBits, T, false>(segments, x, rows, inputs, kind, shared);
    else if (format == 3) few_rows<EightBits, T, false>(segments, x, rows, inputs, kind, shared);
    else if (format == 4) few_rows<Nibbles, T, false>(segments, x, rows, inputs, kind, shared);
    else few_rows<LoweredNibbles, T, false>(segments, x, rows, inputs, kind, shared);
}
template <int R> __device__ __forceinline__ void any_format_of_one(const Segments &segments, const float *x, int inputs, uint8_t *shared) {
    const int format = format_here(segments);
    if (format == 0) one_row<KBlocks<false>, R, false>(segments, x, inputs, 0, shared);
    else if (format == 1) one_row<KBlocks<true>, R, false>(segments, x, inputs, 0, shared);
    else if (format == 2) one_row<SixBits, R, false>(segments, x, inputs, 0, shared);
    else if (format == 3) one_row<EightBits, R, false>(segments, x, inputs, 0, shared);
    else if (format == 4) one_row<Nibbles, R, false>(segments, x, inputs, 0, shared);
    else one_row<LoweredNibbles, R, false>(segments, x, inputs, 0, shared);
}
ONE_ROW_KERNEL(product_mixed_rows1, (any_format_of_one<1>(segments, x, inputs, shared)))
ONE_ROW_KERNEL(product_mixed_rows2, (any_format_of_one<2>(segments, x, inputs, shared)))
KERNEL(product_mixed_1, (any_format<1>(segments, activation, rows, inputs, kind, shared)))
KERNEL(product_mixed_2, (any_format<2>(segments, activation, rows, inputs, kind, shared)))
KERNEL(product_mixed_4, (any_format<4>(segments, activation, rows, inputs, kind, shared)))

// Unpacks a row of a matrix to f16, for products of many rows by cuBLAS; four values per thread.
template <typename Format>
__device__ __forceinline__ void unpack(const uint8_t *data, const __half *scales, int width, __half *out) {
    begin();
    const int i = 4 * (blockIdx.y * blockDim.x + threadIdx.x), at = i % Format::BLOCK;
    if (i >= width) return;
    const size_t block = (size_t)blockIdx.x * Format::blocks(width) + i / Format::BLOCK;
    __half2 *to = (__half2 *)(out + (size_t)blockIdx.x * width + i);
    to[0] = __floats2half2_rn(Format::value(data, scales, block, at), Format::value(data, scales, block, at + 1));
    to[1] = __floats2half2_rn(Format::value(data, scales, block, at + 2), Format::value(data, scales, block, at + 3));
}

template <typename Format>
__device__ __forceinline__ void packed_rows(const uint8_t *data, const __half *scales, const uint32_t *ids, int width, float *out) {
    begin();
    const size_t first = (size_t)ids[blockIdx.x] * Format::blocks(width);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        out[(size_t)blockIdx.x * width + i] = Format::value(data, scales, first + i / Format::BLOCK, i % Format::BLOCK);
    }
}

#define UNPACK(name, Format)                                                                                            \
    extern "C" __global__ void unpack_##name(const uint8_t *data, const __half *scales, int width, __half *out) {           \
        unpack<Format>(data, scales, width, out);                                                                       \
    }                                                                                                                   \
    extern "C" __global__ void rows_##name(const uint8_t *data, const __half *scales, const uint32_t *ids, int width,   \
                                           float *out) {                                                                \
        packed_rows<Format>(data, scales, ids, width, out);                                                             \
    }

UNPACK(q4k, Q4K)
UNPACK(q5k, Q5K)
UNPACK(q6k, Q6K)
UNPACK(q80, Q80)
UNPACK(n4, Table16<false>)
UNPACK(n4m, Table16<true>)

// Attention on SIMD-group matrices: prompts, and decodes whose context is split among threadgroups.
//
// A threadgroup holds 8 · R rows of a key head, a row being a token of a tile with one query head, so that all query heads
// of a key head read its keys once. R · C SIMD-groups share the work: each has 8 rows, and one of C slices of the head's
// values. Keys and then values lie in threadgroup memory, a tile at a time, and a tile is fetched into registers while the one
// before it is multiplied. SIMD-groups of the same rows add up their slices' scores, and each computes the online softmax
// (arXiv 1805.02867) and its slice of the sums. Larger heads have fewer rows, and wider rows of keys have shorter tiles, so
// that a threadgroup's memory stays within 32 KiB.
//
// Only documented operations on matrices are used: scores pass through threadgroup memory, since which lane has which value
// of a matrix is not specified. All rows of a tile of keys are read, so none may lie behind the context: 0 · NaN is NaN.

// Values in a row of a SIMD-group's scratch memory: a tile's scores, and a matrix of 8 columns. Rows start in different banks.
constant constexpr uint SCRATCH = 44;

struct FlashShape {
    uint heads, kv_heads, slots;
    uint first_tile;
    uint window;             // 0: none
    uint has_sinks;
    uint splits;             // parts of the keys that this dispatch reads
    uint part_keys;          // keys of each part
    uint longest;            // tokens of the longest tile
    uint first_key, end_key; // keys outside are another dispatch's; both are borders of tiles; an end of 0 is none
    uint parts, first_part;  // parts of a context, and the first that this dispatch writes; with one, the output is final
    float scale, softcap;    // softcap 0: none
};

// Keys of a tile, by the bytes of a row of them.
constexpr uint tile_keys(uint row_bytes) { return row_bytes <= 512 ? 32 : row_bytes <= 1024 ? 16 : 8; }

// A thread's share of a tile, in pieces of 16 bytes.
constexpr uint share_pieces(uint row_bytes) { return (tile_keys(row_bytes) * row_bytes / 16 + THREADS - 1) / THREADS; }
template <typename T, uint D> struct Share {
    uint4 pieces[share_pieces(D * sizeof(T))];
};

// Fetches a thread's share of a tile of keys or values: those outside of low..end are copies of the nearest within.
template <typename T, uint D>
inline void fetch(thread Share<T, D> &share, device const T *from, device const uint *table, uint start, uint low, uint end,
                  uint thread_index) {
    constexpr uint PIECES = D * sizeof(T) / 16;
#pragma unroll
    for (uint j = 0; j < share_pieces(D * sizeof(T)); j++) {
        const uint i = thread_index + j * THREADS, key = i / PIECES, piece = i % PIECES;
        if (key >= tile_keys(D * sizeof(T))) continue;
        const uint at = min(max(start + key, low), end - 1);
        const ulong slot = (ulong)table[at / BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS;
        share.pieces[j] = ((device const uint4 *)(from + slot * D))[piece];
    }
}

// Puts it into the tile.
template <typename T, uint D>
inline void put(threadgroup T *tile, thread const Share<T, D> &share, uint thread_index) {
    constexpr uint STRIDE = D + 16 / sizeof(T), PIECES = D * sizeof(T) / 16;
#pragma unroll
    for (uint j = 0; j < share_pieces(D * sizeof(T)); j++) {
        const uint i = thread_index + j * THREADS, key = i / PIECES, piece = i % PIECES;
        if (key < tile_keys(D * sizeof(T))) ((threadgroup uint4 *)(tile + key * STRIDE))[piece] = share.pieces[j];
    }
}

// The grid is [row tiles · splits, key heads, tiles]; `tiles` says of each tile the first of its tokens in the batch, how many
// there are, how many tokens of its sequence come before, and where its table begins. A tile may also have the new tokens of
// several sequences, if it ends before the first key that they do not share. `shared` has room for the scratch memory
// of all SIMD-groups, and behind it for a tile.
template <typename T, uint D, uint R, uint C>
inline void flash(device const float *q, device const T *keys, device const T *values, device const uint4 *tiles,
                  device const uint *tables, device const float *sinks, constant FlashShape &shape, device float *out,
                  threadgroup float *shared, uint3 group, uint thread_index, uint lane, uint simd) {
    constexpr uint KEYS = tile_keys(D * sizeof(T)), STRIDE = D + 16 / sizeof(T), SLICE = D / C, N = SLICE / 8;
    const uint shared_by = shape.heads / shape.kv_heads, kv_head = group.y, split = group.x % shape.splits;
    const uint4 tile = tiles[shape.first_tile + group.z];
    const uint first_row = group.x / shape.splits * 8 * R, all_rows = tile.y * shared_by;
    if (first_row >= all_rows) return;
    const uint last_row = min(first_row + 8 * R, all_rows) - 1;
    device const uint *table = tables + tile.w;

    // The last row sees the most keys, the first one the oldest of a window.
    const uint first_at = tile.z + first_row / shared_by, last_at = tile.z + last_row / shared_by;
    uint low = shape.window > 0 && first_at + 1 > shape.window ? first_at + 1 - shape.window : 0;
    low = max(low, shape.first_key);
    uint end = shape.end_key > 0 ? min(last_at + 1, shape.end_key) : last_at + 1;
    uint start = low / KEYS * KEYS;
    if (shape.splits > 1) {
        start += split * shape.part_keys;
        low = max(low, start);
        end = min(end, start + shape.part_keys);
    }

    // Four lanes to a row; rows behind the last one are copies of it.
    threadgroup float *scratch = shared + simd * 8 * SCRATCH, *same_rows = shared + simd / C * C * 8 * SCRATCH;
    threadgroup T *key_tile = (threadgroup T *)(shared + R * C * 8 * SCRATCH);
    const uint slice = simd % C * SLICE, line = lane / 4, part = lane % 4;
    const uint row = first_row + simd / C * 8 + line, from_row = min(row, last_row);
    const uint token = tile.x + from_row / shared_by, head = kv_head * shared_by + from_row % shared_by;
    const uint position = tile.z + from_row / shared_by;
    const ulong head_start = (ulong)kv_head * shape.slots * D;

    simdgroup_float8x8 queries[N], sums[N];
    device const float *query = q + ((ulong)token * shape.heads + head) * D + slice;
#pragma unroll
    for (uint i = 0; i < N; i++) {
        if (i % 4 == 0) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint j = part; j < min(32u, SLICE - 8 * i); j += 4) {
                scratch[line * SCRATCH + j] = query[8 * i + j] * shape.scale;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        simdgroup_load(queries[i], scratch + i % 4 * 8, SCRATCH);
    }
#pragma unroll
    for (uint i = 0; i < N; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float peak = UNSEEN, mass = 0.0f;

    Share<T, D> share;
    if (start < end) fetch(share, keys + head_start, table, start, low, end, thread_index);
    for (; start < end; start += KEYS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put(key_tile, share, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        fetch(share, values + head_start, table, start, low, end, thread_index);
        simdgroup_float8x8 products[KEYS / 8];
#pragma unroll
        for (uint k = 0; k < KEYS / 8; k++) products[k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
        for (uint i = 0; i < N; i++) {
#pragma unroll
            for (uint k = 0; k < KEYS / 8; k++) {
                simdgroup_matrix<T, 8, 8> key;
                simdgroup_load(key, key_tile + 8 * k * STRIDE + slice + 8 * i, STRIDE, ulong2(0), true);
                simdgroup_multiply_accumulate(products[k], queries[i], key, products[k]);
            }
        }
#pragma unroll
        for (uint k = 0; k < KEYS / 8; k++) simdgroup_store(products[k], scratch + 8 * k, SCRATCH);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put(key_tile, share, thread_index);
        if (start + KEYS < end) fetch(share, keys + head_start, table, start + KEYS, low, end, thread_index);
        float weights[KEYS / 4], now = peak;
#pragma unroll
        for (uint j = 0; j < KEYS / 4; j++) {
            weights[j] = 0.0f;
#pragma unroll
            for (uint c = 0; c < C; c++) weights[j] += same_rows[(8 * c + line) * SCRATCH + 4 * j + part];
        }
        if (shape.softcap > 0.0f) {
#pragma unroll
            for (uint j = 0; j < KEYS / 4; j++) weights[j] = shape.softcap * precise::tanh(weights[j] / shape.softcap);
        }
        // Most tiles are seen whole by all rows.
        if (start + KEYS > first_at + 1 || (shape.window > 0 && last_at - start >= shape.window)) {
#pragma unroll
            for (uint j = 0; j < KEYS / 4; j++) {
                const uint at = start + 4 * j + part;
                const bool is_seen = at <= position && (shape.window == 0 || position - at < shape.window);
                weights[j] = is_seen ? weights[j] : UNSEEN;
            }
        }
#pragma unroll
        for (uint j = 0; j < KEYS / 4; j++) now = max(now, weights[j]);
        now = max(now, simd_shuffle_xor(now, 1));
        now = max(now, simd_shuffle_xor(now, 2));
        const float factor = exp(peak - now);
        // Where a row has seen no key yet, these are 1, and count for nothing from its first key on.
        float sum = 0.0f;
#pragma unroll
        for (uint j = 0; j < KEYS / 4; j++) {
            weights[j] = exp(weights[j] - now);
            sum += weights[j];
        }
        sum += simd_shuffle_xor(sum, 1);
        sum += simd_shuffle_xor(sum, 2);
        mass = mass * factor + sum;
        const bool is_higher = simd_any(now > peak);
        peak = now;
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint j = 0; j < KEYS / 4; j++) scratch[line * SCRATCH + 4 * j + part] = weights[j];
        if (is_higher) {
            // Scales rows, by a matrix with the factors on its diagonal.
            threadgroup float *diagonal = scratch + 32;
            for (uint j = part; j < 8; j += 4) diagonal[line * SCRATCH + j] = j == line ? factor : 0.0f;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_float8x8 factors;
            simdgroup_load(factors, diagonal, SCRATCH);
#pragma unroll
            for (uint i = 0; i < N; i++) simdgroup_multiply(sums[i], factors, sums[i]);
        } else {
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
#pragma unroll
        for (uint k = 0; k < KEYS / 8; k++) {
            simdgroup_float8x8 weight;
            simdgroup_load(weight, scratch + 8 * k, SCRATCH);
#pragma unroll
            for (uint i = 0; i < N; i++) {
                simdgroup_matrix<T, 8, 8> value;
                simdgroup_load(value, key_tile + 8 * k * STRIDE + slice + 8 * i, STRIDE);
                simdgroup_multiply_accumulate(sums[i], weight, value, sums[i]);
            }
        }
    }

    const ulong part_row = ((ulong)group.z * shape.longest + token - tile.x) * shape.heads + head;
    device float *to = out + ((ulong)token * shape.heads + head) * D;
    float scale = 1.0f;
    if (shape.parts > 1) {
        to = out + (part_row * shape.parts + shape.first_part + split) * (D + 2);
        if (row <= last_row && slice == 0 && part == 0) {
            to[D] = peak;
            to[D + 1] = mass;
        }
    } else if (shape.has_sinks) {
        // A sink has mass but no value.
        const float top = max(peak, sinks[head]), before = exp(peak - top);
        scale = before / (mass * before + exp(sinks[head] - top));
    } else {
        scale = 1.0f / mass;
    }
#pragma unroll
    for (uint i = 0; i < N; i++) {
        if (i % 4 == 0) simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_store(sums[i], scratch + i % 4 * 8, SCRATCH);
        if (i % 4 < 3 && i + 1 < N) continue;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint first = i / 4 * 4;
        if (row <= last_row) {
            for (uint j = part; j < min(32u, SLICE - 8 * first); j += 4) {
                to[slice + 8 * first + j] = scratch[line * SCRATCH + j] * scale;
            }
        }
    }
}

#define FLASH(name, T, D, R, C)                                                                                         \
    kernel void name(device const float *q [[buffer(0)]], device const T *keys [[buffer(1)]],                           \
                     device const T *values [[buffer(2)]], device const uint4 *tiles [[buffer(3)]],                     \
                     device const uint *tables [[buffer(4)]], device const float *sinks [[buffer(5)]],                  \
                     constant FlashShape &shape [[buffer(6)]], device float *out [[buffer(7)]],                         \
                     threadgroup float *shared SHARED_AT(0), uint3 group [[threadgroup_position_in_grid]],              \
                     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],        \
                     uint simd [[simdgroup_index_in_threadgroup]]) {                                                    \
        flash<T, D, R, C>(q, keys, values, tiles, tables, sinks, shape, out, shared, group, thread_index, lane, simd);  \
    }

// For many rows, and for up to 8; heads for which one size serves both have one.
#define FLASH_FOR(type, T)                                                                                              \
    FLASH(flash_##type##_64, T, 64, 4, 1)                                                                               \
    FLASH(flash_##type##_64_few, T, 64, 1, 4)                                                                           \
    FLASH(flash_##type##_80, T, 80, 4, 1)                                                                               \
    FLASH(flash_##type##_80_few, T, 80, 2, 2)                                                                           \
    FLASH(flash_##type##_96, T, 96, 4, 1)                                                                               \
    FLASH(flash_##type##_96_few, T, 96, 1, 4)                                                                           \
    FLASH(flash_##type##_128, T, 128, 4, 1)                                                                             \
    FLASH(flash_##type##_128_few, T, 128, 1, 4)                                                                         \
    FLASH(flash_##type##_192, T, 192, 2, 2)                                                                             \
    FLASH(flash_##type##_192_few, T, 192, 1, 4)                                                                         \
    FLASH(flash_##type##_256, T, 256, 2, 2)                                                                             \
    FLASH(flash_##type##_256_few, T, 256, 1, 4)                                                                         \
    FLASH(flash_##type##_512, T, 512, 1, 4)

FLASH_FOR(f16, half)
FLASH_FOR(f32, float)

struct CombineShape {
    uint heads, kv_heads, head_dim, first_tile;
    uint parts, longest;
    uint has_sinks;
};

// Adds up the parts of a context: a threadgroup of THREADS to each row of a tile with a key head.
kernel void combine_parts(device const float *parts [[buffer(0)]], device const uint4 *tiles [[buffer(1)]],
                          device const float *sinks [[buffer(2)]], constant CombineShape &shape [[buffer(3)]],
                          device float *out [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
    const uint shared_by = shape.heads / shape.kv_heads, row = group.x, kv_head = group.y, width = shape.head_dim + 2;
    const uint4 tile = tiles[shape.first_tile + group.z];
    if (row >= tile.y * shared_by) return;
    const uint token = tile.x + row / shared_by, head = kv_head * shared_by + row % shared_by;
    device const float *first =
        parts + (((ulong)group.z * shape.longest + token - tile.x) * shape.heads + head) * shape.parts * width;
    device const float *peaks = first + shape.head_dim, *masses = peaks + 1;
    float top = shape.has_sinks ? sinks[head] : UNSEEN;
    for (uint i = 0; i < shape.parts; i++) top = max(top, peaks[i * width]);
    float total = shape.has_sinks ? exp(sinks[head] - top) : 0.0f;
    for (uint i = 0; i < shape.parts; i++) total += masses[i * width] * exp(peaks[i * width] - top);
    for (uint d = thread_index; d < shape.head_dim; d += THREADS) {
        float sum = 0.0f;
        for (uint i = 0; i < shape.parts; i++) sum += first[i * width + d] * exp(peaks[i * width] - top);
        out[((ulong)token * shape.heads + head) * shape.head_dim + d] = sum / total;
    }
}

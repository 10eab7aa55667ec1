// Rotating and remembering, and attending over block tables: one dispatch each for all sequences of a step.
//
// Keys and values lie as [kv_heads, slots, head_dim]; token i of a sequence has slot table[i / 16] · 16 + i % 16.

constant constexpr uint BLOCK_TOKENS = 16;
// The slot of a row that only fills up a batch: it is not remembered.
constant constexpr uint NO_SLOT = 0xFFFFFFFFu;
// The keys that a threadgroup of `attend` looks at at once, and the query rows that it holds.
constant constexpr uint TILE = 32, ROWS = 8;
// The score of a key that a row does not see, and the peak of a row that has seen none. It is finite, as infinities and NaN
// are undefined where fast math is on.
constant constexpr float UNSEEN = -1e30f;

struct StoreShape {
    uint heads, kv_heads, head_dim, half_dim, is_interleaved, rotates, tokens;
    uint slots;
};

// Value i of a token's heads, rotated by the token's sines and cosines.
inline float rotated(device const float *from, device const float *cosines, device const float *sines,
                     constant StoreShape &shape, uint token, uint i) {
    const uint at = i % shape.head_dim, head = i - at, half_dim = shape.half_dim;
    if (!shape.rotates || at >= 2 * half_dim) return from[i];
    const uint pair = shape.is_interleaved ? at / 2 : at % half_dim;
    const bool is_second = shape.is_interleaved ? at % 2 == 1 : at >= half_dim;
    const float c = cosines[token * half_dim + pair], s = sines[token * half_dim + pair];
    const float a = from[shape.is_interleaved ? head + 2 * pair : head + pair];
    const float b = from[shape.is_interleaved ? head + 2 * pair + 1 : head + half_dim + pair];
    return is_second ? a * s + b * c : a * c - b * s;
}

// Rotates queries and keys, and puts keys and values into their slots: a thread for each value of a token's q, k and v.
template <typename T>
inline void store(device const float *q, device const float *k, device const float *v, device const float *cosines,
                  device const float *sines, device const uint *slots, constant StoreShape &shape, device float *q_out,
                  device T *keys, device T *values, uint2 at) {
    const uint queries = shape.heads * shape.head_dim, width = shape.kv_heads * shape.head_dim, token = at.y;
    if (token >= shape.tokens) return;
    if (at.x < queries) {
        q_out[token * queries + at.x] = rotated(q + token * queries, cosines, sines, shape, token, at.x);
        return;
    }
    const uint i = at.x - queries, place = i % width;
    if (i >= 2 * width || slots[token] == NO_SLOT) return;
    const ulong to = ((ulong)(place / shape.head_dim) * shape.slots + slots[token]) * shape.head_dim + place % shape.head_dim;
    if (i < width) keys[to] = (T)rotated(k + token * width, cosines, sines, shape, token, place);
    else values[to] = (T)v[token * width + place];
}

kernel void store_f16(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                      device const float *v [[buffer(2)]], device const float *cosines [[buffer(3)]],
                      device const float *sines [[buffer(4)]], device const uint *slots [[buffer(5)]],
                      constant StoreShape &shape [[buffer(6)]], device float *q_out [[buffer(7)]],
                      device half *keys [[buffer(8)]], device half *values [[buffer(9)]],
                      uint2 at [[thread_position_in_grid]]) {
    store(q, k, v, cosines, sines, slots, shape, q_out, keys, values, at);
}
kernel void store_f32(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                      device const float *v [[buffer(2)]], device const float *cosines [[buffer(3)]],
                      device const float *sines [[buffer(4)]], device const uint *slots [[buffer(5)]],
                      constant StoreShape &shape [[buffer(6)]], device float *q_out [[buffer(7)]],
                      device float *keys [[buffer(8)]], device float *values [[buffer(9)]],
                      uint2 at [[thread_position_in_grid]]) {
    store(q, k, v, cosines, sines, slots, shape, q_out, keys, values, at);
}

struct AttendShape {
    uint heads, kv_heads, head_dim, slots, tiles;
    uint window;             // 0: none
    uint has_sinks;
    float scale, softcap;    // softcap 0: none
};

// A threadgroup takes up to ROWS rows, a row being a token of a tile with one query head of a key head, and looks at the
// keys in tiles: scores, then their online softmax (arXiv 1805.02867), then the sum of values. `tiles` says of each tile the
// first of its tokens in the batch, how many there are, how many tokens of its sequence come before, and where its table
// begins. The grid is [rows of a key head / ROWS, key heads, tiles]; `shared` has room for ROWS queries and as many sums.
template <typename T>
inline void attend(device const float *q, device const T *keys, device const T *values, device const uint4 *tiles,
                   device const uint *tables, device const float *sinks, constant AttendShape &shape, device float *out,
                   threadgroup float *shared, threadgroup float (&scores)[ROWS][TILE], threadgroup float *peak,
                   threadgroup float *mass, threadgroup float *factor, uint3 group, uint thread_index, uint lane, uint simd) {
    const uint head_dim = shape.head_dim, shared_by = shape.heads / shape.kv_heads, kv_head = group.y;
    const uint4 tile = tiles[group.z];
    const uint first_row = group.x * ROWS, all_rows = tile.y * shared_by;
    if (first_row >= all_rows) return;
    const uint rows = min(ROWS, all_rows - first_row);
    device const uint *table = tables + tile.w;
    threadgroup float *queries = shared, *sums = shared + ROWS * head_dim;

    for (uint i = thread_index; i < ROWS * head_dim; i += THREADS) {
        const uint row = first_row + min(i / head_dim, rows - 1), token = tile.x + row / shared_by;
        const uint head = kv_head * shared_by + row % shared_by;
        queries[i] = q[((ulong)token * shape.heads + head) * head_dim + i % head_dim] * shape.scale;
        sums[i] = 0.0f;
    }
    if (thread_index < ROWS) {
        peak[thread_index] = UNSEEN;
        mass[thread_index] = 0.0f;
    }
    // The last row sees the most keys, the first one the oldest of a window.
    const uint end = tile.z + (first_row + rows - 1) / shared_by + 1;
    const uint first_at = tile.z + first_row / shared_by;
    const uint low = shape.window > 0 && first_at + 1 > shape.window ? first_at + 1 - shape.window : 0;
    const ulong head_start = (ulong)kv_head * shape.slots * head_dim;

    for (uint start = low / TILE * TILE; start < end; start += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // A key to a group of four threads, which share its values; then the next rows.
        const uint key = thread_index / 4, part = thread_index % 4, at = start + key, within = min(at, end - 1);
        const ulong slot = (ulong)table[within / BLOCK_TOKENS] * BLOCK_TOKENS + within % BLOCK_TOKENS;
        device const T *from = keys + head_start + slot * head_dim;
        float dots[ROWS];
        for (uint row = 0; row < ROWS; row++) dots[row] = 0.0f;
        for (uint d = 4 * part; d < head_dim; d += 16) {
            for (uint i = d; i < min(d + 4, head_dim); i++) {
                const float value = (float)from[i];
                for (uint row = 0; row < ROWS; row++) dots[row] += queries[row * head_dim + i] * value;
            }
        }
        for (uint row = 0; row < ROWS; row++) {
            float dot = dots[row];
            dot += simd_shuffle_xor(dot, 1);
            dot += simd_shuffle_xor(dot, 2);
            if (part != 0) continue;
            if (shape.softcap > 0.0f) dot = shape.softcap * precise::tanh(dot / shape.softcap);
            const uint position = tile.z + (first_row + row) / shared_by;
            const bool is_seen = row < rows && at <= position && (shape.window == 0 || position - at < shape.window);
            scores[row][key] = is_seen ? dot : UNSEEN;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint row = simd; row < ROWS; row += THREADS / SIMD) {
            const float score = scores[row][lane], before = peak[row], now = max(before, simd_max(score));
            // Where a row has seen no key yet, these are 1, and count for nothing from its first key on.
            const float weight = exp(score - now), sum = simd_sum(weight);
            scores[row][lane] = weight;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            if (lane == 0) {
                factor[row] = exp(before - now);
                mass[row] = mass[row] * factor[row] + sum;
                peak[row] = now;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint count = min(TILE, end - start);
        for (uint d = thread_index; d < head_dim; d += THREADS) {
            float acc[ROWS];
            for (uint row = 0; row < ROWS; row++) acc[row] = sums[row * head_dim + d] * factor[row];
            for (uint i = 0; i < count; i++) {
                const uint token = start + i;
                const ulong from_slot = (ulong)table[token / BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS;
                const float value = (float)values[head_start + from_slot * head_dim + d];
                for (uint row = 0; row < ROWS; row++) acc[row] += scores[row][i] * value;
            }
            for (uint row = 0; row < ROWS; row++) sums[row * head_dim + d] = acc[row];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < rows * head_dim; i += THREADS) {
        const uint row = i / head_dim, at = first_row + row, token = tile.x + at / shared_by;
        const uint head = kv_head * shared_by + at % shared_by;
        float value = sums[i], total = mass[row];
        if (shape.has_sinks) {
            // A sink has mass but no value.
            const float top = max(peak[row], sinks[head]), before = exp(peak[row] - top);
            total = total * before + exp(sinks[head] - top);
            value *= before;
        }
        out[((ulong)token * shape.heads + head) * head_dim + i % head_dim] = value / total;
    }
}

#define ATTEND(name, T)                                                                                                 \
    kernel void name(device const float *q [[buffer(0)]], device const T *keys [[buffer(1)]],                           \
                     device const T *values [[buffer(2)]], device const uint4 *tiles [[buffer(3)]],                     \
                     device const uint *tables [[buffer(4)]], device const float *sinks [[buffer(5)]],                  \
                     constant AttendShape &shape [[buffer(6)]], device float *out [[buffer(7)]],                        \
                     threadgroup float *shared SHARED_AT(0), uint3 group [[threadgroup_position_in_grid]],              \
                     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],        \
                     uint simd [[simdgroup_index_in_threadgroup]]) {                                                    \
        SHARED float scores[ROWS][TILE], peak[ROWS], mass[ROWS], factor[ROWS];                                          \
        attend(q, keys, values, tiles, tables, sinks, shape, out, shared, scores, peak, mass, factor, group,            \
               thread_index, lane, simd);                                                                               \
    }

ATTEND(attend_f16, half)
ATTEND(attend_f32, float)

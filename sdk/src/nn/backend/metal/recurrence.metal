// Recurrent layers, all sequences of a step in one dispatch: short convolutions, and matrices that take in tokens one by one.
//
// A sequence's state lies in a slot of its layer's memory. Five words say of each sequence where its rows begin, how many they
// are, from which slot it goes on, and where in the tables the states that are kept begin and how many they are: pairs of the
// first row that is not yet in a state, and its slot. No slot that a sequence reads is written by another.

constant constexpr uint NO_SLOT = 0xFFFFFFFFu;

struct Sequence {
    uint start, rows, read, kept, kept_count;
};

inline Sequence sequence_at(device const uint *sequences, uint index) {
    device const uint *words = sequences + 5 * index;
    Sequence sequence;
    sequence.start = words[0];
    sequence.rows = words[1];
    sequence.read = words[2];
    sequence.kept = words[3];
    sequence.kept_count = words[4];
    return sequence;
}

struct ConvShape {
    uint tokens, sequences, channels;
    uint before;                      // inputs before a token's own that it reads
    uint keeps;                       // every sequence has one row, after which its state is kept
    uint has_bias, activates, activation;
};

// Taps of a convolution at most.
constant constexpr uint TAPS = 8;

// Inputs of a channel before a sequence's rows, the oldest first.
struct Channel {
    float old[TAPS - 1];
};

inline Channel channel_of(Sequence sequence, device const float *states, uint channels, uint before) {
    Channel channel;
    UNROLLED (uint i = 0; i < TAPS - 1; i++) {
        const bool is_there = i < before && sequence.read != NO_SLOT;
        channel.old[i] = is_there ? states[((ulong)sequence.read * before + i) * channels] : 0.0f;
    }
    return channel;
}

// The input `back` rows before row `offset` of the sequence; `x` and `states` begin at the channel.
inline float input_before(Channel channel, Sequence sequence, device const float *x, uint channels, uint before, uint offset,
                          uint back) {
    if (offset >= back) return x[((ulong)sequence.start + offset - back) * channels];
    float found = 0.0f;
    UNROLLED (uint i = 0; i < TAPS - 1; i++) found = i == before + offset - back ? channel.old[i] : found;
    return found;
}

inline void keep(Channel channel, Sequence sequence, device const uint *tables, device const float *x, device float *states,
                 uint channels, uint before) {
    for (uint one = 0; one < sequence.kept_count; one++) {
        const uint end = tables[sequence.kept + 2 * one], slot = tables[sequence.kept + 2 * one + 1];
        for (uint i = 0; i < before; i++) {
            states[((ulong)slot * before + i) * channels] =
                input_before(channel, sequence, x, channels, before, end - sequence.start, before - i);
        }
    }
}

// A channel of a token to a thread; the grid is [channels, tokens]. `taps` is [before + 1, channels], the oldest first.
kernel void short_conv(device const float *x [[buffer(0)]], device const uint *sequence_of [[buffer(1)]],
                       device const uint *sequences [[buffer(2)]], device const uint *tables [[buffer(3)]],
                       device const float *taps [[buffer(4)]], device const float *bias [[buffer(5)]],
                       constant ConvShape &shape [[buffer(6)]], device float *states [[buffer(7)]],
                       device float *out [[buffer(8)]], uint2 at [[thread_position_in_grid]]) {
    const uint channels = shape.channels, before = shape.before;
    if (at.x >= channels) return;
    const Sequence sequence = sequence_at(sequences, sequence_of[at.y]);
    const Channel channel = channel_of(sequence, states + at.x, channels, before);
    float sum = shape.has_bias ? bias[at.x] : 0.0f;
    for (uint tap = 0; tap <= before; tap++) {
        const uint offset = at.y - sequence.start;
        const float input = input_before(channel, sequence, x + at.x, channels, before, offset, before - tap);
        sum += input * taps[(ulong)tap * channels + at.x];
    }
    out[(ulong)at.y * channels + at.x] = shape.activates ? activated(shape.activation, sum) : sum;
    if (shape.keeps) keep(channel, sequence, tables, x + at.x, states + at.x, channels, before);
}

// Keeps the states of longer sequences; the grid is [channels, sequences].
kernel void keep_inputs(device const float *x [[buffer(0)]], device const uint *sequences [[buffer(1)]],
                        device const uint *tables [[buffer(2)]], constant ConvShape &shape [[buffer(3)]],
                        device float *states [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
    if (at.x >= shape.channels) return;
    const Sequence sequence = sequence_at(sequences, at.y);
    const Channel channel = channel_of(sequence, states + at.x, shape.channels, shape.before);
    keep(channel, sequence, tables, x + at.x, states + at.x, shape.channels, shape.before);
}

struct RecurrenceShape {
    uint heads, key_heads, interleaved_heads, key_dim, value_dim;
    uint corrects, has_skip;
};

// Lanes that share a column of a matrix, columns of a threadgroup, its threads, and tokens that it fetches at once.
constant constexpr uint COLUMN_LANES = 4, COLUMNS = 32, RECURRENCE_THREADS = COLUMN_LANES * COLUMNS, TOKENS = 8;

// The rows that a lane has of its column.
template <uint ROWS> struct Column {
    float v[ROWS];
};

template <uint ROWS>
inline void keep_column(Column<ROWS> column, device float *to, uint lane, bool is_there, uint key_dim, uint value_dim) {
    UNROLLED (uint i = 0; i < ROWS; i++) {
        const uint row = i * COLUMN_LANES + lane;
        if (is_there && row < key_dim) to[(ulong)row * value_dim] = column.v[i];
    }
}

// Some columns of a head of a sequence; the grid is [columns, heads, sequences]. Matrices are [heads, key_dim, value_dim]; `shared`
// has keys and queries of TOKENS tokens. For each token the matrix S fades, takes in kᵀ · u, and is read by q · S, where u is
// β · v, or with the delta rule β · (v − k · S).
template <uint ROWS>
inline void recurrence(device const float *q, device const float *k, device const float *v, device const float *decay,
                       device const float *beta, device const float *skip, device const uint *sequences,
                       device const uint *tables, constant RecurrenceShape &shape, device float *states, device float *out,
                       threadgroup float *keys, threadgroup float *queries, threadgroup float *values,
                       threadgroup float *fades, threadgroup float *betas, uint3 group, uint thread_index) {
    constexpr uint KEYS = ROWS * COLUMN_LANES;
    const uint heads = shape.heads, key_dim = shape.key_dim, value_dim = shape.value_dim, head = group.y;
    const uint lane = thread_index % COLUMN_LANES, first = group.x * COLUMNS, at = first + thread_index / COLUMN_LANES;
    const uint key_head = shape.interleaved_heads ? head % shape.key_heads : head / (heads / shape.key_heads);
    const Sequence sequence = sequence_at(sequences, group.z);
    const ulong state_size = (ulong)heads * key_dim * value_dim, matrix = (ulong)head * key_dim * value_dim + at;
    const bool is_there = at < value_dim;
    const float past = shape.has_skip ? skip[head] : 0.0f;
    Column<ROWS> column;
    UNROLLED (uint i = 0; i < ROWS; i++) {
        const uint row = i * COLUMN_LANES + lane;
        const bool is_read = is_there && row < key_dim && sequence.read != NO_SLOT;
        column.v[i] = is_read ? states[sequence.read * state_size + matrix + (ulong)row * value_dim] : 0.0f;
    }
    uint kept = 0;
    for (uint done = 0; done < sequence.rows; done += TOKENS) {
        const uint count = min(TOKENS, sequence.rows - done);
        const ulong begun = sequence.start + done;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < count * KEYS; i += RECURRENCE_THREADS) {
            const uint row = i % KEYS;
            const ulong from = ((begun + i / KEYS) * shape.key_heads + key_head) * key_dim + row;
            keys[i] = row < key_dim ? k[from] : 0.0f;
            queries[i] = row < key_dim ? q[from] : 0.0f;
        }
        for (uint i = thread_index; i < count * COLUMNS; i += RECURRENCE_THREADS) {
            const uint from = first + i % COLUMNS;
            values[i] = from < value_dim ? v[((begun + i / COLUMNS) * heads + head) * value_dim + from] : 0.0f;
        }
        if (thread_index < count) {
            fades[thread_index] = exp(decay[(begun + thread_index) * heads + head]);
            betas[thread_index] = beta[(begun + thread_index) * heads + head];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint token = 0; token < count; token++) {
            while (kept < sequence.kept_count && tables[sequence.kept + 2 * kept] <= begun + token) {
                device float *to = states + tables[sequence.kept + 2 * kept + 1] * state_size + matrix;
                keep_column<ROWS>(column, to, lane, is_there, key_dim, value_dim);
                kept++;
            }
            threadgroup const float *key = keys + token * KEYS + lane, *query = queries + token * KEYS + lane;
            const float value = values[token * COLUMNS + thread_index / COLUMN_LANES], fade = fades[token];
            float write = value;
            if (shape.corrects) {
                float known = 0.0f;
                UNROLLED (uint i = 0; i < ROWS; i++) known += column.v[i] * key[i * COLUMN_LANES];
                known += simd_shuffle_xor(known, 1);
                known += simd_shuffle_xor(known, 2);
                write -= fade * known;
            }
            write *= betas[token];
            float read = 0.0f;
            UNROLLED (uint i = 0; i < ROWS; i++) {
                column.v[i] = column.v[i] * fade + write * key[i * COLUMN_LANES];
                read += column.v[i] * query[i * COLUMN_LANES];
            }
            read += simd_shuffle_xor(read, 1);
            read += simd_shuffle_xor(read, 2);
            if (lane == 0 && is_there) out[((begun + token) * heads + head) * value_dim + at] = read + past * value;
        }
    }
    for (; kept < sequence.kept_count; kept++) {
        device float *to = states + tables[sequence.kept + 2 * kept + 1] * state_size + matrix;
        keep_column<ROWS>(column, to, lane, is_there, key_dim, value_dim);
    }
}

#define RECURRENCE(rows)                                                                                                \
    kernel void recurrence_##rows(                                                                                      \
        device const float *q [[buffer(0)]], device const float *k [[buffer(1)]], device const float *v [[buffer(2)]],  \
        device const float *decay [[buffer(3)]], device const float *beta [[buffer(4)]],                                \
        device const float *skip [[buffer(5)]], device const uint *sequences [[buffer(6)]],                             \
        device const uint *tables [[buffer(7)]], constant RecurrenceShape &shape [[buffer(8)]],                         \
        device float *states [[buffer(9)]], device float *out [[buffer(10)]],                                           \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {              \
        SHARED float keys[TOKENS * rows * COLUMN_LANES], queries[TOKENS * rows * COLUMN_LANES];                         \
        SHARED float values[TOKENS * COLUMNS], fades[TOKENS], betas[TOKENS];                                            \
        recurrence<rows>(q, k, v, decay, beta, skip, sequences, tables, shape, states, out, keys, queries, values,      \
                         fades, betas, group, thread_index);                                                            \
    }

RECURRENCE(4)
RECURRENCE(8)
RECURRENCE(16)
RECURRENCE(32)
RECURRENCE(64)

// Recurrent layers, all sequences of a step in one launch: short convolutions, and state matrices that absorb tokens
// one by one.
//
// A sequence's state is a slot of its layer's memory. Each sequence has five words: the start and number of its rows,
// the slot that it continues from, and the start and number of the states to save in the tables: pairs of the first row
// that is not part of the state, and the slot. Padding rows have no slots. No slot that a sequence reads is written by
// another.
#include "common.cuh"

static constexpr uint32_t NO_SLOT = 0xFFFFFFFFu;

struct Sequence {
    uint32_t start, rows, read, saves, save_count;
};

// Maximum number of a convolution's taps.
static constexpr int TAPS = 8;

// One channel of a sequence: the inputs before its rows, and those of its rows.
struct Channel {
    const Sequence &sequence;
    const float *x;
    int channels, before;
    float old[TAPS - 1];

    __device__ __forceinline__ Channel(const Sequence &sequence, const float *x, const float *states, int channels, int before)
        : sequence(sequence), x(x), channels(channels), before(before) {
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) {
            const bool is_there = i < before && sequence.read != NO_SLOT;
            old[i] = is_there ? states[((size_t)sequence.read * before + i) * channels] : 0.0f;
        }
    }

    // The input `back` rows before row `offset` of the sequence.
    __device__ __forceinline__ float at(int offset, int back) const {
        if (offset >= back) return x[((size_t)sequence.start + offset - back) * channels];
        float found = 0.0f;
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) found = i == before + offset - back ? old[i] : found;
        return found;
    }

    __device__ __forceinline__ void keep(const uint32_t *tables, float *states) const {
        for (uint32_t one = 0; one < sequence.save_count; one++) {
            const uint32_t end = tables[sequence.saves + 2 * one], slot = tables[sequence.saves + 2 * one + 1];
            for (int i = 0; i < before; i++)
                states[((size_t)slot * before + i) * channels] = at(end - sequence.start, before - i);
        }
    }
};

// One channel of a token per thread; the grid is [channels / threads, tokens]. `taps` is [before + 1, channels], oldest
// first. States are saved here if each sequence has one row, because a thread then reads everything that it overwrites.
extern "C" __global__ void short_conv(const float *x, float *states, const uint32_t *sequence_of, const Sequence *sequences,
                                      const uint32_t *tables, const float *taps, const float *bias, int kind, int channels,
                                      int before, int keeps, float *out) {
    begin();
    const int token = blockIdx.y, channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const Sequence sequence = sequences[sequence_of[token]];
    const Channel inputs(sequence, x + channel, states + channel, channels, before);
    float sum = bias ? bias[channel] : 0.0f;
    for (int tap = 0; tap <= before; tap++)
        sum += inputs.at(token - sequence.start, before - tap) * taps[(size_t)tap * channels + channel];
    out[(size_t)token * channels + channel] = kind < 0 ? sum : activation(kind, sum);
    if (keeps) inputs.keep(tables, states + channel);
}

// Saves the states of longer sequences; the grid is [channels / threads, sequences].
extern "C" __global__ void keep_inputs(const float *x, float *states, const Sequence *sequences, const uint32_t *tables,
                                       int channels, int before) {
    begin();
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const Sequence sequence = sequences[blockIdx.y];
    Channel(sequence, x + channel, states + channel, channels, before).keep(tables, states + channel);
}

// Lanes that share a column of a matrix, columns per block, and tokens fetched at once.
static constexpr int LANES = 4, COLUMNS = 32, TOKENS = 8;

// What has factors of its own by which it fades: a head, its rows, its columns, or every element.
enum Fades { HEAD, ROWS_OF_HEAD, COLUMNS_OF_HEAD, ELEMENTS };

// The logarithms of factors are [tokens, heads], [tokens, heads, key_dim] or [tokens, heads, value_dim]; those of elements
// are the latter times `rates`, [heads, key_dim, value_dim]. `from` and `into` are shaped like keys. Scales of what is
// written are as wide as heads or as values, and so are the multiples of values that are added to the output.
struct Inputs {
    const float *q, *k, *v, *decay, *rates, *beta, *skip, *from, *into;
    int corrects, heads, key_heads, interleaved_heads, key_dim, value_dim, beta_is_wide, skip_is_wide;
};

__device__ __forceinline__ float over_lanes(float4 sums) {
    float sum = (sums.x + sums.y) + (sums.z + sums.w);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
}

// The product of a lane's rows of a column with a key, over all lanes.
template <int ROWS> __device__ __forceinline__ float product(const float (&state)[ROWS], const float4 *key, int lane) {
    float4 sums{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        const float4 k = key[i / 4 * LANES + lane];
        sums.x += state[i] * k.x, sums.y += state[i + 1] * k.y;
        sums.z += state[i + 2] * k.z, sums.w += state[i + 3] * k.w;
    }
    return over_lanes(sums);
}

// Some columns of one head of a sequence; the grid is [columns / COLUMNS, heads, sequences]. Matrices are [heads,
// key_dim, value_dim], and a lane has ROWS of the rows: four, then the four after those of the other lanes, and so on.
// `CHANGES` adds a change of rank one: `into` times the product of `from` with the state before it faded.
template <int ROWS, Fades FADES, bool CHANGES>
__device__ __forceinline__ void recurrence(const Inputs &x, float *states, const Sequence *sequences, const uint32_t *tables, float *out) {
    constexpr int KEYS = ROWS * LANES, FADED = FADES == ROWS_OF_HEAD ? TOKENS : 1, CHANGED = CHANGES ? TOKENS : 1;
    __shared__ float4 keys[TOKENS][KEYS / 4], queries[TOKENS][KEYS / 4];
    __shared__ float4 row_fades[FADED][KEYS / 4], froms[CHANGED][KEYS / 4], intos[CHANGED][KEYS / 4];
    __shared__ float values[TOKENS][COLUMNS], scales[TOKENS][COLUMNS], column_fades[TOKENS][COLUMNS], fades[TOKENS];
    begin();
    const int thread = threadIdx.x, lane = thread % LANES, head = blockIdx.y, first = blockIdx.x * COLUMNS;
    const int heads = x.heads, key_heads = x.key_heads, key_dim = x.key_dim, value_dim = x.value_dim;
    const int column = first + thread / LANES, key_head = x.interleaved_heads ? head % key_heads : head / (heads / key_heads);
    const Sequence sequence = sequences[blockIdx.z];
    const size_t state_size = (size_t)heads * key_dim * value_dim, matrix = (size_t)head * key_dim * value_dim + column;
    float past = 0.0f;
    if (x.skip && column < value_dim) past = x.skip_is_wide ? x.skip[(size_t)head * value_dim + column] : x.skip[head];
    float state[ROWS], rates[FADES == ELEMENTS ? ROWS : 1];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i / 4 * 4 * LANES + 4 * lane + i % 4;
        const bool is_there = row < key_dim && column < value_dim;
        state[i] = is_there && sequence.read != NO_SLOT ? states[sequence.read * state_size + matrix + (size_t)row * value_dim] : 0.0f;
        if constexpr (FADES == ELEMENTS) rates[i] = is_there ? x.rates[matrix + (size_t)row * value_dim] : 0.0f;
    }
    // The next state to save, and the row before which it is saved.
    uint32_t save = 0, end = sequence.save_count > 0 ? tables[sequence.saves] : NO_SLOT;
    const auto keep = [&](uint32_t row) {
        while (end <= row) {
            float *to = states + tables[sequence.saves + 2 * save + 1] * state_size + matrix;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int at = i / 4 * 4 * LANES + 4 * lane + i % 4;
                if (at < key_dim && column < value_dim) to[(size_t)at * value_dim] = state[i];
            }
            save++;
            end = save < sequence.save_count ? tables[sequence.saves + 2 * save] : NO_SLOT;
        }
    };
    for (uint32_t done = 0; done < sequence.rows; done += TOKENS) {
        const int count = min(TOKENS, sequence.rows - done);
        const size_t begun = sequence.start + done;
        __syncthreads();
        for (int i = thread; i < count * KEYS; i += blockDim.x) {
            const int token = i / KEYS, at = i % KEYS;
            const size_t from = ((begun + token) * key_heads + key_head) * key_dim + at;
            ((float *)keys[token])[at] = at < key_dim ? x.k[from] : 0.0f;
            ((float *)queries[token])[at] = at < key_dim ? x.q[from] : 0.0f;
            if constexpr (CHANGES) {
                ((float *)froms[token])[at] = at < key_dim ? x.from[from] : 0.0f;
                ((float *)intos[token])[at] = at < key_dim ? x.into[from] : 0.0f;
            }
            if constexpr (FADES == ROWS_OF_HEAD) {
                const size_t row = ((begun + token) * heads + head) * key_dim + at;
                ((float *)row_fades[token])[at] = at < key_dim ? expf(x.decay[row]) : 0.0f;
            }
        }
        for (int i = thread; i < count * COLUMNS; i += blockDim.x) {
            const int token = i / COLUMNS, at = first + i % COLUMNS;
            const size_t row = (begun + token) * heads + head, from = row * value_dim + at;
            const bool is_there = at < value_dim;
            values[token][i % COLUMNS] = is_there ? x.v[from] : 0.0f;
            float scale = 1.0f;
            if (x.beta && is_there) scale = x.beta_is_wide ? x.beta[from] : x.beta[row];
            scales[token][i % COLUMNS] = scale;
            if constexpr (FADES == COLUMNS_OF_HEAD) column_fades[token][i % COLUMNS] = is_there ? expf(x.decay[from]) : 0.0f;
            if constexpr (FADES == ELEMENTS) column_fades[token][i % COLUMNS] = is_there ? x.decay[from] : 0.0f;
        }
        if constexpr (FADES == HEAD) {
            if (thread < count) fades[thread] = expf(x.decay[(begun + thread) * heads + head]);
        }
        __syncthreads();
        for (int token = 0; token < count; token++) {
            keep((uint32_t)begun + token);
            const float value = values[token][thread / LANES], in_column = column_fades[token][thread / LANES];
            const float fade = FADES == HEAD ? fades[token] : FADES == COLUMNS_OF_HEAD ? in_column : 1.0f;
            float write = value, change = 0.0f;
            if constexpr (CHANGES) change = product<ROWS>(state, froms[token], lane);
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                if constexpr (FADES == ROWS_OF_HEAD) {
                    const float4 row = row_fades[token][i / 4 * LANES + lane];
                    state[i] *= row.x, state[i + 1] *= row.y, state[i + 2] *= row.z, state[i + 3] *= row.w;
                }
                if constexpr (FADES == ELEMENTS) {
#pragma unroll
                    for (int j = i; j < i + 4; j++) state[j] *= expf(in_column * rates[j]);
                }
            }
            if (x.corrects) write -= fade * product<ROWS>(state, keys[token], lane);
            write *= scales[token][thread / LANES];
            float4 reads{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                const float4 key = keys[token][i / 4 * LANES + lane], query = queries[token][i / 4 * LANES + lane];
                state[i] = state[i] * fade + write * key.x;
                state[i + 1] = state[i + 1] * fade + write * key.y;
                state[i + 2] = state[i + 2] * fade + write * key.z;
                state[i + 3] = state[i + 3] * fade + write * key.w;
                if constexpr (CHANGES) {
                    const float4 into = intos[token][i / 4 * LANES + lane];
                    state[i] += change * into.x, state[i + 1] += change * into.y;
                    state[i + 2] += change * into.z, state[i + 3] += change * into.w;
                }
                reads.x += state[i] * query.x, reads.y += state[i + 1] * query.y;
                reads.z += state[i + 2] * query.z, reads.w += state[i + 3] * query.w;
            }
            const float read = over_lanes(reads);
            if (lane == 0 && column < value_dim)
                out[((begun + token) * heads + head) * value_dim + column] = read + past * value;
        }
    }
    keep(sequence.start + sequence.rows);
}

#define RECURRENCE(name, rows, fades, changes)                                                                              \
    extern "C" __global__ void __launch_bounds__(LANES *COLUMNS)                                                            \
        name##_##rows(const float *q, const float *k, const float *v, const float *decay, const float *rates,               \
                      const float *beta, const float *skip, const float *from, const float *into, int corrects, int heads,  \
                      int key_heads, int interleaved_heads, int key_dim, int value_dim, int beta_is_wide, int skip_is_wide, \
                      float *states, const Sequence *sequences, const uint32_t *tables, float *out) {                       \
        const Inputs x{q, k, v, decay, rates, beta, skip, from, into, corrects, heads, key_heads, interleaved_heads,        \
                       key_dim, value_dim, beta_is_wide, skip_is_wide};                                                     \
        recurrence<rows, fades, changes>(x, states, sequences, tables, out);                                                \
    }

RECURRENCE(recurrence, 4, HEAD, false)
RECURRENCE(recurrence, 8, HEAD, false)
RECURRENCE(recurrence, 16, HEAD, false)
RECURRENCE(recurrence, 32, HEAD, false)
RECURRENCE(recurrence, 64, HEAD, false)
RECURRENCE(recurrence_by_key, 4, ROWS_OF_HEAD, false)
RECURRENCE(recurrence_by_key, 8, ROWS_OF_HEAD, false)
RECURRENCE(recurrence_by_key, 16, ROWS_OF_HEAD, false)
RECURRENCE(recurrence_by_key, 32, ROWS_OF_HEAD, false)
RECURRENCE(recurrence_by_key, 64, ROWS_OF_HEAD, false)
RECURRENCE(recurrence_rank_one, 4, ROWS_OF_HEAD, true)
RECURRENCE(recurrence_rank_one, 8, ROWS_OF_HEAD, true)
RECURRENCE(recurrence_rank_one, 16, ROWS_OF_HEAD, true)
RECURRENCE(recurrence_rank_one, 32, ROWS_OF_HEAD, true)
RECURRENCE(recurrence_by_value, 4, COLUMNS_OF_HEAD, false)
RECURRENCE(recurrence_by_value, 8, COLUMNS_OF_HEAD, false)
RECURRENCE(recurrence_by_value, 16, COLUMNS_OF_HEAD, false)
RECURRENCE(recurrence_by_value, 32, COLUMNS_OF_HEAD, false)
RECURRENCE(recurrence_by_element, 4, ELEMENTS, false)
RECURRENCE(recurrence_by_element, 8, ELEMENTS, false)
RECURRENCE(recurrence_by_element, 16, ELEMENTS, false)
RECURRENCE(recurrence_by_element, 32, ELEMENTS, false)

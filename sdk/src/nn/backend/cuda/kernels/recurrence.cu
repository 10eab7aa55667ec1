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

// Some columns of one head of a sequence; the grid is [columns / COLUMNS, heads, sequences]. Matrices are [heads,
// key_dim, value_dim], and a lane has ROWS of the rows: four, then the four after those of the other lanes, and so on.
template <int ROWS>
__device__ __forceinline__ void recurrence(const float *q, const float *k, const float *v, const float *decay, const float *beta,
                                           const float *skip, int corrects, int heads, int key_heads, int interleaved_heads, int key_dim,
                                           int value_dim, float *states, const Sequence *sequences, const uint32_t *tables,
                                           float *out) {
    constexpr int KEYS = ROWS * LANES;
    __shared__ float4 keys[TOKENS][KEYS / 4], queries[TOKENS][KEYS / 4];
    __shared__ float values[TOKENS][COLUMNS], fades[TOKENS], betas[TOKENS];
    begin();
    const int thread = threadIdx.x, lane = thread % LANES, head = blockIdx.y, first = blockIdx.x * COLUMNS;
    const int column = first + thread / LANES, key_head = interleaved_heads ? head % key_heads : head / (heads / key_heads);
    const Sequence sequence = sequences[blockIdx.z];
    const size_t state_size = (size_t)heads * key_dim * value_dim, matrix = (size_t)head * key_dim * value_dim + column;
    const float past = skip ? skip[head] : 0.0f;
    float state[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = i / 4 * 4 * LANES + 4 * lane + i % 4;
        const bool is_there = row < key_dim && column < value_dim && sequence.read != NO_SLOT;
        state[i] = is_there ? states[sequence.read * state_size + matrix + (size_t)row * value_dim] : 0.0f;
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
            ((float *)keys[token])[at] = at < key_dim ? k[from] : 0.0f;
            ((float *)queries[token])[at] = at < key_dim ? q[from] : 0.0f;
        }
        for (int i = thread; i < count * COLUMNS; i += blockDim.x) {
            const int token = i / COLUMNS, at = first + i % COLUMNS;
            values[token][i % COLUMNS] = at < value_dim ? v[((begun + token) * heads + head) * value_dim + at] : 0.0f;
        }
        if (thread < count) {
            fades[thread] = expf(decay[(begun + thread) * heads + head]);
            betas[thread] = beta[(begun + thread) * heads + head];
        }
        __syncthreads();
        for (int token = 0; token < count; token++) {
            keep((uint32_t)begun + token);
            const float value = values[token][thread / LANES], fade = fades[token];
            float write = value;
            if (corrects) {
                float4 knows{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < ROWS; i += 4) {
                    const float4 key = keys[token][i / 4 * LANES + lane];
                    knows.x += state[i] * key.x, knows.y += state[i + 1] * key.y;
                    knows.z += state[i + 2] * key.z, knows.w += state[i + 3] * key.w;
                }
                float known = (knows.x + knows.y) + (knows.z + knows.w);
                known += __shfl_xor_sync(0xffffffffu, known, 1);
                known += __shfl_xor_sync(0xffffffffu, known, 2);
                write -= fade * known;
            }
            write *= betas[token];
            float4 reads{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                const float4 key = keys[token][i / 4 * LANES + lane], query = queries[token][i / 4 * LANES + lane];
                state[i] = state[i] * fade + write * key.x;
                state[i + 1] = state[i + 1] * fade + write * key.y;
                state[i + 2] = state[i + 2] * fade + write * key.z;
                state[i + 3] = state[i + 3] * fade + write * key.w;
                reads.x += state[i] * query.x, reads.y += state[i + 1] * query.y;
                reads.z += state[i + 2] * query.z, reads.w += state[i + 3] * query.w;
            }
            float read = (reads.x + reads.y) + (reads.z + reads.w);
            read += __shfl_xor_sync(0xffffffffu, read, 1);
            read += __shfl_xor_sync(0xffffffffu, read, 2);
            if (lane == 0 && column < value_dim)
                out[((begun + token) * heads + head) * value_dim + column] = read + past * value;
        }
    }
    keep(sequence.start + sequence.rows);
}

#define RECURRENCE(rows)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(LANES *COLUMNS) recurrence_##rows(                                             \
        const float *q, const float *k, const float *v, const float *decay, const float *beta, const float *skip, int corrects, \
        int heads, int key_heads, int interleaved_heads, int key_dim, int value_dim, float *states, const Sequence *sequences,        \
        const uint32_t *tables, float *out) {                                                                                   \
        recurrence<rows>(q, k, v, decay, beta, skip, corrects, heads, key_heads, interleaved_heads, key_dim, value_dim, states,       \
                         sequences, tables, out);                                                                               \
    }

RECURRENCE(4)
RECURRENCE(8)
RECURRENCE(16)
RECURRENCE(32)
RECURRENCE(64)

// Holds the kernels of recurrent layers against double precision on a GPU, and times them:
//
//     nvcc -std=c++17 -O2 -arch=native -o recurrence sdk/src/nn/backend/cuda/on_gpu/recurrence.cu && ./recurrence
//
// Every kernel runs on several sequences of unlike lengths, some of which begin and some of which continue a state, with
// keys and columns that do not fill a block, and leaves states after its last token and in between. Exits with 1 if an
// output or a state is farther than 2e-5 of the largest value from the reference.
#include "../kernels/recurrence.cu"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        const cudaError_t error = call;                                                                      \
        if (error != cudaSuccess) {                                                                          \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error));                                       \
            std::exit(2);                                                                                    \
        }                                                                                                    \
    } while (0)

static const double DIFFERENCE_MAX = 2e-5;

typedef void (*Kernel)(const float *, const float *, const float *, const float *, const float *, const float *, const float *,
                       const float *, const float *, int, int, int, int, int, int, int, int, float *, const Sequence *,
                       const uint32_t *, float *);

struct Case {
    const char *name;
    Kernel kernel;
    int rows;
    Fades fades;
    bool is_rank_one;
    int key_dim, value_dim;
};

#define KERNEL(name, rows, fades, rank_one, key_dim, value_dim) \
    Case { #name "_" #rows, name##_##rows, rows, fades, rank_one, key_dim, value_dim }

static const Case CASES[] = {
    KERNEL(recurrence, 4, HEAD, false, 16, 64),
    KERNEL(recurrence, 8, HEAD, false, 20, 40),
    KERNEL(recurrence, 16, HEAD, false, 64, 64),
    KERNEL(recurrence, 32, HEAD, false, 128, 128),
    KERNEL(recurrence, 64, HEAD, false, 256, 72),
    KERNEL(recurrence_by_key, 4, ROWS_OF_HEAD, false, 12, 33),
    KERNEL(recurrence_by_key, 8, ROWS_OF_HEAD, false, 32, 64),
    KERNEL(recurrence_by_key, 16, ROWS_OF_HEAD, false, 60, 64),
    KERNEL(recurrence_by_key, 32, ROWS_OF_HEAD, false, 128, 128),
    KERNEL(recurrence_by_key, 64, ROWS_OF_HEAD, false, 200, 64),
    KERNEL(recurrence_rank_one, 4, ROWS_OF_HEAD, true, 16, 16),
    KERNEL(recurrence_rank_one, 8, ROWS_OF_HEAD, true, 32, 31),
    KERNEL(recurrence_rank_one, 16, ROWS_OF_HEAD, true, 64, 64),
    KERNEL(recurrence_rank_one, 32, ROWS_OF_HEAD, true, 128, 128),
    KERNEL(recurrence_by_value, 4, COLUMNS_OF_HEAD, false, 16, 64),
    KERNEL(recurrence_by_value, 8, COLUMNS_OF_HEAD, false, 24, 40),
    KERNEL(recurrence_by_value, 16, COLUMNS_OF_HEAD, false, 64, 64),
    KERNEL(recurrence_by_value, 32, COLUMNS_OF_HEAD, false, 128, 50),
    KERNEL(recurrence_by_element, 4, ELEMENTS, false, 16, 128),
    KERNEL(recurrence_by_element, 8, ELEMENTS, false, 32, 64),
    KERNEL(recurrence_by_element, 16, ELEMENTS, false, 64, 64),
    KERNEL(recurrence_by_element, 32, ELEMENTS, false, 100, 64),
};

static std::mt19937 generator(7);

static std::vector<float> uniform(size_t count, float low, float high) {
    std::uniform_real_distribution<float> values(low, high);
    std::vector<float> made(count);
    for (float &value : made) value = values(generator);
    return made;
}

template <typename T> static T *on_gpu(const std::vector<T> &values) {
    T *address;
    CHECK(cudaMalloc(&address, values.size() * sizeof(T) + 1));
    CHECK(cudaMemcpy(address, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return address;
}

static double difference(const std::vector<float> &found, const std::vector<double> &wanted) {
    double largest = 0, off = 0;
    for (size_t i = 0; i < found.size(); i++) {
        largest = std::fmax(largest, std::fabs(wanted[i]));
        off = std::isfinite(found[i]) ? std::fmax(off, std::fabs(found[i] - wanted[i])) : INFINITY;
    }
    return off / std::fmax(largest, 1e-30);
}

// Runs a case; `corrects` is the delta rule. Returns the larger of the differences of outputs and states.
static double run(const Case &one, bool corrects, bool is_wide, double *microseconds) {
    const int heads = 4, key_heads = one.is_rank_one ? 4 : 2, keys = one.key_dim, columns = one.value_dim;
    // Three sequences: a prompt that begins, a token that continues, and a prompt that continues and is saved on its way.
    const uint32_t tokens = 100, slots = 6;
    std::vector<uint32_t> tables{29, 1, 30, 2, 64, 4, 100, 5};
    std::vector<Sequence> sequences{{0, 29, NO_SLOT, 0, 1}, {29, 1, 0, 2, 1}, {30, 70, 3, 4, 2}};
    const size_t state_size = (size_t)heads * keys * columns;
    const float key_scale = 1.0f / std::sqrt((float)keys);
    auto q = uniform((size_t)tokens * key_heads * keys, -1, 1), k = uniform(q.size(), -key_scale, key_scale);
    auto v = uniform((size_t)tokens * heads * columns, -1, 1);
    size_t decays = (size_t)tokens * heads;
    if (one.fades == ROWS_OF_HEAD) decays *= keys;
    if (one.fades == COLUMNS_OF_HEAD || one.fades == ELEMENTS) decays *= columns;
    auto decay = one.fades == ELEMENTS ? uniform(decays, 0, 1) : uniform(decays, -2, 0);
    auto rates = uniform(one.fades == ELEMENTS ? state_size : 0, -2, 0);
    auto beta = uniform((size_t)tokens * heads * (is_wide ? columns : 1), 0, 1);
    auto skip = uniform((size_t)heads * (is_wide ? columns : 1), -1, 1);
    auto from = uniform(one.is_rank_one ? q.size() : 0, -key_scale, key_scale);
    auto into = uniform(one.is_rank_one ? q.size() : 0, -key_scale, key_scale);
    auto states = uniform(slots * state_size, -1, 1);

    std::vector<double> wanted((size_t)tokens * heads * columns), wanted_states(states.begin(), states.end());
    for (const Sequence &sequence : sequences) {
        std::vector<double> state(state_size, 0.0);
        if (sequence.read != NO_SLOT)
            for (size_t i = 0; i < state_size; i++) state[i] = states[sequence.read * state_size + i];
        for (uint32_t token = sequence.start; token < sequence.start + sequence.rows; token++) {
            for (int head = 0; head < heads; head++) {
                const size_t key = ((size_t)token * key_heads + head / (heads / key_heads)) * keys;
                const size_t row = (size_t)token * heads + head;
                double *matrix = state.data() + (size_t)head * keys * columns;
                for (int column = 0; column < columns; column++) {
                    double change = 0, known = 0, read = 0;
                    for (int i = 0; one.is_rank_one && i < keys; i++) change += matrix[i * columns + column] * from[key + i];
                    for (int i = 0; i < keys; i++) {
                        double &at = matrix[i * columns + column];
                        switch (one.fades) {
                        case HEAD: at *= std::exp((double)decay[row]); break;
                        case ROWS_OF_HEAD: at *= std::exp((double)decay[row * keys + i]); break;
                        case COLUMNS_OF_HEAD: at *= std::exp((double)decay[row * columns + column]); break;
                        case ELEMENTS:
                            at *= std::exp((double)decay[row * columns + column] *
                                           rates[((size_t)head * keys + i) * columns + column]);
                        }
                        known += at * k[key + i];
                    }
                    double write = v[row * columns + column] - (corrects ? known : 0);
                    write *= is_wide ? beta[row * columns + column] : beta[row];
                    for (int i = 0; i < keys; i++) {
                        double &at = matrix[i * columns + column];
                        at += write * k[key + i] + (one.is_rank_one ? change * into[key + i] : 0);
                        read += at * q[key + i];
                    }
                    const double past = is_wide ? skip[(size_t)head * columns + column] : skip[head];
                    wanted[row * columns + column] = read + past * v[row * columns + column];
                }
            }
            for (uint32_t save = 0; save < sequence.save_count; save++)
                if (tables[sequence.saves + 2 * save] == token + 1)
                    for (size_t i = 0; i < state_size; i++)
                        wanted_states[tables[sequence.saves + 2 * save + 1] * state_size + i] = state[i];
        }
    }

    float *at_q = on_gpu(q), *at_k = on_gpu(k), *at_v = on_gpu(v), *at_decay = on_gpu(decay), *at_rates = on_gpu(rates);
    float *at_beta = on_gpu(beta), *at_skip = on_gpu(skip), *at_from = on_gpu(from), *at_into = on_gpu(into);
    float *at_states = on_gpu(states);
    Sequence *at_sequences = on_gpu(sequences);
    uint32_t *at_tables = on_gpu(tables);
    std::vector<float> out(wanted.size(), NAN);
    float *at_out = on_gpu(out);
    const dim3 grid((columns + COLUMNS - 1) / COLUMNS, heads, 3);
    const auto launch = [&] {
        one.kernel<<<grid, LANES * COLUMNS>>>(at_q, at_k, at_v, at_decay, at_rates, at_beta, at_skip, at_from, at_into, corrects,
                                              heads, key_heads, 0, keys, columns, is_wide, is_wide, at_states, at_sequences,
                                              at_tables, at_out);
    };
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(out.data(), at_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(states.data(), at_states, states.size() * sizeof(float), cudaMemcpyDeviceToHost));
    cudaEvent_t begun, ended;
    CHECK(cudaEventCreate(&begun));
    CHECK(cudaEventCreate(&ended));
    CHECK(cudaEventRecord(begun));
    for (int round = 0; round < 20; round++) launch();
    CHECK(cudaEventRecord(ended));
    CHECK(cudaEventSynchronize(ended));
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, begun, ended));
    *microseconds = milliseconds * 1000 / 20;
    for (void *address : {(void *)at_q, (void *)at_k, (void *)at_v, (void *)at_decay, (void *)at_rates, (void *)at_beta,
                          (void *)at_skip, (void *)at_from, (void *)at_into, (void *)at_states, (void *)at_sequences,
                          (void *)at_tables, (void *)at_out})
        CHECK(cudaFree(address));
    return std::fmax(difference(out, wanted), difference(states, wanted_states));
}

int main() {
    bool is_right = true;
    for (const Case &one : CASES) {
        for (const bool corrects : {false, true}) {
            if (corrects && (one.is_rank_one || one.fades == COLUMNS_OF_HEAD || one.fades == ELEMENTS)) continue;
            for (const bool is_wide : {false, true}) {
                double microseconds = 0;
                const double off = run(one, corrects, is_wide, &microseconds);
                const bool holds = off <= DIFFERENCE_MAX;
                is_right = is_right && holds;
                std::printf("%-24s %3d x %3d %-5s %-6s off by %.1e, %7.1f us%s\n", one.name, one.key_dim, one.value_dim,
                            corrects ? "delta" : "sum", is_wide ? "wide" : "narrow", off, microseconds, holds ? "" : "  WRONG");
            }
        }
    }
    return is_right ? 0 : 1;
}

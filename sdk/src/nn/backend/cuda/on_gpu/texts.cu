// Holds the kernels for whole texts and images against double precision on a GPU, and times them:
//
//     nvcc -std=c++17 -O2 -arch=native -o texts sdk/src/nn/backend/cuda/on_gpu/texts.cu && ./texts
//
// Every kernel runs on texts of unlike lengths at once, and once more on one of them alone, in all blocks and stages that a
// launch may choose. Then the layers of towers over an image of 1,024 by 1,024 pixels are timed, and some of their rows are
// compared. Exits with 1 if an output is farther than 2e-5 of the largest value from the reference, or if a row depends on
// the other texts or on its block.
#include "../kernels/texts.cu"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
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

typedef void (*Function)(const float *, const __nv_bfloat16 *, const __nv_bfloat16 *, const int4 *, float, const float *, int, int,
                         int, int, int, int, int, float *);

struct Kernel {
    Function function;
    int padded, rows, keys;
    bool shares_queries;

    int threads() const { return 2 * rows; }
    size_t bytes(int stages) const { return 2 * (2 * padded + 8) * (2 * (size_t)stages * keys + (shares_queries ? rows : 0)); }
};

#define KERNEL(padded, rows, keys, shares_queries) Kernel{attend_texts_##padded##_##rows, padded, rows, keys, shares_queries}

static const Kernel KERNELS[] = {
    KERNEL(32, 64, 64, false),  KERNEL(32, 128, 64, false), KERNEL(64, 64, 64, false),   KERNEL(64, 128, 64, false),
    KERNEL(80, 64, 64, false),  KERNEL(80, 128, 64, false), KERNEL(96, 64, 64, false),   KERNEL(96, 128, 64, false),
    KERNEL(128, 64, 32, false), KERNEL(128, 128, 32, false), KERNEL(256, 64, 32, true),
};

struct Layer {
    const char *name;
    int heads, kv_heads, head_dim, reach, far;
};

static const Layer LAYERS[] = {
    {"small heads", 3, 3, 32, -1, 0},      {"BERT", 4, 4, 64, -1, 0},           {"MPNet", 3, 3, 64, -1, 33},
    {"ModernBERT", 3, 3, 64, 64, 0},       {"nothing but itself", 2, 2, 64, 0, 0}, {"SigLIP", 3, 3, 72, -1, 0},
    {"Qwen2.5-VL", 2, 2, 80, -1, 0},       {"shared keys", 4, 2, 88, -1, 0},    {"Pixtral", 4, 4, 128, -1, 0},
    {"EmbeddingGemma", 3, 1, 256, -1, 0},  {"its window", 3, 1, 256, 20, 0},    {"an odd pair", 2, 2, 30, -1, 0},
};

static std::mt19937 generator(7);

static std::vector<float> normal(size_t count) {
    std::normal_distribution<float> values;
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

// Random queries, keys and values of some texts, here and on the device.
struct Inputs {
    Layer layer;
    std::vector<int> lens;
    int tokens = 0;
    std::vector<float> q, k, v, biases;
    float *at_q, *at_k, *at_v, *at_biases;

    Inputs(const Layer &layer, std::vector<int> lens) : layer(layer), lens(lens) {
        for (int len : lens) tokens += len;
        q = normal((size_t)tokens * layer.heads * layer.head_dim);
        k = normal((size_t)tokens * layer.kv_heads * layer.head_dim), v = normal(k.size());
        biases = normal((size_t)layer.heads * (2 * layer.far + 1));
        at_q = on_gpu(q), at_k = on_gpu(k), at_v = on_gpu(v), at_biases = on_gpu(biases);
    }
    ~Inputs() {
        for (float *address : {at_q, at_k, at_v, at_biases}) CHECK(cudaFree(address));
    }

    // The output of a head for a row of the text that begins at `start`.
    std::vector<double> wanted(int start, int len, int row, int head) const {
        const int dim = layer.head_dim, key_head = head / (layer.heads / layer.kv_heads);
        const float *query = q.data() + ((size_t)(start + row) * layer.heads + head) * dim;
        const auto of = [&](const std::vector<float> &values, int at) {
            return values.data() + ((size_t)(start + at) * layer.kv_heads + key_head) * dim;
        };
        std::vector<double> weights(len, 0.0), out(dim, 0.0);
        double peak = -INFINITY, mass = 0;
        for (int at = 0; at < len; at++) {
            if (layer.reach >= 0 && std::abs(at - row) > layer.reach) continue;
            double score = 0;
            for (int i = 0; i < dim; i++) score += (double)query[i] * of(k, at)[i];
            score /= std::sqrt((double)dim);
            const int distance = std::min(std::max(at - row + layer.far, 0), 2 * layer.far);
            if (layer.far > 0) score += biases[(size_t)head * (2 * layer.far + 1) + distance];
            weights[at] = score;
            peak = std::max(peak, score);
        }
        for (int at = 0; at < len; at++) {
            if (layer.reach >= 0 && std::abs(at - row) > layer.reach) continue;
            const double weight = std::exp(weights[at] - peak);
            mass += weight;
            for (int i = 0; i < dim; i++) out[i] += weight * of(v, at)[i];
        }
        for (double &value : out) value /= mass;
        return out;
    }

    // Attends `rounds` times; the microseconds of a round go to `microseconds`, if that is not null: of splitting keys
    // and values, and of attending. Tokens of text `only` alone are computed, if that is not negative.
    std::vector<float> run(const Kernel &kernel, int stages, int only, int rounds, float *microseconds) const {
        std::vector<int4> tiles;
        int first = 0, start = 0, count = tokens;
        for (int text = 0, at = 0; text < (int)lens.size(); at += lens[text++]) {
            if (only >= 0 && text != only) continue;
            if (only >= 0) first = at, count = lens[text];
            start = only >= 0 ? 0 : at;
            for (int row = 0; row < lens[text]; row += TILE_ROWS) tiles.push_back(make_int4(start, lens[text], row, 0));
        }
        const size_t words = (size_t)count * layer.kv_heads * kernel.padded, width = (size_t)layer.heads * layer.head_dim;
        std::vector<float> out(count * width, NAN);
        uint32_t *keys, *values;
        CHECK(cudaMalloc(&keys, words * sizeof(uint32_t)));
        CHECK(cudaMalloc(&values, words * sizeof(uint32_t)));
        int4 *at_tiles = on_gpu(tiles);
        float *at_out = on_gpu(out);
        const size_t bytes = kernel.bytes(stages), past = (size_t)first * layer.kv_heads * layer.head_dim;
        CHECK(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        const auto split = [&] {
            split_heads<<<dim3((words / 2 + 255) / 256, 2), 256>>>(at_k + past, at_v + past, count, layer.kv_heads, layer.head_dim,
                                                                   kernel.padded, keys, values);
        };
        const auto attend = [&] {
            kernel.function<<<dim3(tiles.size(), layer.heads), kernel.threads(), bytes>>>(
                at_q + first * width, (const __nv_bfloat16 *)keys, (const __nv_bfloat16 *)values, at_tiles,
                1.0f / std::sqrt((float)layer.head_dim), layer.far > 0 ? at_biases : nullptr, 2 * layer.far + 1, layer.reach, count,
                layer.heads, layer.kv_heads, layer.head_dim, stages, at_out);
        };
        split(), attend();
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(out.data(), at_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
        if (microseconds) {
            cudaEvent_t events[3];
            for (cudaEvent_t &event : events) CHECK(cudaEventCreate(&event));
            CHECK(cudaEventRecord(events[0]));
            for (int round = 0; round < rounds; round++) split();
            CHECK(cudaEventRecord(events[1]));
            for (int round = 0; round < rounds; round++) attend();
            CHECK(cudaEventRecord(events[2]));
            CHECK(cudaEventSynchronize(events[2]));
            for (int part = 0; part < 2; part++) {
                CHECK(cudaEventElapsedTime(microseconds + part, events[part], events[part + 1]));
                microseconds[part] *= 1000.0f / rounds;
            }
        }
        for (void *address : {(void *)keys, (void *)values, (void *)at_tiles, (void *)at_out}) CHECK(cudaFree(address));
        return out;
    }
};

static const Kernel *of(int head_dim, bool is_wide) {
    const Kernel *found = nullptr;
    for (const Kernel &kernel : KERNELS) {
        if (kernel.padded < head_dim || (found && found->padded < kernel.padded)) continue;
        if (!found || is_wide) found = &kernel;
    }
    return found;
}

int main() {
    int shared_max;
    CHECK(cudaDeviceGetAttribute(&shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    bool is_right = true;
    for (const Layer &layer : LAYERS) {
        const Inputs inputs(layer, {70, 1, 64, 300, 17});
        const size_t width = (size_t)layer.heads * layer.head_dim;
        std::vector<double> wanted;
        int start = 0;
        for (int len : inputs.lens) {
            for (int row = 0; row < len; row++)
                for (int head = 0; head < layer.heads; head++) {
                    const auto one = inputs.wanted(start, len, row, head);
                    wanted.insert(wanted.end(), one.begin(), one.end());
                }
            start += len;
        }
        std::vector<float> known;
        const int padded = of(layer.head_dim, false)->padded;
        for (const Kernel &kernel : KERNELS) {
            for (int stages = 1; kernel.padded == padded && stages <= 2; stages++) {
                if (kernel.bytes(stages) > (size_t)shared_max) continue;
                const std::vector<float> out = inputs.run(kernel, stages, -1, 0, nullptr);
                double largest = 0, off = 0;
                for (size_t i = 0; i < out.size(); i++) {
                    largest = std::fmax(largest, std::fabs(wanted[i]));
                    off = std::isfinite(out[i]) ? std::fmax(off, std::fabs(out[i] - wanted[i])) : INFINITY;
                }
                off /= largest;
                bool is_same = true;
                for (int text = 0, at = 0; text < (int)inputs.lens.size(); at += inputs.lens[text++]) {
                    const std::vector<float> alone = inputs.run(kernel, stages, text, 0, nullptr);
                    is_same = is_same && !std::memcmp(alone.data(), out.data() + at * width, alone.size() * sizeof(float));
                }
                if (known.empty()) known = out;
                is_same = is_same && !std::memcmp(known.data(), out.data(), out.size() * sizeof(float));
                const bool holds = off <= DIFFERENCE_MAX && is_same;
                is_right = is_right && holds;
                std::printf("%-20s %d heads over %d of %3d, blocks of %3d rows, %d stages: off by %.1e, %s%s\n", layer.name,
                            layer.heads, layer.kv_heads, layer.head_dim, kernel.rows, stages, off,
                            is_same ? "the same alone" : "not the same alone", holds ? "" : "  WRONG");
            }
        }
    }
    const struct {
        Layer layer;
        int texts, len;
    } towers[] = {
        {{"SigLIP so400m", 16, 16, 72, -1, 0}, 1, 4096},   {{"Qwen3-VL", 16, 16, 64, -1, 0}, 1, 4096},
        {{"Qwen2.5-VL", 16, 16, 80, -1, 0}, 1, 5476},      {{"its windows", 16, 16, 80, -1, 0}, 86, 64},
        {{"EVA", 16, 16, 88, -1, 0}, 1, 4096},             {{"Pixtral", 16, 16, 64, -1, 0}, 1, 4096},
        {{"heads of 128", 8, 8, 128, -1, 0}, 1, 4096},     {{"BERT, 32 texts", 12, 12, 64, -1, 0}, 32, 256},
        {{"MiniLM, 32 texts", 12, 12, 32, -1, 0}, 32, 256}, {{"EmbeddingGemma", 3, 1, 256, -1, 0}, 4, 1024},
    };
    for (const auto &tower : towers) {
        const Layer &layer = tower.layer;
        const Inputs inputs(layer, std::vector<int>(tower.texts, tower.len));
        const Kernel &kernel = *of(layer.head_dim, tower.len > TILE_ROWS);
        const int stages = kernel.bytes(2) <= (size_t)shared_max ? 2 : 1;
        if (kernel.bytes(stages) > (size_t)shared_max) continue;
        float microseconds[2];
        const std::vector<float> out = inputs.run(kernel, stages, -1, 10, microseconds);
        double largest = 0, off = 0;
        for (int row : {0, 17, tower.len / 2 + 5, tower.len - 1}) {
            for (int head : {0, layer.heads - 1}) {
                const int start = (tower.texts - 1) * tower.len;
                const auto wanted = inputs.wanted(start, tower.len, row, head);
                for (int i = 0; i < layer.head_dim; i++) {
                    const double found = out[((size_t)(start + row) * layer.heads + head) * layer.head_dim + i];
                    largest = std::fmax(largest, std::fabs(wanted[i]));
                    off = std::isfinite(found) ? std::fmax(off, std::fabs(found - wanted[i])) : INFINITY;
                }
            }
        }
        off /= largest;
        is_right = is_right && off <= DIFFERENCE_MAX;
        const double work = 4.0 * tower.texts * tower.len * tower.len * layer.heads * layer.head_dim;
        std::printf("%-18s %2d texts of %4d tokens, %2d heads over %2d of %3d: %6.1f us to split, %7.1f us to attend, "
                    "%5.1f TFLOP/s; off by %.1e%s\n",
                    layer.name, tower.texts, tower.len, layer.heads, layer.kv_heads, layer.head_dim, microseconds[0],
                    microseconds[1], work / microseconds[1] * 1e-6, off, off <= DIFFERENCE_MAX ? "" : "  WRONG");
    }
    return is_right ? 0 : 1;
}

// Mixture of experts without the host: a router's choices, rows sorted by expert, and the experts' products.
//
// A row together with one of its experts is a choice, numbered row · top_k + rank. For a row or two every choice is
// computed separately. Beyond that, choices are sorted into tiles of up to 8·T slots of one expert each, so that an
// expert's weights are read once for all rows of a tile. The number of tiles is only known on the device: the grid has
// the maximum, and superfluous blocks exit at once. A row's result does not depend on its slot (few_rows.cuh), and its
// experts' outputs are summed in the order of its choices.
#include "one_row.cuh"

static constexpr int EXPERTS_MAX = 1024, NONE = -1;

// Index of the largest of `values`, the first among equals, in every lane of a warp. NAN marks values already taken.
__device__ __forceinline__ int largest(const float *values, int count) {
    float best = -INFINITY;
    int at = count;
    for (int i = threadIdx.x % WARP; i < count; i += WARP) {
        const float value = values[i];
        if (!isnan(value) && (at == count || value > best)) best = value, at = i;
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, offset);
        const int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
        if (other_at < count && (at == count || other > best || (other == best && other_at < at))) best = other, at = other_at;
    }
    return at;
}

// Makes sure that there always is something to choose.
__device__ __forceinline__ float a_number(float value) { return isnan(value) ? -INFINITY : value; }

// Chooses experts for each row of logits, one block per row, as `Router` does on the host. `correction` (may be null)
// is added to scores for ranking only; of `groups` (may be 0) only the best count, by the sum of their best one or two.
extern "C" __global__ void route(const float *logits, const float *correction, int count, int top_k, int is_sigmoid,
                                 int renormalize, float scale, int groups, int groups_kept, int groups_compared,
                                 int *experts, float *weights) {
    __shared__ float scores[EXPERTS_MAX], ranks[EXPERTS_MAX], group_ranks[EXPERTS_MAX], scratch[32];
    __shared__ bool is_kept[EXPERTS_MAX];
    begin();
    const int row = blockIdx.x;
    logits += (size_t)row * count, experts += row * top_k, weights += row * top_k;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < count; i += blockDim.x) most = fmaxf(most, logits[i]);
    most = block_max(most, scratch);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        scores[i] = is_sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - most);
        sum += scores[i];
    }
    sum = is_sigmoid ? 1.0f : block_sum(sum, scratch);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        scores[i] /= sum;
        ranks[i] = a_number(scores[i] + (correction ? correction[i] : 0.0f));
    }
    __syncthreads();
    if (groups > 0) {
        const int size = count / groups;
        for (int group = threadIdx.x; group < groups; group += blockDim.x) {
            float best = -INFINITY, second = -INFINITY;
            for (int i = group * size; i < (group + 1) * size; i++) {
                if (ranks[i] > best) second = best, best = ranks[i];
                else if (ranks[i] > second) second = ranks[i];
            }
            group_ranks[group] = a_number(groups_compared > 1 && size > 1 ? best + second : best);
            is_kept[group] = false;
        }
        __syncthreads();
        for (int round = 0; threadIdx.x < WARP && round < groups_kept; round++) {
            const int group = largest(group_ranks, groups);
            __syncwarp();
            if (threadIdx.x == 0) group_ranks[group] = NAN, is_kept[group] = true;
            __syncwarp();
        }
        __syncthreads();
        for (int i = threadIdx.x; i < size * groups; i += blockDim.x) {
            if (!is_kept[i / size]) ranks[i] = -INFINITY;
        }
        __syncthreads();
    }
    if (threadIdx.x >= WARP) return;
    float total = 0.0f;
    for (int rank = 0; rank < top_k; rank++) {
        const int expert = largest(ranks, count);
        __syncwarp();
        total += scores[expert];
        if (threadIdx.x == 0) experts[rank] = expert, weights[rank] = scores[expert], ranks[expert] = NAN;
        __syncwarp();
    }
    if (threadIdx.x == 0) {
        for (int rank = 0; rank < top_k; rank++) weights[rank] *= scale / (renormalize ? total : 1.0f);
    }
}

// Sorts choices by expert, in one block. Writes each tile's expert and number of slots taken, each slot's choice (or
// NONE), and each choice's slot.
extern "C" __global__ void sort_choices(const int *experts, int choices, int count, int tile_slots, int tiles_max, int2 *tiles,
                                        int *choice_of, int *slot_of) {
    __shared__ int wanted[EXPERTS_MAX], first_tile[EXPERTS_MAX + 1], taken[EXPERTS_MAX];
    begin();
    for (int i = threadIdx.x; i < count; i += blockDim.x) wanted[i] = taken[i] = 0;
    for (int i = threadIdx.x; i < tiles_max * tile_slots; i += blockDim.x) choice_of[i] = NONE;
    __syncthreads();
    for (int i = threadIdx.x; i < choices; i += blockDim.x) atomicAdd(&wanted[experts[i]], 1);
    __syncthreads();
    if (threadIdx.x < WARP) {
        int before = 0;
        for (int base = 0; base < count; base += WARP) {
            const int expert = base + threadIdx.x, own = expert < count ? (wanted[expert] + tile_slots - 1) / tile_slots : 0;
            int until = own;
            for (int offset = 1; offset < WARP; offset *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, until, offset);
                if (threadIdx.x >= offset) until += other;
            }
            if (expert < count) first_tile[expert] = before + until - own;
            before += __shfl_sync(0xffffffffu, until, WARP - 1);
        }
        if (threadIdx.x == 0) first_tile[count] = before;
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < count; expert += blockDim.x) {
        for (int tile = first_tile[expert], left = wanted[expert]; left > 0; tile++, left -= tile_slots) {
            tiles[tile] = make_int2(expert, min(left, tile_slots));
        }
    }
    for (int tile = first_tile[count] + threadIdx.x; tile < tiles_max; tile += blockDim.x) tiles[tile] = make_int2(0, 0);
    for (int i = threadIdx.x; i < choices; i += blockDim.x) {
        const int expert = experts[i], slot = first_tile[expert] * tile_slots + atomicAdd(&taken[expert], 1);
        slot_of[i] = slot;
        choice_of[slot] = i;
    }
}

// Prepares the slots' activations, one block per slot: its choice's row, or its own row if `top_k` is 0.
extern "C" __global__ void prepare_slots(const float *x, const int *choice_of, int top_k, int width, int halves, uint16_t *high,
                                         uint16_t *low, float *sums, float *row_scales) {
    __shared__ float scratch[32];
    begin();
    const int slot = blockIdx.x, choice = choice_of[slot];
    if (choice == NONE) return;
    const int row = top_k > 0 ? choice / top_k : slot;
    prepare_one(x + (size_t)row * width, slot, width, halves, high, low, sums, row_scales, scratch);
}

// An expert's matrices: two for the gated half, otherwise one.
struct Expert {
    const uint8_t *data[2];
    const __half *scales[2];
    const float *bias[2];
};

// The segments that multiply rows with an expert's matrices, writing output from row `first` on.
template <bool GATED>
__device__ __forceinline__ Segments of_expert(const Expert &expert, float *out, size_t first, int outputs, float alpha, float limit) {
    Segments segments = {};
    segments.alpha = alpha, segments.limit = limit;
#pragma unroll
    for (int i = 0; i < (GATED ? 2 : 1); i++) {
        segments.of[i] = Segment{expert.data[i], expert.scales[i], expert.bias[i], nullptr, out + first * outputs, outputs, (int)gridDim.x, 0, 0};
    }
    return segments;
}

// Products of a tile, 16 outputs per block.
template <typename Weights, int T, bool GATED>
__device__ __forceinline__ void expert_tile(const Expert *table, const int2 *tiles, Activation x, float *out, int outputs,
                                            int inputs, int kind, float alpha, float limit, uint8_t *shared) {
    // A previous kernel determined the expert.
    wait_for_inputs();
    const int2 tile = tiles[blockIdx.y];
    if (tile.y == 0) return;
    const size_t first = (size_t)blockIdx.y * 8 * T;
    const Segments segments = of_expert<GATED>(table[tile.x], out, first, outputs, alpha, limit);
    x.high += first * inputs, x.low += Weights::HALVES ? first * inputs : 0;
    x.sums += first / 8 * (inputs / 16 * 12), x.row_scales += first;
    few_rows<Weights, T, GATED>(segments, x, tile.y, inputs, kind, shared);
}

// Products of single choices, each `sharing` of which share a row of `x`.
template <typename Weights, bool GATED>
__device__ __forceinline__ void expert_choice(const Expert *table, const int *experts, int sharing, const float *x, float *out,
                                              int outputs, int inputs, int kind, float alpha, float limit, uint8_t *shared) {
    wait_for_inputs();
    const int choice = blockIdx.y;
    const Segments segments = of_expert<GATED>(table[experts[choice]], out, choice, outputs, alpha, limit);
    const float *row = x + (size_t)(choice / sharing) * inputs;
    if constexpr (Weights::HALVES) few_rows<Weights, 0, GATED>(segments, Activation{row}, 1, inputs, kind, shared);
    else one_row<Weights, 1, GATED>(segments, row, inputs, kind, shared);
}

#define TILE_KERNEL(what, name, Weights, T, GATED)                                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS_MAX *WARP, 1)                                                    \
        experts_##what##_##name##_##T(const Expert *table, const int2 *tiles, const uint16_t *high, const uint16_t *low, \
                                      const float *sums, const float *row_scales, float *out, int outputs, int inputs,  \
                                      int kind, float alpha, float limit) {                                             \
        extern __shared__ __align__(16) uint8_t shared[];                                                               \
        const Activation activation{nullptr, high, low, sums, row_scales};                                              \
        expert_tile<Weights, T, GATED>(table, tiles, activation, out, outputs, inputs, kind, alpha, limit, shared);     \
    }
#define CHOICE_KERNEL(what, name, Weights, GATED)                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS_MAX *WARP, Weights::HALVES ? 1 : 2)                              \
        experts_##what##_##name##_one(const Expert *table, const int *experts, int sharing, const float *x, float *out, \
                                      int outputs, int inputs, int kind, float alpha, float limit) {                    \
        extern __shared__ __align__(16) uint8_t shared[];                                                               \
        expert_choice<Weights, GATED>(table, experts, sharing, x, out, outputs, inputs, kind, alpha, limit, shared);    \
    }
#define EXPERTS(name, Weights)                                                                                          \
    CHOICE_KERNEL(gated, name, Weights, true)                                                                           \
    CHOICE_KERNEL(product, name, Weights, false)                                                                        \
    TILE_KERNEL(gated, name, Weights, 1, true)                                                                          \
    TILE_KERNEL(product, name, Weights, 1, false)                                                                       \
    TILE_KERNEL(gated, name, Weights, 4, true)                                                                          \
    TILE_KERNEL(product, name, Weights, 4, false)

EXPERTS(q4k, KBlocks<false>)
EXPERTS(q5k, KBlocks<true>)
EXPERTS(q6k, SixBits)
EXPERTS(q80, EightBits)
EXPERTS(n4, Nibbles)
EXPERTS(n4m, LoweredNibbles)
EXPERTS(bf16, Bf16)

// out[row] = Σ weight · output of the choice's expert, in the order of the choices; `slot_of` (may be null) gives its
// location.
extern "C" __global__ void combine(const float *made, const int *slot_of, const float *weights, int top_k, int width, float *out) {
    begin();
    const int row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float sum = 0.0f;
    for (int choice = row * top_k; choice < (row + 1) * top_k; choice++) {
        sum += weights[choice] * made[(size_t)(slot_of ? slot_of[choice] : choice) * width + i];
    }
    out[(size_t)row * width + i] = sum;
}

// Mixtures of experts whose choices stay on the device: a router's choices, the rows sorted by expert, and their products.
//
// A row and one of its experts are a choice, numbered row · top_k + rank. Where most experts have a row or two, every choice is
// computed by itself. Else choices are sorted into tiles of one expert each, so that its weights are read once for all rows of
// a tile. How many tiles there are is known on the device alone: the grid has as many as there can be, and those beyond end at
// once. What a row's experts make of it is summed in the order of its own choices.

constant constexpr uint EXPERTS_MAX = 1024, ROUTE_THREADS = 128, ROUTE_SIMDS = ROUTE_THREADS / SIMD;

struct RouteShape {
    uint count, top_k, is_sigmoid, renormalize;
    uint groups, groups_kept, groups_compared;    // 0 groups: none
    uint has_correction;
    float scale;
};

// The place of the largest of `ranks`, the first of equals, by one SIMD-group. Taken ones are 0, below all numbers.
inline uint largest(threadgroup const uint *ranks, uint count, uint lane) {
    uint top = 0, place = count;
    for (uint i = lane; i < count; i += SIMD) {
        if (ranks[i] > top) {
            top = ranks[i];
            place = i;
        }
    }
    const uint all = simd_max(top);
    return min(simd_min(top == all ? place : count), count - 1);
}

// What is no number ranks last, so that there always is something to choose.
constant constexpr uint LOWEST = 0x007FFFFFu;
inline uint rank_of(float x) { return is_number(x) ? order_of(x) : LOWEST; }

// The choices of a row of logits, a threadgroup to a row, as the router makes them on the host. The correction is added to
// scores for the choice alone; of groups only the best count, by the sum of their best one or two.
kernel void route(device const float *logits [[buffer(0)]], device const float *correction [[buffer(1)]],
                  constant RouteShape &shape [[buffer(2)]], device uint *experts [[buffer(3)]],
                  device float *weights [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED float scores[EXPERTS_MAX], corrected[EXPERTS_MAX], partial[ROUTE_SIMDS], sums[ROUTE_SIMDS];
    SHARED uint ranks[EXPERTS_MAX], group_ranks[EXPERTS_MAX], is_kept[EXPERTS_MAX];
    const uint count = shape.count;
    device const float *row = logits + (ulong)group.x * count;
    float peak = row[0];
    for (uint i = thread_index; i < count; i += ROUTE_THREADS) peak = max(peak, row[i]);
    peak = simd_max(peak);
    if (lane == 0) partial[simd] = peak;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < ROUTE_SIMDS; i++) peak = max(peak, partial[i]);
    float sum = 0.0f;
    for (uint i = thread_index; i < count; i += ROUTE_THREADS) {
        scores[i] = shape.is_sigmoid ? sigmoid_of(row[i]) : exp(row[i] - peak);
        sum += scores[i];
    }
    sum = simd_sum(sum);
    if (lane == 0) sums[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = 0.0f;
    for (uint i = 0; i < ROUTE_SIMDS; i++) sum += sums[i];
    for (uint i = thread_index; i < count; i += ROUTE_THREADS) {
        if (!shape.is_sigmoid) scores[i] /= sum;
        corrected[i] = shape.has_correction ? scores[i] + correction[i] : scores[i];
        ranks[i] = rank_of(corrected[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (shape.groups > 0) {
        const uint size = count / shape.groups;
        for (uint at = thread_index; at < shape.groups; at += ROUTE_THREADS) {
            uint best = at * size, second = count;
            for (uint i = at * size + 1; i < (at + 1) * size; i++) {
                if (ranks[i] > ranks[best]) {
                    second = best;
                    best = i;
                } else if (second == count || ranks[i] > ranks[second]) {
                    second = i;
                }
            }
            const bool both = shape.groups_compared > 1 && second != count;
            group_ranks[at] = rank_of(corrected[best] + (both ? corrected[second] : 0.0f));
            is_kept[at] = 0;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kept = 0; simd == 0 && kept < shape.groups_kept; kept++) {
            const uint at = largest(group_ranks, shape.groups, lane);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            if (lane == 0) {
                group_ranks[at] = 0;
                is_kept[at] = 1;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < size * shape.groups; i += ROUTE_THREADS) {
            if (!is_kept[i / size]) ranks[i] = LOWEST;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (simd != 0) return;
    experts += group.x * shape.top_k;
    weights += group.x * shape.top_k;
    float total = 0.0f;
    for (uint rank = 0; rank < shape.top_k; rank++) {
        const uint expert = largest(ranks, count, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        total += scores[expert];
        if (lane == 0) {
            experts[rank] = expert;
            weights[rank] = scores[expert];
            ranks[expert] = 0;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (lane != 0) return;
    for (uint rank = 0; rank < shape.top_k; rank++) weights[rank] *= shape.scale / (shape.renormalize ? total : 1.0f);
}

constant constexpr uint SORT_THREADS = 256;

struct SortShape {
    uint choices, experts, tile_rows, tiles;
};

// Sorts choices by expert, by one threadgroup; those of an expert keep their order. Of each tile it writes the expert, the first
// of its choices in `sorted`, and how many there are: 0 beyond the last.
kernel void sort_choices(device const uint *experts [[buffer(0)]], constant SortShape &shape [[buffer(1)]],
                         device uint *sorted [[buffer(2)]], device uint4 *tiles [[buffer(3)]],
                         uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    SHARED uint wanted[EXPERTS_MAX], first_choice[EXPERTS_MAX], first_tile[EXPERTS_MAX + 1];
    for (uint expert = thread_index; expert < shape.experts; expert += SORT_THREADS) {
        uint count = 0;
        for (uint i = 0; i < shape.choices; i++) count += experts[i] == expert ? 1 : 0;
        wanted[expert] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == SIMD) {
        uint choices = 0, tile = 0;
        for (uint expert = 0; expert < shape.experts; expert++) {
            first_choice[expert] = choices;
            first_tile[expert] = tile;
            choices += wanted[expert];
            tile += (wanted[expert] + shape.tile_rows - 1) / shape.tile_rows;
        }
        first_tile[shape.experts] = tile;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint expert = thread_index; expert < shape.experts; expert += SORT_THREADS) {
        uint at = first_choice[expert];
        for (uint i = 0; i < shape.choices; i++) {
            if (experts[i] == expert) sorted[at++] = i;
        }
        for (uint tile = 0; tile * shape.tile_rows < wanted[expert]; tile++) {
            const uint before = tile * shape.tile_rows, count = min(wanted[expert] - before, shape.tile_rows);
            tiles[first_tile[expert] + tile] = uint4{expert, first_choice[expert] + before, count, 0};
        }
    }
    for (uint tile = first_tile[shape.experts] + thread_index; tile < shape.tiles; tile += SORT_THREADS) {
        tiles[tile] = uint4{0, 0, 0, 0};
    }
}

// Half of a mixture: the gated products of rows of `x`, or the products that lead back.
struct ExpertShape {
    uint choices, sharing;            // that share a row of `x`
    uint inputs, outputs, format, row_bytes;
    uint has_bias, has_up_bias, is_gated, activates, activation;
    float alpha, limit;
};

// The matrices of an expert: where they begin in `weight` and `up_weight`, and biases one after the other.
inline Job job_of_expert(device const float *x, device const uchar *weight, device const uchar *up_weight,
                         device const ulong *starts, device const float *bias, device const float *up_bias, device float *out,
                         constant ExpertShape &shape, uint expert, uint group) {
    Job job;
    job.x = x;
    job.weight = weight + starts[2 * expert];
    job.up_weight = up_weight + starts[2 * expert + 1];
    job.bias = bias + (shape.has_bias ? (ulong)expert * shape.outputs : 0);
    job.up_bias = up_bias + (shape.has_up_bias ? (ulong)expert * shape.outputs : 0);
    job.residual = x;
    job.out = out;
    job.choices = nullptr;
    job.rows = shape.choices;
    job.inputs = shape.inputs;
    job.outputs = shape.outputs;
    job.format = shape.format;
    job.row_bytes = shape.row_bytes;
    job.has_bias = shape.has_bias;
    job.has_up_bias = shape.has_up_bias;
    job.adds_residual = 0;
    job.has_choices = 0;
    job.sharing = shape.sharing;
    job.is_gated = shape.is_gated;
    job.activates = shape.activates;
    job.activation = shape.activation;
    job.alpha = shape.alpha;
    job.limit = shape.limit;
    job.group = group;
    return job;
}

#define EXPERT_OPERANDS                                                                                        \
    device const float *x [[buffer(0)]], device const uchar *weight [[buffer(1)]],                                      \
        device const uchar *up_weight [[buffer(2)]], device const ulong *starts [[buffer(3)]],                          \
        device const float *bias [[buffer(4)]], device const float *up_bias [[buffer(5)]],                              \
        device const uint *experts [[buffer(6)]], device const uint4 *tiles [[buffer(7)]],                            \
        constant ExpertShape &shape [[buffer(8)]], device float *out [[buffer(9)]],                                     \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],                \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]

// A choice by itself: `experts` has that of each choice. The grid is [outputs, choices].
kernel void experts_1(EXPERT_OPERANDS) {
    Job job = job_of_expert(x, weight, up_weight, starts, bias, up_bias, out, shape, experts[group.y], group.x);
    const uint choice = group.y;
    job.x = x + (ulong)(choice / shape.sharing) * shape.inputs;
    job.out = out + (ulong)choice * shape.outputs;
    job.rows = 1;
    product_of_one(job, 0, lane, simd);
}

// Tiles: `experts` has the sorted choices. The grid is [tiles, outputs].
inline Job job_of_tile(Job job, device const uint *sorted, uint4 tile) {
    job.choices = sorted + tile.y;
    job.rows = tile.z;
    job.has_choices = 1;
    return job;
}

kernel void experts_8(EXPERT_OPERANDS) {
    const uint4 tile = tiles[group.x];
    if (tile.z == 0) return;
    const Job job = job_of_expert(x, weight, up_weight, starts, bias, up_bias, out, shape, tile.x, group.y);
    product_of_few<8>(job_of_tile(job, experts, tile), 0, lane, simd);
}

kernel void experts_many(EXPERT_OPERANDS, threadgroup float *shared SHARED_AT(0)) {
    const uint4 tile = tiles[group.x];
    if (tile.z == 0) return;
    const Job job = job_of_expert(x, weight, up_weight, starts, bias, up_bias, out, shape, tile.x, group.y);
    product_of_many(job_of_tile(job, experts, tile), 0, shared, thread_index, simd);
}

struct CombineShape {
    uint rows, top_k, width;
};

// The sum of each row's choices by their weights; the grid is [width, rows].
kernel void combine(device const float *made [[buffer(0)]], device const float *weights [[buffer(1)]],
                    constant CombineShape &shape [[buffer(2)]], device float *out [[buffer(3)]],
                    uint2 at [[thread_position_in_grid]]) {
    if (at.x >= shape.width) return;
    float sum = 0.0f;
    for (uint choice = at.y * shape.top_k; choice < (at.y + 1) * shape.top_k; choice++) {
        sum += weights[choice] * made[(ulong)choice * shape.width + at.x];
    }
    out[(ulong)at.y * shape.width + at.x] = sum;
}

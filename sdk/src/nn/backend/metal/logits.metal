// What sampling wants of rows of logits, so that no row has to leave the device.

constant constexpr uint BEST_THREADS = 512, BEST_SIMDS = BEST_THREADS / SIMD;
struct BestShape {
    uint width;
};

// Of each row the first place with the highest logit, that logit, and the logarithm of the sum of exp(logit), which is no
// number where a logit is none, or the highest is infinite. A threadgroup to a row; the three are written as bits.
kernel void best(device const float *logits [[buffer(0)]], constant BestShape &shape [[buffer(1)]],
                 device uint *out [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED uint highest[BEST_SIMDS], places[BEST_SIMDS];
    SHARED float sums[BEST_SIMDS];
    const uint width = shape.width;
    device const float *row = logits + (ulong)group.x * width;
    uint top = 0, place = width;
    for (uint i = thread_index; i < width; i += BEST_THREADS) {
        const uint order = is_number(row[i]) ? order_of(row[i]) : 0;
        if (order > top) {
            top = order;
            place = i;
        }
    }
    const uint own = top;
    top = simd_max(top);
    place = simd_min(own == top ? place : width);
    if (lane == 0) {
        highest[simd] = top;
        places[simd] = place;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = 0;
    place = width;
    for (uint i = 0; i < BEST_SIMDS; i++) {
        if (highest[i] > top || (highest[i] == top && places[i] < place)) {
            top = highest[i];
            place = places[i];
        }
    }
    const float peak = as_type<float>(bits_of_order(top));
    bool is_sound = is_finite(peak);
    float sum = 0.0f;
    for (uint i = thread_index; i < width; i += BEST_THREADS) {
        const float value = row[i];
        if (is_finite(value)) sum += exp(value - peak);
        else if (!is_number(value)) is_sound = false;
    }
    // A sum is at least 0; below it marks what is no number.
    sum = simd_sum(sum);
    const uint unsound = simd_max(is_sound ? 0u : 1u);
    if (lane == 0) sums[simd] = unsound ? -1.0f : sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index != 0) return;
    float all = 0.0f;
    for (uint i = 0; i < BEST_SIMDS; i++) {
        if (sums[i] < 0.0f) is_sound = false;
        all += sums[i];
    }
    out[3 * group.x] = as_type<uint>((float)place);
    out[3 * group.x + 1] = bits_of_order(top);
    out[3 * group.x + 2] = is_sound ? as_type<uint>(peak + log(all)) : NO_NUMBER;
}

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

constant constexpr uint CANDIDATES_MAX = 512, VACANT = 0xFFFFFFFFu, BELOW_ALL = 0xFF800000u;

struct CandidatesShape {
    uint width, top;
    uint words;                       // of a row's mask; 0: none, all are allowed
};

// A row of logits, and which of them may be chosen.
struct Choice {
    device const float *row;
    device const uint *mask;
    uint width, words;
};

inline bool is_allowed(Choice choice, uint token) { return choice.words == 0 || (choice.mask[token / 32] >> token % 32 & 1u) != 0; }
// 0 for what may not be chosen, below all others.
inline uint rank_of(Choice choice, uint token) { return is_allowed(choice, token) ? order_of(choice.row[token]) : 0; }

// The sum of a count over a threadgroup, which is exact as it has fewer than 2^24 parts.
inline uint count_of_all(uint own, threadgroup float *partial, uint lane, uint simd) {
    const float sum = simd_sum((float)own);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all = 0.0f;
    for (uint i = 0; i < BEST_SIMDS; i++) all += partial[i];
    return (uint)all;
}

// How many may be chosen and rank at least `least`.
inline uint count_from(Choice choice, uint least, threadgroup float *partial, uint thread_index, uint lane, uint simd) {
    uint own = 0;
    for (uint i = thread_index; i < choice.width; i += BEST_THREADS) own += rank_of(choice, i) >= least ? 1 : 0;
    return count_of_all(own, partial, lane, simd);
}

// How many rank `rank` and come before `end`.
inline uint count_equals(Choice choice, uint rank, uint end, threadgroup float *partial, uint thread_index, uint lane, uint simd) {
    uint own = 0;
    for (uint i = thread_index; i < min(choice.width, end); i += BEST_THREADS) own += rank_of(choice, i) == rank ? 1 : 0;
    return count_of_all(own, partial, lane, simd);
}

// The logarithm of the sum of exp(logit) over those that may be chosen, as bits.
inline uint total_of(Choice choice, threadgroup float *partial, threadgroup uint *peaks, uint thread_index, uint lane, uint simd) {
    uint top = 0, unsound = 0;
    for (uint i = thread_index; i < choice.width; i += BEST_THREADS) {
        if (!is_allowed(choice, i)) continue;
        if (is_number(choice.row[i])) top = max(top, order_of(choice.row[i]));
        else unsound = 1;
    }
    top = simd_max(top);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) peaks[simd] = top;
    unsound = count_of_all(unsound, partial, lane, simd);
    for (uint i = 0; i < BEST_SIMDS; i++) top = max(top, peaks[i]);
    const uint bits = top == 0 ? BELOW_ALL : bits_of_order(top);
    const float peak = as_type<float>(bits);
    float sum = 0.0f;
    for (uint i = thread_index; i < choice.width; i += BEST_THREADS) {
        if (is_allowed(choice, i) && is_finite(choice.row[i])) sum += exp(choice.row[i] - peak);
    }
    sum = simd_sum(sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all = 0.0f;
    for (uint i = 0; i < BEST_SIMDS; i++) all += partial[i];
    if (unsound || bits == INFINITE) return NO_NUMBER;
    return bits == BELOW_ALL ? BELOW_ALL : as_type<uint>(peak + log(all));
}

// The `top` highest logits of each row that its mask allows, the first of equals, in descending order; and the logarithms of the
// sums of exp(logit) over all and over those allowed. A threadgroup to a row. The rank of the last one is found three bits at a
// time, and where several have it, the place of the last of those; so the result does not depend on the order of threads.
kernel void candidates(device const float *logits [[buffer(0)]], device const uint *masks [[buffer(1)]],
                       constant CandidatesShape &shape [[buffer(2)]], device uint *ids [[buffer(3)]],
                       device uint *scores [[buffer(4)]], device uint *totals [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED float partial[BEST_SIMDS];
    SHARED uint peaks[BEST_SIMDS], firsts[BEST_THREADS], ranks[CANDIDATES_MAX], tokens[CANDIDATES_MAX];
    Choice choice;
    choice.row = logits + (ulong)group.x * shape.width;
    choice.mask = masks + (ulong)group.x * shape.words;
    choice.width = shape.width;
    choice.words = 0;
    const uint total = total_of(choice, partial, peaks, thread_index, lane, simd);
    choice.words = shape.words;
    const uint masked = shape.words == 0 ? total : total_of(choice, partial, peaks, thread_index, lane, simd);

    uint last = 0;
    for (uint shift = 30; shift < 32; shift -= 3) {
        const uint digits = shift == 30 ? 4 : 8;
        uint own[7];
        UNROLLED (uint digit = 1; digit < 8; digit++) own[digit - 1] = 0;
        for (uint i = thread_index; i < choice.width; i += BEST_THREADS) {
            const uint rank = rank_of(choice, i);
            UNROLLED (uint digit = 1; digit < 8; digit++) own[digit - 1] += rank >= (last | digit << shift) ? 1 : 0;
        }
        uint found = 0;
        UNROLLED (uint digit = 1; digit < 8; digit++) {
            const uint count = count_of_all(own[digit - 1], partial, lane, simd);
            if (digit < digits && count >= shape.top) found = digit;
        }
        last |= found << shift;
    }
    last = max(last, 1u);
    const uint above = last == VACANT ? 0 : count_from(choice, last + 1, partial, thread_index, lane, simd);
    uint end = choice.width;
    if (above + count_equals(choice, last, end, partial, thread_index, lane, simd) > shape.top) {
        end = 0;
        for (uint bit = 1u << 31; bit > 0; bit /= 2) {
            if (above + count_equals(choice, last, end | bit, partial, thread_index, lane, simd) <= shape.top) end |= bit;
        }
    }

    uint own = 0;
    for (uint i = thread_index; i < choice.width; i += BEST_THREADS) {
        const uint rank = rank_of(choice, i);
        own += rank > last || (rank == last && i < end) ? 1 : 0;
    }
    firsts[thread_index] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint at = 0, count = 0;
    for (uint i = 0; i < BEST_THREADS; i++) {
        if (i == thread_index) at = count;
        count += firsts[i];
    }
    for (uint i = thread_index; i < choice.width && own > 0; i += BEST_THREADS) {
        const uint rank = rank_of(choice, i);
        if (rank < last || (rank == last && i >= end)) continue;
        ranks[at] = rank;
        tokens[at++] = i;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ids += group.x * shape.top;
    scores += group.x * shape.top;
    for (uint i = thread_index; i < shape.top; i += BEST_THREADS) {
        if (i >= count) {
            ids[i] = VACANT;
            scores[i] = BELOW_ALL;
            continue;
        }
        uint place = 0;
        for (uint j = 0; j < count; j++) place += ranks[j] > ranks[i] || (ranks[j] == ranks[i] && tokens[j] < tokens[i]) ? 1 : 0;
        ids[place] = tokens[i];
        scores[place] = as_type<uint>(choice.row[tokens[i]]);
    }
    if (thread_index == 0) {
        totals[2 * group.x] = total;
        totals[2 * group.x + 1] = masked;
    }
}

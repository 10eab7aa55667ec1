// How a threadgroup multiplies rows by a matrix, or by two of which the first gates the second; `products.metal` and
// `experts.metal` say which rows and matrices these are.
//
// One row waits for memory, so lanes of a SIMD-group stand side by side along a row of the matrix. Two to eight rows read the
// weights once for all of them. Many rows go through the SIMD-group's matrices, over tiles that are unpacked once for 32 rows.

struct Job {
    device const float *x;            // [.., inputs]
    device const uchar *weight, *up_weight;
    device const float *bias, *up_bias, *residual;
    device float *out;                // [.., outputs]
    device const uint *choices;       // what rows are: those of `out`, and of `x` each `sharing`
    uint rows, inputs, outputs, format, row_bytes;
    uint has_bias, has_up_bias, adds_residual, has_choices, sharing;
    uint is_gated, activates, activation;
    float alpha, limit;               // of a clamped gate
    uint group;                       // among those that share the outputs
};

// Row `output` of a matrix, or its last.
inline device const uchar *row_of(device const uchar *weight, Job job, uint output) {
    return weight + (ulong)min(output, job.outputs - 1) * job.row_bytes;
}

// Row `row` of the activation, or its last.
inline device const float *input_of(Job job, uint row) {
    row = min(row, job.rows - 1);
    return job.x + (ulong)(job.has_choices ? job.choices[row] / job.sharing : row) * job.inputs;
}

// Where output `output` of a row belongs.
inline ulong output_of(Job job, uint row, uint output) {
    return (ulong)(job.has_choices ? job.choices[row] : row) * job.outputs + output;
}

inline void write_product(Job job, uint row, uint output, float value) {
    if (row >= job.rows || output >= job.outputs) return;
    const ulong at = output_of(job, row, output);
    if (job.has_bias) value += job.bias[output];
    if (job.activates) value = activated(job.activation, value);
    if (job.adds_residual) value += job.residual[at];
    job.out[at] = value;
}

inline void write_gated(Job job, uint row, uint output, float gate, float up) {
    if (row >= job.rows || output >= job.outputs) return;
    if (job.has_bias) gate += job.bias[output];
    if (job.has_up_bias) up += job.up_bias[output];
    job.out[output_of(job, row, output)] = gated(job.activation, gate, up, job.alpha, job.limit);
}

// Eight values of a row of `inputs`, zero beyond its end.
inline Octet octet_of(device const float *row, uint at, uint inputs) {
    Octet octet;
    device const float *from = row + 8 * at;
    if (8 * at + 8 <= inputs) {
        UNROLLED (uint i = 0; i < 8; i++) octet.v[i] = from[i];
    } else {
        UNROLLED (uint i = 0; i < 8; i++) octet.v[i] = 8 * at + i < inputs ? from[i] : 0.0f;
    }
    return octet;
}

// Rows of a matrix that a SIMD-group multiplies one row by, so that it loads that row once for all of them, and SIMD-groups.
constant constexpr uint ONE_ROW_OUTPUTS = 4, ONE_ROW_SIMDS = 2;

struct FourRows {
    device const uchar *at[ONE_ROW_OUTPUTS];
};
struct FourSums {
    float v[ONE_ROW_OUTPUTS];
};

template <typename F> inline FourSums one_row(device const float *x, FourRows rows, uint inputs, uint lane) {
    FourSums sums;
    UNROLLED (uint r = 0; r < ONE_ROW_OUTPUTS; r++) sums.v[r] = 0.0f;
    for (uint at = lane; 8 * at < inputs; at += SIMD) {
        const Octet values = octet_of(x, at, inputs);
        float total = 0.0f;
        if (F::MINIMUM) {
            UNROLLED (uint i = 0; i < 8; i++) total += values.v[i];
        }
        UNROLLED (uint r = 0; r < ONE_ROW_OUTPUTS; r++) {
            const Eight eight = F::eight(rows.at[r], at, inputs);
            float dot = 0.0f;
            UNROLLED (uint i = 0; i < 8; i++) dot += eight.code[i] * values.v[i];
            sums.v[r] += eight.scale * dot;
            if (F::MINIMUM) sums.v[r] -= eight.minimum * total;
        }
    }
    UNROLLED (uint r = 0; r < ONE_ROW_OUTPUTS; r++) sums.v[r] = simd_sum(sums.v[r]);
    return sums;
}

// A row by itself.
inline void product_of_one(Job job, uint row, uint lane, uint simd) {
    const bool is_gated = job.is_gated != 0;
    const uint per_simd = is_gated ? ONE_ROW_OUTPUTS / 2 : ONE_ROW_OUTPUTS;
    const uint first = (job.group * ONE_ROW_SIMDS + simd) * per_simd;
    if (first >= job.outputs) return;
    FourRows rows;
    UNROLLED (uint r = 0; r < ONE_ROW_OUTPUTS; r++) {
        const bool is_up = is_gated && r >= per_simd;
        rows.at[r] = row_of(is_up ? job.up_weight : job.weight, job, first + r % per_simd);
    }
    device const float *x = input_of(job, row);
    FourSums sums;
    WITH_FORMAT(job.format, sums = one_row<F>(x, rows, job.inputs, lane))
    if (lane != 0) return;
    UNROLLED (uint r = 0; r < ONE_ROW_OUTPUTS; r++) {
        if (r >= per_simd) continue;
        if (is_gated) write_gated(job, row, first + r, sums.v[r], sums.v[(r + ONE_ROW_OUTPUTS / 2) % ONE_ROW_OUTPUTS]);
        else write_product(job, row, first + r, sums.v[r]);
    }
}

// Of a SIMD-group eight lanes stand along a row of the matrix, so that four of them share what they read of the activation;
// each lane takes two rows of the matrix.
constant constexpr uint FEW_LANES = 8, FEW_OUTPUTS = 2, FEW_SIMDS = 2;

struct TwoRows {
    device const uchar *at[FEW_OUTPUTS];
};
template <uint T> struct FewSums {
    float v[FEW_OUTPUTS][T];
};

template <typename F, uint T> inline FewSums<T> few_rows(Job job, uint first_row, TwoRows weight, uint lane) {
    FewSums<T> sums;
    device const float *x[T];
    UNROLLED (uint t = 0; t < T; t++) x[t] = input_of(job, first_row + t);
    UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) {
        UNROLLED (uint t = 0; t < T; t++) sums.v[r][t] = 0.0f;
    }
    for (uint at = lane % FEW_LANES; 8 * at < job.inputs; at += FEW_LANES) {
        Octet unpacked[FEW_OUTPUTS];
        UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) unpacked[r] = weights<F>(weight.at[r], at, job.inputs);
        UNROLLED (uint t = 0; t < T; t++) {
            const Octet values = octet_of(x[t], at, job.inputs);
            UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) {
                float dot = 0.0f;
                UNROLLED (uint i = 0; i < 8; i++) dot += unpacked[r].v[i] * values.v[i];
                sums.v[r][t] += dot;
            }
        }
    }
    UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) {
        UNROLLED (uint t = 0; t < T; t++) {
            float sum = sums.v[r][t];
            UNROLLED (uint distance = 1; distance < FEW_LANES; distance *= 2) sum += simd_shuffle_xor(sum, distance);
            sums.v[r][t] = sum;
        }
    }
    return sums;
}

// T rows from `first_row` on, as far as there are any.
template <uint T> inline void product_of_few(Job job, uint first_row, uint lane, uint simd) {
    const bool is_gated = job.is_gated != 0;
    const uint per_lane = is_gated ? FEW_OUTPUTS / 2 : FEW_OUTPUTS, per_simd = SIMD / FEW_LANES * per_lane;
    const uint first = (job.group * FEW_SIMDS + simd) * per_simd + lane / FEW_LANES * per_lane;
    TwoRows weight;
    UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) {
        const bool is_up = is_gated && r >= per_lane;
        weight.at[r] = row_of(is_up ? job.up_weight : job.weight, job, first + r % per_lane);
    }
    FewSums<T> sums;
    WITH_FORMAT(job.format, (sums = few_rows<F, T>(job, first_row, weight, lane)))
    // Each of the eight lanes writes one of the rows.
    UNROLLED (uint t = 0; t < T; t++) {
        if (lane % FEW_LANES != t) continue;
        UNROLLED (uint r = 0; r < FEW_OUTPUTS; r++) {
            if (r >= per_lane) continue;
            if (is_gated) write_gated(job, first_row + t, first + r, sums.v[r][t], sums.v[(r + FEW_OUTPUTS / 2) % FEW_OUTPUTS][t]);
            else write_product(job, first_row + t, first + r, sums.v[r][t]);
        }
    }
}

// Tiles of many rows: a threadgroup of four SIMD-groups makes 32 rows of 64 outputs, 32 inputs at a time. Weights are unpacked
// to f16, activations stay f32, and so do sums.
constant constexpr uint TILE_ROWS = 32, TILE_OUTPUTS = 64, TILE_INPUTS = 32, TILE_THREADS = 128;
constant constexpr uint CELL = 8, CELL_VALUES = CELL * CELL;
constant constexpr uint TILE_EIGHTS = TILE_INPUTS / CELL;

// `shared` has the tiles of the activation and the weights as 8 × 8 cells, then the result.
inline void product_of_many(Job job, uint first_row, threadgroup float *shared, uint thread_index, uint simd) {
    const bool is_gated = job.is_gated != 0;
    const uint per_tile = is_gated ? TILE_OUTPUTS / 2 : TILE_OUTPUTS, first = job.group * per_tile, inputs = job.inputs;
    threadgroup float *activations = shared;
    threadgroup half *unpacked = (threadgroup half *)(shared + TILE_ROWS * TILE_INPUTS);

    // Two threads to a row of the matrix, sixteen inputs each; four to a row of the activation.
    const uint column = thread_index / 2, at_row = thread_index / 4;
    const bool is_up = is_gated && column >= per_tile;
    device const uchar *weight = row_of(is_up ? job.up_weight : job.weight, job, first + column % per_tile);
    device const float *x = input_of(job, first_row + at_row);

    simdgroup_float8x8 sums[2][4];
    UNROLLED (uint i = 0; i < 2; i++) {
        UNROLLED (uint j = 0; j < 4; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint start = 0; start < inputs; start += TILE_INPUTS) {
        UNROLLED (uint i = 0; i < 2; i++) {
            const uint k = thread_index % 2 * 2 + i, at = start / CELL + k;
            Octet values;
            UNROLLED (uint j = 0; j < 8; j++) values.v[j] = 0.0f;
            if (CELL * at < inputs) {
                WITH_FORMAT(job.format, values = weights<F>(weight, at, inputs))
            }
            threadgroup half *cell = unpacked + (column / CELL * TILE_EIGHTS + k) * CELL_VALUES + column % CELL;
            UNROLLED (uint j = 0; j < 8; j++) cell[j * CELL] = (half)values.v[j];
        }
        const uint k = thread_index % 4, at = start / CELL + k;
        threadgroup float *row = activations + (at_row / CELL * TILE_EIGHTS + k) * CELL_VALUES + at_row % CELL * CELL;
        UNROLLED (uint j = 0; j < 8; j++) row[j] = CELL * at + j < inputs ? x[CELL * at + j] : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // A SIMD-group has half of the rows and half of the outputs.
        threadgroup const float *left = activations + simd / 2 * 2 * TILE_EIGHTS * CELL_VALUES;
        threadgroup const half *right = unpacked + simd % 2 * 4 * TILE_EIGHTS * CELL_VALUES;
        UNROLLED (uint k = 0; k < TILE_EIGHTS; k++) {
            simdgroup_float8x8 a[2];
            simdgroup_half8x8 b[4];
            UNROLLED (uint i = 0; i < 2; i++) simdgroup_load(a[i], left + (i * TILE_EIGHTS + k) * CELL_VALUES, CELL);
            UNROLLED (uint j = 0; j < 4; j++) simdgroup_load(b[j], right + (j * TILE_EIGHTS + k) * CELL_VALUES, CELL);
            UNROLLED (uint i = 0; i < 2; i++) {
                UNROLLED (uint j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    UNROLLED (uint i = 0; i < 2; i++) {
        UNROLLED (uint j = 0; j < 4; j++) {
            const uint row = (simd / 2 * 2 + i) * CELL, output = (simd % 2 * 4 + j) * CELL;
            simdgroup_store(sums[i][j], shared + row * TILE_OUTPUTS + output, TILE_OUTPUTS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TILE_ROWS * per_tile; i += TILE_THREADS) {
        const uint row = i / per_tile, output = i % per_tile;
        threadgroup const float *made = shared + row * TILE_OUTPUTS + output;
        if (is_gated) write_gated(job, first_row + row, first + output, made[0], made[TILE_OUTPUTS / 2]);
        else write_product(job, first_row + row, first + output, made[0]);
    }
}

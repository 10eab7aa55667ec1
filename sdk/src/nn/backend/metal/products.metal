// Products of an activation with up to three matrices, each in its own format: one dispatch for queries, keys and values,
// for gate, up and their activation, or for a product that is added to a residual.

constant constexpr uint MATRICES = 3;

struct ProductShape {
    uint rows, inputs;
    uint matrices;                    // 2 where the first gates the second
    uint is_gated, activates, activation;
    uint adds_residual;               // to the first matrix's outputs
    float alpha, limit;
    uint formats[MATRICES], outputs[MATRICES], row_bytes[MATRICES], has_bias[MATRICES];
};

struct Operands {
    device const float *x;
    device const uchar *weights[MATRICES];
    device const float *biases[MATRICES];
    device const float *residual;
    device float *outs[MATRICES];
};

// The part of a threadgroup, if each makes `per_group` outputs.
inline Job job_of(Operands operands, constant ProductShape &shape, uint group, uint per_group) {
    const uint last = shape.is_gated ? 0 : shape.matrices - 1;
    uint which = 0;
    while (which < last) {
        const uint groups = (shape.outputs[which] + per_group - 1) / per_group;
        if (group < groups) break;
        group -= groups;
        which++;
    }
    Job job;
    job.x = operands.x;
    job.weight = which == 0 ? operands.weights[0] : which == 1 ? operands.weights[1] : operands.weights[2];
    job.up_weight = operands.weights[1];
    job.bias = which == 0 ? operands.biases[0] : which == 1 ? operands.biases[1] : operands.biases[2];
    job.up_bias = operands.biases[1];
    job.residual = operands.residual;
    job.out = which == 0 ? operands.outs[0] : which == 1 ? operands.outs[1] : operands.outs[2];
    job.choices = nullptr;
    job.rows = shape.rows;
    job.inputs = shape.inputs;
    job.outputs = shape.outputs[which];
    job.format = shape.formats[which];
    job.row_bytes = shape.row_bytes[which];
    job.has_bias = shape.has_bias[which];
    job.has_up_bias = shape.has_bias[1];
    job.adds_residual = shape.adds_residual;
    job.has_choices = 0;
    job.sharing = 1;
    job.is_gated = shape.is_gated;
    job.activates = shape.activates;
    job.activation = shape.activation;
    job.alpha = shape.alpha;
    job.limit = shape.limit;
    job.group = group;
    return job;
}

#define OPERANDS                                                                                                        \
    device const float *x [[buffer(0)]], device const uchar *weight0 [[buffer(1)]],                                     \
        device const uchar *weight1 [[buffer(2)]], device const uchar *weight2 [[buffer(3)]],                           \
        device const float *bias0 [[buffer(4)]], device const float *bias1 [[buffer(5)]],                               \
        device const float *bias2 [[buffer(6)]], device const float *residual [[buffer(7)]],                            \
        constant ProductShape &shape [[buffer(8)]], device float *out0 [[buffer(9)]],                                   \
        device float *out1 [[buffer(10)]], device float *out2 [[buffer(11)]],                                           \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],                \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]
#define GATHERED                                                                                                        \
    { x, {weight0, weight1, weight2}, {bias0, bias1, bias2}, residual, {out0, out1, out2} }

#define PER_GROUP(outputs) ((shape.is_gated ? (outputs) / 2 : (outputs)))

// The grid is [outputs, rows].
kernel void product_1(OPERANDS) {
    const Operands operands = GATHERED;
    const Job job = job_of(operands, shape, group.x, PER_GROUP(ONE_ROW_SIMDS * ONE_ROW_OUTPUTS));
    product_of_one(job, group.y, lane, simd);
}

// The grid is [outputs, rows / T].
#define FEW_ROWS(T)                                                                                                     \
    kernel void product_##T(OPERANDS) {                                                                                 \
        const Operands operands = GATHERED;                                                                             \
        const Job job = job_of(operands, shape, group.x, PER_GROUP(FEW_SIMDS * SIMD / FEW_LANES * FEW_OUTPUTS));        \
        product_of_few<T>(job, group.y * T, lane, simd);                                                                \
    }
FEW_ROWS(2)
FEW_ROWS(4)
FEW_ROWS(8)

// The grid is [rows / TILE_ROWS, outputs / TILE_OUTPUTS], so that threadgroups that read the same weights run together.
kernel void product_many(OPERANDS, threadgroup float *shared SHARED_AT(0)) {
    const Operands operands = GATHERED;
    const Job job = job_of(operands, shape, group.y, PER_GROUP(TILE_OUTPUTS));
    product_of_many(job, group.x * TILE_ROWS, shared, thread_index, simd);
}

struct EmbedShape {
    uint width, format, row_bytes, tokens;
};

// Rows of a table by the ids of tokens: a thread for each eight values; the grid is [width / 8, tokens].
kernel void embed(device const uchar *table [[buffer(0)]], device const uint *ids [[buffer(1)]],
                  constant EmbedShape &shape [[buffer(2)]], device float *out [[buffer(3)]],
                  uint2 at [[thread_position_in_grid]]) {
    if (8 * at.x >= shape.width) return;
    device const uchar *row = table + (ulong)ids[at.y] * shape.row_bytes;
    Octet values;
    WITH_FORMAT(shape.format, values = weights<F>(row, at.x, shape.width))
    for (uint i = 0; i < min(8u, shape.width - 8 * at.x); i++) out[(ulong)at.y * shape.width + 8 * at.x + i] = values.v[i];
}

// Norms: a threadgroup to a row, and of queries and keys a SIMD-group to a head.

constant constexpr uint NORM_THREADS = 256, NORM_SIMDS = NORM_THREADS / SIMD;

struct NormShape {
    uint width;
    float eps;
};

// The sum over a threadgroup of NORM_THREADS, for every thread.
inline float sum_of_all(float value, threadgroup float *partial, uint lane, uint simd) {
    value = simd_sum(value);
    if (lane == 0) partial[simd] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all = 0.0f;
    for (uint i = 0; i < NORM_SIMDS; i++) all += partial[i];
    return all;
}

kernel void rms_norm(device const float *x [[buffer(0)]], device const float *weight [[buffer(1)]],
                     constant NormShape &shape [[buffer(2)]], device float *out [[buffer(3)]],
                     uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED float partial[NORM_SIMDS];
    const ulong row = (ulong)group.x * shape.width;
    float squares = 0.0f;
    for (uint i = thread_index; i < shape.width; i += NORM_THREADS) squares += x[row + i] * x[row + i];
    const float scale = rsqrt(sum_of_all(squares, partial, lane, simd) / (float)shape.width + shape.eps);
    for (uint i = thread_index; i < shape.width; i += NORM_THREADS) out[row + i] = x[row + i] * scale * weight[i];
}

kernel void layer_norm(device const float *x [[buffer(0)]], device const float *weight [[buffer(1)]],
                       device const float *bias [[buffer(2)]], constant NormShape &shape [[buffer(3)]],
                       device float *out [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED float sums[NORM_SIMDS], partial[NORM_SIMDS];
    const ulong row = (ulong)group.x * shape.width;
    float sum = 0.0f;
    for (uint i = thread_index; i < shape.width; i += NORM_THREADS) sum += x[row + i];
    const float mean = sum_of_all(sum, sums, lane, simd) / (float)shape.width;
    float squares = 0.0f;
    for (uint i = thread_index; i < shape.width; i += NORM_THREADS) {
        const float centred = x[row + i] - mean;
        squares += centred * centred;
    }
    const float scale = rsqrt(sum_of_all(squares, partial, lane, simd) / (float)shape.width + shape.eps);
    for (uint i = thread_index; i < shape.width; i += NORM_THREADS) {
        out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
    }
}

struct HeadNormShape {
    uint tokens, heads, kv_heads, head_dim;
    float eps;
};

// The root-mean-square norms of each head of queries and keys, whose weights are as wide as a head.
kernel void rms_norm_heads(device const float *q [[buffer(0)]], device const float *k [[buffer(1)]],
                           device const float *q_weight [[buffer(2)]], device const float *k_weight [[buffer(3)]],
                           constant HeadNormShape &shape [[buffer(4)]], device float *q_out [[buffer(5)]],
                           device float *k_out [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint queries = shape.tokens * shape.heads, head = group.x * NORM_SIMDS + simd;
    if (head >= queries + shape.tokens * shape.kv_heads) return;
    const bool is_query = head < queries;
    const ulong row = (ulong)(is_query ? head : head - queries) * shape.head_dim;
    device const float *x = (is_query ? q : k) + row, *weight = is_query ? q_weight : k_weight;
    device float *out = (is_query ? q_out : k_out) + row;
    float squares = 0.0f;
    for (uint i = lane; i < shape.head_dim; i += SIMD) squares += x[i] * x[i];
    const float scale = rsqrt(simd_sum(squares) / (float)shape.head_dim + shape.eps);
    for (uint i = lane; i < shape.head_dim; i += SIMD) out[i] = x[i] * scale * weight[i];
}

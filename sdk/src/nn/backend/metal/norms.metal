// Norms: a threadgroup to a row.

struct NormShape {
    uint width;
    float eps;
};

// x + delta, and its root-mean-square norm: a threadgroup of THREADS to a row.
kernel void add_rms_norm(device const float *x [[buffer(0)]], device const float *delta [[buffer(1)]],
                         device const float *weight [[buffer(2)]], constant NormShape &shape [[buffer(3)]],
                         device float *sum_out [[buffer(4)]], device float *out [[buffer(5)]],
                         uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    SHARED float partial[THREADS / SIMD];
    const ulong row = (ulong)group.x * shape.width;
    float squares = 0.0f;
    for (uint i = thread_index; i < shape.width; i += THREADS) {
        const float value = x[row + i] + delta[row + i];
        sum_out[row + i] = value;
        squares += value * value;
    }
    squares = simd_sum(squares);
    if (lane == 0) partial[simd] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all = 0.0f;
    for (uint i = 0; i < THREADS / SIMD; i++) all += partial[i];
    const float scale = rsqrt(all / (float)shape.width + shape.eps);
    for (uint i = thread_index; i < shape.width; i += THREADS) out[row + i] = sum_out[row + i] * scale * weight[i];
}

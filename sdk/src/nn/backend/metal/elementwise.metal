// What is left between products and norms: a thread to a value.

struct ElementShape {
    uint count, width;
    uint has_bias, has_factor, activates, activation;
};

kernel void add(device const float *x [[buffer(0)]], device const float *y [[buffer(1)]],
                constant ElementShape &shape [[buffer(2)]], device float *out [[buffer(3)]],
                uint2 at [[thread_position_in_grid]]) {
    if (at.x < shape.count) out[at.x] = x[at.x] + y[at.x];
}

// activation(gates) · ups.
kernel void gate(device const float *gates [[buffer(0)]], device const float *ups [[buffer(1)]],
                 constant ElementShape &shape [[buffer(2)]], device float *out [[buffer(3)]],
                 uint2 at [[thread_position_in_grid]]) {
    if (at.x < shape.count) out[at.x] = gated(shape.activation, gates[at.x], ups[at.x], 0.0f, 0.0f);
}

// factor · activation(x + bias); bias and factor have a value for each column, and each of the three is optional.
kernel void bias_act_scale(device const float *x [[buffer(0)]], device const float *bias [[buffer(1)]],
                           device const float *factor [[buffer(2)]], constant ElementShape &shape [[buffer(3)]],
                           device float *out [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
    if (at.x >= shape.count) return;
    const uint column = at.x % shape.width;
    float value = x[at.x];
    if (shape.has_bias) value += bias[column];
    if (shape.activates) value = activated(shape.activation, value);
    out[at.x] = shape.has_factor ? value * factor[column] : value;
}

struct ColumnsShape {
    uint rows, width, parts;
    uint starts[4], lens[4];
};

// Up to four ranges of columns; the grid is [values of the largest, ranges].
kernel void columns(device const float *x [[buffer(0)]], constant ColumnsShape &shape [[buffer(1)]],
                    device float *out0 [[buffer(2)]], device float *out1 [[buffer(3)]], device float *out2 [[buffer(4)]],
                    device float *out3 [[buffer(5)]], uint2 at [[thread_position_in_grid]]) {
    const uint part = at.y, len = shape.lens[part];
    if (at.x >= shape.rows * len) return;
    device float *out = part == 0 ? out0 : part == 1 ? out1 : part == 2 ? out2 : out3;
    out[at.x] = x[(ulong)(at.x / len) * shape.width + shape.starts[part] + at.x % len];
}

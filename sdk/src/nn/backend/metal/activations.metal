// Activation functions, and the middle of a gated MLP. Metal has no error function, and its fast tanh is no number far from 0.

// SQUARE is relu(x)².
constant constexpr uint SILU = 0, GELU_ERF = 1, GELU_TANH = 2, CLAMPED = 3, SIGMOID = 4, SOFTPLUS = 5, SQUARE = 6;

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp(-x)); }

// Beyond ± 15 it is ± 1 in single precision, and its exponential would overflow.
inline float tanh_of(float x) {
    const float held = min(max(x, -15.0f), 15.0f);
    return 1.0f - 2.0f / (1.0f + exp(2.0f * held));
}

// To 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline float erf_of(float x) {
    const float size = min(fabs(x), 10.0f), t = 1.0f / (1.0f + 0.3275911f * size);
    const float series = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const float value = 1.0f - series * exp(-size * size);
    return x < 0.0f ? -value : value;
}

// ln(1 + x) for 0 ≤ x ≤ 1, which keeps the digits of a small x.
inline float log_of_one_and(float x) { return x < 0.01f ? x * (1.0f - x * (0.5f - x * (1.0f / 3.0f))) : log(1.0f + x); }

inline float activated(uint kind, float x) {
    if (kind == SILU) return x * sigmoid_of(x);
    if (kind == GELU_ERF) return 0.5f * x * (1.0f + erf_of(x * 0.70710678118654752f));
    if (kind == SQUARE) return x > 0.0f ? x * x : 0.0f;
    if (kind == SIGMOID) return sigmoid_of(x);
    if (kind == SOFTPLUS) return max(x, 0.0f) + log_of_one_and(exp(-fabs(x)));
    return 0.5f * x * (1.0f + tanh_of(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

// activation(gate) · up, or gpt-oss's, whose values are clamped.
inline float gated(uint kind, float gate, float up, float alpha, float limit) {
    if (kind != CLAMPED) return activated(kind, gate) * up;
    const float held = min(gate, limit);
    return held * sigmoid_of(alpha * held) * (min(max(up, -limit), limit) + 1.0f);
}

// One product by llama.cpp's kernels for Arm, so that its instructions can be counted: `count_arm KERNEL ROWS OUTPUTS`, for count_arm.py.
// What is multiplied does not matter, so all of it is zeros.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu.h"
#include "quants.h"
#include "repack.h"

extern "C" void ggml_abort(const char *, int, const char *, ...) { abort(); }

constexpr int COLS = 2048, OUTPUTS_MAX = 256;
using Dot = void(int, float *, size_t, const void *, size_t, const void *, size_t, int);
using Product = void(int, float *, size_t, const void *, const void *, int, int);

struct Kernel {
    const char * name;
    Dot * dot;          // of weights as they are in the file
    Product *gemv, *gemm;  // of weights repacked
    size_t block, block_bytes, x_bytes;  // x: of the same number of values
};

const Kernel KERNELS[] = {
    {"Q4K", ggml_vec_dot_q4_K_q8_K, nullptr, nullptr, QK_K, sizeof(block_q4_K), sizeof(block_q8_K)},
    {"Q6K", ggml_vec_dot_q6_K_q8_K, nullptr, nullptr, QK_K, sizeof(block_q6_K), sizeof(block_q8_K)},
    {"Q8_0", ggml_vec_dot_q8_0_q8_0, nullptr, nullptr, QK8_0, sizeof(block_q8_0), sizeof(block_q8_0)},
    {"Q4_0", ggml_vec_dot_q4_0_q8_0, nullptr, nullptr, QK4_0, sizeof(block_q4_0), sizeof(block_q8_0)},
#ifdef __ARM_FEATURE_MATMUL_INT8
    {"Q4K-repacked", nullptr, ggml_gemv_q4_K_8x8_q8_K, ggml_gemm_q4_K_8x8_q8_K, QK_K, sizeof(block_q4_K), sizeof(block_q8_K)},
    {"Q6K-repacked", nullptr, ggml_gemv_q6_K_8x8_q8_K, ggml_gemm_q6_K_8x8_q8_K, QK_K, sizeof(block_q6_K), sizeof(block_q8_K)},
    {"Q8_0-repacked", nullptr, ggml_gemv_q8_0_4x8_q8_0, ggml_gemm_q8_0_4x8_q8_0, QK8_0, sizeof(block_q8_0), sizeof(block_q8_0)},
    {"Q4_0-repacked", nullptr, ggml_gemv_q4_0_4x8_q8_0, ggml_gemm_q4_0_4x8_q8_0, QK4_0, sizeof(block_q4_0), sizeof(block_q8_0)},
#else
    {"Q4K-repacked", nullptr, ggml_gemv_q4_K_8x4_q8_K, ggml_gemm_q4_K_8x4_q8_K, QK_K, sizeof(block_q4_K), sizeof(block_q8_K)},
    {"Q6K-repacked", nullptr, ggml_gemv_q6_K_8x4_q8_K, ggml_gemm_q6_K_8x4_q8_K, QK_K, sizeof(block_q6_K), sizeof(block_q8_K)},
    {"Q8_0-repacked", nullptr, ggml_gemv_q8_0_4x4_q8_0, ggml_gemm_q8_0_4x4_q8_0, QK8_0, sizeof(block_q8_0), sizeof(block_q8_0)},
    {"Q4_0-repacked", nullptr, ggml_gemv_q4_0_4x4_q8_0, ggml_gemm_q4_0_4x4_q8_0, QK4_0, sizeof(block_q4_0), sizeof(block_q8_0)},
#endif
};

// Rows of activations that one call multiplies, and rows of weights.
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr int TOGETHER = 2;
#else
constexpr int TOGETHER = 1;
#endif

int main(int argc, char ** argv) {
    const Kernel * kernel = nullptr;
    for (const Kernel & each : KERNELS) {
        if (argc == 4 && !strcmp(each.name, argv[1])) kernel = &each;
    }
    const int rows = argc == 4 ? atoi(argv[2]) : 0, outputs = argc == 4 ? atoi(argv[3]) : 0;
    if (!kernel || rows < 1 || outputs > OUTPUTS_MAX) {
        fprintf(stderr, "usage: count_arm KERNEL ROWS OUTPUTS, with at most %d outputs\n", OUTPUTS_MAX);
        return 2;
    }
    const size_t w_row = COLS / kernel->block * kernel->block_bytes, x_row = COLS / kernel->block * kernel->x_bytes;
    std::vector<char> w(OUTPUTS_MAX * w_row), x(rows * x_row);
    std::vector<float> out(rows * OUTPUTS_MAX);
    if (kernel->gemv) {
        (rows == 1 ? kernel->gemv : kernel->gemm)(COLS, out.data(), outputs, w.data(), x.data(), rows, outputs);
        return 0;
    }
    const int n = rows % TOGETHER ? 1 : TOGETHER;
    for (int row = 0; row < rows; row += n) {
        for (int output = 0; output < outputs; output += n) {
            kernel->dot(COLS, &out[row * outputs + output], outputs, &w[output * w_row], w_row, &x[row * x_row], x_row, n);
        }
    }
}

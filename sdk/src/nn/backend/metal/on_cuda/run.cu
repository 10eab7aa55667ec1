// Runs a kernel on an NVIDIA GPU: `run KERNEL X Y Z THREADS BYTES REPEATS`, with buffers as emulation/run.cpp has them. With
// REPEATS it is launched as often again, and the shortest time of a launch goes to stderr, in microseconds.
#include "kernels.cuh"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

constexpr int BUFFERS_MAX = 24;
struct Buffers {
    char *at[BUFFERS_MAX];
    int count;
};

// How many of a kernel's parameters before this one are indices of a thread.
template <size_t I, typename... Parameters> constexpr int indices_before() {
    constexpr bool is_index[] = {std::is_same_v<Parameters, uint>...};
    int count = 0;
    for (size_t i = 0; i < I; i++) count += is_index[i];
    return count;
}

// A kernel's parameters say what it takes, as in emulation/run.cpp.
template <typename T, size_t I, int INDEX>
static __device__ __forceinline__ T argument(const Buffers &buffers, char *shared) {
    if constexpr (std::is_pointer_v<T>) return (T)(I < buffers.count ? buffers.at[I] : shared);
    else if constexpr (std::is_reference_v<T>) return *(std::remove_reference_t<T> *)buffers.at[I];
    else if constexpr (std::is_same_v<T, uint3>) return make_uint3(blockIdx.x, blockIdx.y, blockIdx.z);
    else if constexpr (std::is_same_v<T, uint2>) return make_uint2(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y);
    else return INDEX == 0 ? threadIdx.x : INDEX == 1 ? threadIdx.x % 32 : threadIdx.x / 32;
}

template <typename Kernel> struct Call;
template <typename... Parameters> struct Call<void (*)(Parameters...)> {
    template <auto KERNEL_FUNCTION, size_t... I>
    static __device__ __forceinline__ void with(const Buffers &buffers, char *shared, std::index_sequence<I...>) {
        KERNEL_FUNCTION(argument<Parameters, I, indices_before<I, Parameters...>()>(buffers, shared)...);
    }
    using Indices = std::index_sequence_for<Parameters...>;
};

extern __shared__ uint4 given_memory[];

#define KERNEL(name)                                                                                       \
    __global__ void __launch_bounds__(THREADS_MAX) run_##name(Buffers buffers) {                           \
        using Called = Call<decltype(&name)>;                                                              \
        Called::with<&name>(buffers, (char *)given_memory, Called::Indices());                             \
    }
#include "kernels.inc"
#undef KERNEL

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(5);
}
#define CHECK(call) check(call, #call)

int main(int count, char **args) {
    if (count != 8) return 2;
    std::vector<std::vector<char>> host;
    Buffers buffers{};
    uint64_t length;
    while (fread(&length, sizeof(length), 1, stdin) == 1) {
        std::vector<char> bytes(length);
        if (length && fread(bytes.data(), 1, length, stdin) != length) return 3;
        if (buffers.count == BUFFERS_MAX) return 3;
        char *&at = buffers.at[buffers.count++];
        // Not a byte more than there is, so that memcheck sees what goes past it.
        CHECK(cudaMalloc(&at, length ? length : 4));
        CHECK(cudaMemcpy(at, bytes.data(), length, cudaMemcpyHostToDevice));
        host.push_back(std::move(bytes));
    }
    const std::string name = args[1];
    const dim3 grid(atoi(args[2]), atoi(args[3]), atoi(args[4]));
    const int threads = atoi(args[5]), shared_bytes = atoi(args[6]), repeats = atoi(args[7]);
    void (*body)(Buffers) = nullptr;
#define KERNEL(kernel_name) if (name == #kernel_name) body = run_##kernel_name;
#include "kernels.inc"
    if (!body) return 4;
    body<<<grid, threads, shared_bytes>>>(buffers);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < buffers.count; i++) CHECK(cudaMemcpy(host[i].data(), buffers.at[i], host[i].size(), cudaMemcpyDeviceToHost));
    float best = 1e30f;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < repeats; i++) {
        CHECK(cudaEventRecord(begin));
        body<<<grid, threads, shared_bytes>>>(buffers);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float milliseconds;
        CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        best = milliseconds < best ? milliseconds : best;
    }
    if (repeats > 0) fprintf(stderr, "%.2f\n", 1000.0f * best);
    for (int i = 0; i < buffers.count; i++) {
        CHECK(cudaFree(buffers.at[i]));
        length = host[i].size();
        fwrite(&length, sizeof(length), 1, stdout);
        fwrite(host[i].data(), 1, length, stdout);
    }
    return 0;
}

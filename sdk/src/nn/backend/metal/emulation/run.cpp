// Runs a kernel: `run KERNEL X Y Z THREADS BYTES` over a grid of X · Y · Z threadgroups of THREADS threads, with BYTES of memory
// for each. Reads the kernel's buffers, each as its length and its bytes, and writes them all back.
//
// `kernels.metal` and `kernels.inc`, the names of its kernels as `KERNEL(name)`, lie where the compiler looks for them. A
// kernel's parameters say what it takes: pointers and references are buffers in their order, with the threadgroup's memory
// behind them; then come its position, the thread's index, its lane and its SIMD-group.
#include "kernels.metal"
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>

using Buffer = std::vector<char>;
static std::vector<Buffer> buffers;
static std::vector<char> shared;

// The memory of a threadgroup ends in bytes that no kernel may touch.
constexpr size_t GUARD = 4096;

struct Place {
    uint3 group;
    uint thread_index;
    uint threads;
};

// The arguments of a thread, one after the other.
struct Arguments {
    Place place;
    size_t next = 0;
    uint next_index = 0;

    char *memory() { return next < buffers.size() ? buffers[next++].data() : shared.data(); }

    template <typename T> T take() {
        if constexpr (std::is_pointer_v<T>) return (T)memory();
        else if constexpr (std::is_reference_v<T>) return *(std::remove_reference_t<T> *)memory();
        else if constexpr (std::is_same_v<T, uint3>) return place.group;
        else if constexpr (std::is_same_v<T, uint2>) return uint2{place.group.x * place.threads + place.thread_index, place.group.y};
        else {
            const uint indices[3] = {place.thread_index, place.thread_index % LANES, place.thread_index / LANES};
            return indices[next_index++];
        }
    }
};

template <typename... Parameters> static void call(void (*kernel_function)(Parameters...), Place place) {
    Arguments arguments{place};
    // Braces keep their order.
    std::tuple<Parameters...> taken{arguments.take<Parameters>()...};
    std::apply(kernel_function, taken);
}

static void run(void (*body)(Place), uint3 grid, uint threads) {
    for (uint z = 0; z < grid.z; z++) {
        for (uint y = 0; y < grid.y; y++) {
            for (uint x = 0; x < grid.x; x++) {
                // What a threadgroup's memory holds before it is written is nothing to rely on.
                memset(shared.data(), 0xFF, shared.size());
                run_group(threads, [&](uint index) { body(Place{uint3{x, y, z}, index, threads}); });
                for (size_t i = shared.size() - GUARD; i < shared.size(); i++) {
                    if (shared[i] == (char)0xFF) continue;
                    fprintf(stderr, "a threadgroup writes behind its memory\n");
                    exit(1);
                }
            }
        }
    }
}

int main(int count, char **args) {
    if (count != 7) return 2;
    uint64_t length;
    while (fread(&length, sizeof(length), 1, stdin) == 1) {
        Buffer buffer(length);
        if (length && fread(buffer.data(), 1, length, stdin) != length) return 3;
        buffers.push_back(std::move(buffer));
    }
    shared.resize(atoi(args[6]) + GUARD);
    const std::string name = args[1];
    const uint3 grid{(uint)atoi(args[2]), (uint)atoi(args[3]), (uint)atoi(args[4])};
    void (*body)(Place) = nullptr;
#define KERNEL(kernel_name) \
    if (name == #kernel_name) body = [](Place place) { call(kernel_name, place); };
#include "kernels.inc"
    if (!body) return 4;
    run(body, grid, atoi(args[5]));
    for (const Buffer &buffer : buffers) {
        length = buffer.size();
        fwrite(&length, sizeof(length), 1, stdout);
        fwrite(buffer.data(), 1, length, stdout);
    }
    return 0;
}

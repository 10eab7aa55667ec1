// Runs a kernel of kernels.metal, which lies where the compiler looks for it: `run KERNEL X Y Z BYTES` over a grid of
// X · Y · Z threadgroups (threads for the kernels that take a position in the grid), with BYTES of memory for a threadgroup.
// Reads the kernel's buffers, each as its length and its bytes, and writes them all back.
#include "kernels.metal"
#include <cstring>
#include <string>

using Buffer = std::vector<char>;
static std::vector<Buffer> buffers;
template <typename T> static T *at(size_t index) { return (T *)buffers.at(index).data(); }

template <typename T, typename Kernel> static void run_store(Kernel store, uint3 grid) {
    for (uint y = 0; y < grid.y; y++) {
        for (uint x = 0; x < grid.x; x++) {
            store(at<float>(0), at<float>(1), at<float>(2), at<float>(3), at<float>(4), at<uint>(5), *at<StoreShape>(6),
                  at<float>(7), at<T>(8), at<T>(9), uint2{x, y});
        }
    }
}

template <typename Body> static void for_groups(uint3 grid, Body body) {
    for (uint z = 0; z < grid.z; z++) {
        for (uint y = 0; y < grid.y; y++) {
            for (uint x = 0; x < grid.x; x++) {
                run_group(THREADS, [&](uint thread) { body(uint3{x, y, z}, thread); });
            }
        }
    }
}

template <typename T, typename Kernel> static void run_attend(Kernel attend, uint3 grid, size_t bytes) {
    std::vector<float> shared(bytes / sizeof(float));
    for_groups(grid, [&](uint3 group, uint thread) {
        attend(at<float>(0), at<T>(1), at<T>(2), at<uint4>(3), at<uint>(4), at<float>(5), *at<AttendShape>(6), at<float>(7),
               shared.data(), group, thread, thread % SIMD, thread / SIMD);
    });
}

int main(int count, char **args) {
    if (count != 6) return 2;
    uint64_t length;
    while (fread(&length, sizeof(length), 1, stdin) == 1) {
        Buffer buffer(length);
        if (length && fread(buffer.data(), 1, length, stdin) != length) return 3;
        buffers.push_back(std::move(buffer));
    }
    const std::string name = args[1];
    const uint3 grid{(uint)atoi(args[2]), (uint)atoi(args[3]), (uint)atoi(args[4])};
    if (name == "store_f16") run_store<half>(store_f16, grid);
    else if (name == "store_f32") run_store<float>(store_f32, grid);
    else if (name == "attend_f16") run_attend<half>(attend_f16, grid, atoi(args[5]));
    else if (name == "attend_f32") run_attend<float>(attend_f32, grid, atoi(args[5]));
    else if (name == "add_rms_norm") {
        for_groups(grid, [&](uint3 group, uint thread) {
            add_rms_norm(at<float>(0), at<float>(1), at<float>(2), *at<NormShape>(3), at<float>(4), at<float>(5), group,
                         thread, thread % SIMD, thread / SIMD);
        });
    } else return 4;
    for (const Buffer &buffer : buffers) {
        length = buffer.size();
        fwrite(&length, sizeof(length), 1, stdout);
        fwrite(buffer.data(), 1, length, stdout);
    }
    return 0;
}

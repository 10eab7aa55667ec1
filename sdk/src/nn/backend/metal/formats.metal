// The formats of weights, read as they lie in a file. Each has one function: codes, scale and minimum of eight neighbouring
// values of a row, which are scale · code − minimum. So a product multiplies activations by codes, and applies a scale
// once to eight of them.
//
// Blocks are as ggml lays them out; sdk/kernels/src/quant has what each bit means. A row begins where its tensor is aligned
// (32 bytes) plus a whole number of blocks, which decides what may be loaded at once: 16 bytes from Q4_K and Q5_K, two from
// most, one from MXFP4 and INT4.

struct Eight {
    float code[8], scale, minimum;
};

// Values of an activation, or weights as numbers.
struct Octet {
    float v[8];
};

inline float half_at(device const uchar *at) { return (float)*(device const half *)at; }
inline float single_at(device const uchar *at) {
    return as_type<float>((uint)at[0] | (uint)at[1] << 8 | (uint)at[2] << 16 | (uint)at[3] << 24);
}
// Four bytes from where only two are aligned, or one.
inline uint word_by_halves(device const uchar *at) {
    device const ushort *halves = (device const ushort *)at;
    return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint word_by_bytes(device const uchar *at) {
    return (uint)at[0] | (uint)at[1] << 8 | (uint)at[2] << 16 | (uint)at[3] << 24;
}

constant constexpr uint NIBBLES = 0x0F0F0F0Fu;

// A byte of two words to each code, and `offset` off.
inline Eight eight_bytes(uint low, uint high, float offset) {
    Eight eight;
    UNROLLED (uint i = 0; i < 4; i++) {
        eight.code[i] = (float)(low >> 8 * i & 255u) - offset;
        eight.code[4 + i] = (float)(high >> 8 * i & 255u) - offset;
    }
    eight.minimum = 0.0f;
    return eight;
}
inline Eight eight_signed_bytes(uint low, uint high) {
    return eight_bytes(low ^ 0x80808080u, high ^ 0x80808080u, 128.0f);
}

// Bit i of eight to bit 4 of byte i.
inline uint fifth_bits(uint bits) {
    return (bits & 1u) << 4 | (bits & 2u) << 11 | (bits & 4u) << 18 | (bits & 8u) << 25;
}

// Values that are numbers by themselves. A row need not be a whole number of eights.
template <typename T> struct Dense {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint inputs) {
        device const T *from = (device const T *)row + 8 * at;
        Eight eight;
        if (8 * at + 8 <= inputs) {
            UNROLLED (uint i = 0; i < 8; i++) eight.code[i] = (float)from[i];
        } else {
            UNROLLED (uint i = 0; i < 8; i++) eight.code[i] = 8 * at + i < inputs ? (float)from[i] : 0.0f;
        }
        eight.scale = 1.0f;
        eight.minimum = 0.0f;
        return eight;
    }
};

// The upper half of an f32, a type that not every GPU of Apple's has.
struct Bf16 {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint inputs) {
        device const ushort *from = (device const ushort *)row + 8 * at;
        Eight eight;
        UNROLLED (uint i = 0; i < 8; i++) {
            eight.code[i] = 8 * at + i < inputs ? as_type<float>((uint)from[i] << 16) : 0.0f;
        }
        eight.scale = 1.0f;
        eight.minimum = 0.0f;
        return eight;
    }
};

struct Q8_0 {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * 34, *codes = block + 2 + at % 4 * 8;
        Eight eight = eight_signed_bytes(word_by_halves(codes), word_by_halves(codes + 4));
        eight.scale = half_at(block);
        return eight;
    }
};

// Low nibbles are the first sixteen values of a block, high ones the others.
template <uint BYTES, uint CODES, bool HAS_MINIMUM> struct Nibbles {
    static constant constexpr bool MINIMUM = HAS_MINIMUM;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * BYTES, *codes = block + CODES + at % 2 * 8;
        const uint shift = at % 4 / 2 * 4;
        uint low = word_by_halves(codes) >> shift & NIBBLES, high = word_by_halves(codes + 4) >> shift & NIBBLES;
        const bool has_fifth_bits = BYTES >= 22;
        if (has_fifth_bits) {
            const uint bits = word_by_halves(block + CODES - 4) >> at % 4 * 8;
            low |= fifth_bits(bits);
            high |= fifth_bits(bits >> 4);
        }
        Eight eight = eight_bytes(low, high, HAS_MINIMUM ? 0.0f : has_fifth_bits ? 16.0f : 8.0f);
        eight.scale = half_at(block);
        if (HAS_MINIMUM) eight.minimum = -half_at(block + 2);
        return eight;
    }
};
using Q4_0 = Nibbles<18, 2, false>;
using Q4_1 = Nibbles<20, 4, true>;
using Q5_0 = Nibbles<22, 6, false>;
using Q5_1 = Nibbles<24, 8, true>;

// Places in a table, for both kinds of it.
constant constexpr uchar UNEVEN[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constant constexpr uchar E2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

inline Eight uneven_nibbles(uint low, uint high) {
    Eight eight;
    UNROLLED (uint i = 0; i < 4; i++) {
        eight.code[i] = (float)UNEVEN[low >> 8 * i & 15u] - 128.0f;
        eight.code[4 + i] = (float)UNEVEN[high >> 8 * i & 15u] - 128.0f;
    }
    eight.minimum = 0.0f;
    return eight;
}

struct Iq4Nl {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * 18, *codes = block + 2 + at % 2 * 8;
        const uint shift = at % 4 / 2 * 4;
        Eight eight = uneven_nibbles(word_by_halves(codes) >> shift, word_by_halves(codes + 4) >> shift);
        eight.scale = half_at(block);
        return eight;
    }
};

struct Iq4Xs {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        const uint group = at % 32 / 4, shift = at % 4 / 2 * 4;
        device const uchar *block = row + at / 32 * 136, *codes = block + 8 + 16 * group + at % 2 * 8;
        Eight eight = uneven_nibbles(word_by_halves(codes) >> shift, word_by_halves(codes + 4) >> shift);
        const uint low = (uint)block[4 + group / 2] >> group % 2 * 4 & 15u;
        const uint high = (uint)*(device const ushort *)(block + 2) >> 2 * group & 3u;
        eight.scale = half_at(block) * ((float)(low | high << 4) - 32.0f);
        return eight;
    }
};

// A level is twice its number, so that it is an integer, and a scale half of 2^(exponent − 127).
struct Mxfp4 {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * 17, *codes = block + 1 + at % 2 * 8;
        const uint shift = at % 4 / 2 * 4, exponent = block[0];
        Eight eight;
        UNROLLED (uint i = 0; i < 8; i++) eight.code[i] = (float)E2M1[(uint)codes[i] >> shift & 15u] - 12.0f;
        eight.scale = as_type<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
        eight.minimum = 0.0f;
        return eight;
    }
};

// Integers under scales in f32, as weights of safetensors are put together.
struct Int4 {
    static constant constexpr bool MINIMUM = true;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * 21, *codes = block + 5 + at % 2 * 8;
        const uint shift = at % 4 / 2 * 4;
        Eight eight = eight_bytes(word_by_bytes(codes) >> shift & NIBBLES, word_by_bytes(codes + 4) >> shift & NIBBLES, 0.0f);
        eight.scale = single_at(block);
        eight.minimum = eight.scale * (float)block[4];
        return eight;
    }
};

struct Int8 {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 4 * 36, *codes = block + 4 + at % 4 * 8;
        Eight eight = eight_signed_bytes(word_by_halves(codes), word_by_halves(codes + 4));
        eight.scale = as_type<float>(word_by_halves(block));
        return eight;
    }
};

struct Q2K {
    static constant constexpr bool MINIMUM = true;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 32 * 84;
        const uint within = at % 32, packed = block[within / 2], shift = within % 16 / 4 * 2;
        device const uchar *codes = block + 16 + within / 16 * 32 + within % 4 * 8;
        Eight eight =
            eight_bytes(word_by_halves(codes) >> shift & 0x03030303u, word_by_halves(codes + 4) >> shift & 0x03030303u, 0.0f);
        eight.scale = half_at(block + 80) * (float)(packed & 15u);
        eight.minimum = half_at(block + 82) * (float)(packed >> 4);
        return eight;
    }
};

// The bit of `hmask` takes away 4.
struct Q3K {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 32 * 110;
        const uint within = at % 32, group = within / 2, shift = within % 16 / 4 * 2, bit = within / 4;
        device const uchar *codes = block + 32 + within / 16 * 32 + within % 4 * 8, *mask = block + within % 4 * 8;
        const uint low = (word_by_halves(codes) >> shift & 0x03030303u) | (word_by_halves(mask) >> bit & 0x01010101u) << 2;
        const uint high =
            (word_by_halves(codes + 4) >> shift & 0x03030303u) | (word_by_halves(mask + 4) >> bit & 0x01010101u) << 2;
        Eight eight = eight_bytes(low, high, 4.0f);
        const uint four = (uint)block[96 + group % 8] >> group / 8 * 4 & 15u;
        const uint two = (uint)block[104 + group % 4] >> group / 4 * 2 & 3u;
        eight.scale = half_at(block + 108) * ((float)(four | two << 4) - 32.0f);
        return eight;
    }
};

// Scale and minimum, six bits each, of a group of 32 values, under those of its block.
inline Eight scaled_by_six_bits(Eight eight, uint4 head, uint group) {
    uint scale, minimum;
    const uint shift = 8 * (group % 4);
    if (group < 4) {
        scale = head.y >> shift & 63u;
        minimum = head.z >> shift & 63u;
    } else {
        scale = (head.w >> shift & 15u) | (head.y >> (shift + 6) & 3u) << 4;
        minimum = (head.w >> (shift + 4) & 15u) | (head.z >> (shift + 6) & 3u) << 4;
    }
    eight.scale = (float)as_type<half>((ushort)(head.x & 0xFFFFu)) * (float)scale;
    eight.minimum = (float)as_type<half>((ushort)(head.x >> 16)) * (float)minimum;
    return eight;
}

struct Q4K {
    static constant constexpr bool MINIMUM = true;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 32 * 144;
        const uint group = at % 32 / 4, shift = group % 2 * 4;
        device const uint *codes = (device const uint *)(block + 16 + group / 2 * 32 + at % 4 * 8);
        const Eight eight = eight_bytes(codes[0] >> shift & NIBBLES, codes[1] >> shift & NIBBLES, 0.0f);
        return scaled_by_six_bits(eight, *(device const uint4 *)block, group);
    }
};

struct Q5K {
    static constant constexpr bool MINIMUM = true;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 32 * 176;
        const uint group = at % 32 / 4, shift = group % 2 * 4;
        device const uint *codes = (device const uint *)(block + 48 + group / 2 * 32 + at % 4 * 8);
        device const uint *fifths = (device const uint *)(block + 16 + at % 4 * 8);
        const uint low = (codes[0] >> shift & NIBBLES) | (fifths[0] >> group & 0x01010101u) << 4;
        const uint high = (codes[1] >> shift & NIBBLES) | (fifths[1] >> group & 0x01010101u) << 4;
        return scaled_by_six_bits(eight_bytes(low, high, 0.0f), *(device const uint4 *)block, group);
    }
};

struct Q6K {
    static constant constexpr bool MINIMUM = false;
    static inline Eight eight(device const uchar *row, uint at, uint) {
        device const uchar *block = row + at / 32 * 210;
        const uint within = at % 32, side = within / 16, quarter = within % 16 / 4, part = within % 4 * 8;
        device const uchar *codes = block + 64 * side + 32 * (quarter % 2) + part, *pairs = block + 128 + 32 * side + part;
        const uint shift = quarter / 2 * 4, pair = 2 * quarter;
        const uint low = (word_by_halves(codes) >> shift & NIBBLES) | (word_by_halves(pairs) >> pair & 0x03030303u) << 4;
        const uint high =
            (word_by_halves(codes + 4) >> shift & NIBBLES) | (word_by_halves(pairs + 4) >> pair & 0x03030303u) << 4;
        Eight eight = eight_bytes(low, high, 32.0f);
        eight.scale = half_at(block + 208) * ((float)(block[192 + within / 2] ^ 0x80) - 128.0f);
        return eight;
    }
};

// The formats by the number that shapes give them, in the order of `Format` on the host. `call` is what to do with `F`.
#define WITH_FORMAT(format, call)                                                                                       \
    switch (format) {                                                                                                   \
    case 0: { using F = Dense<float>; call; } break;                                                                    \
    case 1: { using F = Dense<half>; call; } break;                                                                     \
    case 2: { using F = Bf16; call; } break;                                                                            \
    case 3: { using F = Q4_0; call; } break;                                                                            \
    case 4: { using F = Q4_1; call; } break;                                                                            \
    case 5: { using F = Q5_0; call; } break;                                                                            \
    case 6: { using F = Q5_1; call; } break;                                                                            \
    case 7: { using F = Q8_0; call; } break;                                                                            \
    case 8: { using F = Q2K; call; } break;                                                                             \
    case 9: { using F = Q3K; call; } break;                                                                             \
    case 10: { using F = Q4K; call; } break;                                                                            \
    case 11: { using F = Q5K; call; } break;                                                                            \
    case 12: { using F = Q6K; call; } break;                                                                            \
    case 13: { using F = Mxfp4; call; } break;                                                                          \
    case 14: { using F = Iq4Nl; call; } break;                                                                          \
    case 15: { using F = Iq4Xs; call; } break;                                                                          \
    case 16: { using F = Int4; call; } break;                                                                           \
    default: { using F = Int8; call; } break;                                                                           \
    }

// Eight weights as numbers.
template <typename F> inline Octet weights(device const uchar *row, uint at, uint inputs) {
    const Eight eight = F::eight(row, at, inputs);
    Octet octet;
    UNROLLED (uint i = 0; i < 8; i++) octet.v[i] = eight.scale * eight.code[i] - (F::MINIMUM ? eight.minimum : 0.0f);
    return octet;
}

// Numbers by their bits: infinities and what is no number are data here, and fast math takes neither into account.

constant constexpr uint INFINITE = 0x7F800000u, NO_NUMBER = 0x7FC00000u;

inline bool is_number(float x) { return (as_type<uint>(x) & 0x7FFFFFFFu) <= INFINITE; }
inline bool is_finite(float x) { return (as_type<uint>(x) & 0x7FFFFFFFu) < INFINITE; }

// An integer that is ordered as numbers are, with both zeros the same; 0 is below all.
inline uint order_of(float x) {
    const uint bits = as_type<uint>(x);
    if ((bits & 0x7FFFFFFFu) == 0) return 0x80000000u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline uint bits_of_order(uint order) { return order & 0x80000000u ? order & 0x7FFFFFFFu : ~order; }

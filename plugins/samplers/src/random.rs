//! The random numbers for the stages that draw.
//!
//! A seed must give the same tokens in every version and on every platform, which the generators of the standard
//! library and of most crates do not promise. This is xoshiro256++ (Blackman and Vigna 2019,
//! <https://prng.di.unimi.it>), its state filled by SplitMix64 as its authors recommend. All stages of a chain have the
//! same seed, so the stage's name is mixed in: otherwise XTC's coin toss would be correlated with the draw after it.

/// The generator of one stage of one sequence.
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates the generator for the stage of this name.
    pub(crate) fn new(stage: &str, seed: u64) -> Self {
        // FNV-1a over the name.
        let name = stage.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut counter = seed ^ name;
        Self { state: std::array::from_fn(|_| split_mix(&mut counter)) }
    }

    /// A number in [0, 1) with 53 random bits.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }
}

fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*counter ^ (*counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_numbers_of_xoshiro256_plus_plus() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let numbers = [(); 5].map(|()| random.next());
        assert_eq!(
            numbers,
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205]
        );
    }

    #[test]
    fn gives_the_published_numbers_of_split_mix() {
        let mut counter = 1_234_567;
        assert_eq!(split_mix(&mut counter), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut counter), 3_203_168_211_198_807_973);
    }

    #[test]
    fn stages_with_one_seed_draw_different_numbers() {
        assert_ne!(Random::new("xtc", 7).fraction(), Random::new("seeded", 7).fraction());
    }
}

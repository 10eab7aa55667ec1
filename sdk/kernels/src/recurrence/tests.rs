//! Every decay with every update, against the definition in double precision.

use super::super::simd::Level;
use super::*;

const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const KEY_DIM: usize = 7;
const VALUE_DIM: usize = 77;
const TOKENS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fades {
    Head,
    Key,
    Value,
    Element,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Writes {
    Sum,
    Delta,
    RankOne,
}

fn wave(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * step).sin()).collect()
}

/// The inputs of a case. Scales and skips have a value per head, or per column.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    rates: Vec<f32>,
    beta: Vec<f32>,
    from: Vec<f32>,
    into: Vec<f32>,
    skip: Vec<f32>,
}

impl Inputs {
    fn new(fades: Fades, is_wide: bool) -> Self {
        let keys = TOKENS * KEY_HEADS * KEY_DIM;
        let wide = if is_wide { HEADS * VALUE_DIM } else { HEADS };
        let decays = TOKENS
            * HEADS
            * match fades {
                Fades::Head => 1,
                Fades::Key => KEY_DIM,
                Fades::Value | Fades::Element => VALUE_DIM,
            };
        let sign = if fades == Fades::Element { -1.0 } else { 1.0 };
        Self {
            q: wave(keys, 0.7),
            k: wave(keys, 0.3),
            v: wave(TOKENS * HEADS * VALUE_DIM, 0.11),
            decay: wave(decays, 0.9).iter().map(|x| sign * (x - 1.0)).collect(),
            rates: wave(HEADS * KEY_DIM * VALUE_DIM, 0.4).iter().map(|x| x - 1.1).collect(),
            beta: wave(TOKENS * wide, 1.3).iter().map(|x| 0.5 + 0.5 * x).collect(),
            from: wave(keys, 0.5).iter().map(|x| 0.4 * x).collect(),
            into: wave(keys, 0.6).iter().map(|x| 0.4 * x).collect(),
            skip: wave(wide, 0.8),
        }
    }

    /// Logarithm of the factor of an element.
    fn decay(&self, fades: Fades, head: usize, [row, key, column]: [usize; 3]) -> f64 {
        let at = row * HEADS + head;
        f64::from(match fades {
            Fades::Head => self.decay[at],
            Fades::Key => self.decay[at * KEY_DIM + key],
            Fades::Value => self.decay[at * VALUE_DIM + column],
            Fades::Element => {
                self.decay[at * VALUE_DIM + column] * self.rates[(head * KEY_DIM + key) * VALUE_DIM + column]
            }
        })
    }

    fn recurred(&self, fades: Fades, writes: Writes) -> Recurred<'_> {
        let Self { q, k, v, decay, rates, beta, from, into, skip } = self;
        Recurred {
            q,
            k,
            v,
            decay: match fades {
                Fades::Head => Decay::Head(decay),
                Fades::Key => Decay::Key(decay),
                Fades::Value => Decay::Value(decay),
                Fades::Element => Decay::Element { steps: decay, rates },
            },
            beta: Some(beta),
            update: match writes {
                Writes::Sum => Update::Sum,
                Writes::Delta => Update::Delta,
                Writes::RankOne => Update::RankOne { from, into },
            },
            skip: Some(skip),
        }
    }
}

/// A head's column after one more row, and the row's output.
fn step(x: &Inputs, case: (Fades, Writes), [head, key_head, row, column]: [usize; 4], s: &mut [f64]) -> f64 {
    let (fades, writes) = case;
    let key = |x: &[f32], i: usize| f64::from(x[(row * KEY_HEADS + key_head) * KEY_DIM + i]);
    let per = |x: &[f32], rows: usize, row: usize| {
        let is_wide = x.len() == rows * HEADS * VALUE_DIM;
        f64::from(if is_wide { x[(row * HEADS + head) * VALUE_DIM + column] } else { x[row * HEADS + head] })
    };
    let (value, beta) = (f64::from(x.v[(row * HEADS + head) * VALUE_DIM + column]), per(&x.beta, TOKENS, row));
    let before: f64 = s.iter().enumerate().map(|(i, s)| s * key(&x.from, i)).sum();
    s.iter_mut().enumerate().for_each(|(i, s)| *s *= x.decay(fades, head, [row, i, column]).exp());
    let known: f64 = s.iter().enumerate().map(|(i, s)| s * key(&x.k, i)).sum();
    let write = beta * if writes == Writes::Delta { value - known } else { value };
    let before = if writes == Writes::RankOne { before } else { 0.0 };
    s.iter_mut().enumerate().for_each(|(i, s)| *s += write * key(&x.k, i) + before * key(&x.into, i));
    let read: f64 = s.iter().enumerate().map(|(i, s)| s * key(&x.q, i)).sum();
    read + value * per(&x.skip, 1, 0)
}

/// Two sequences, of 5 and 3 rows; the first leaves a copy after 2 rows.
fn check(fades: Fades, writes: Writes, is_wide: bool, interleaved_heads: bool) {
    let shape = Heads { heads: HEADS, key_heads: KEY_HEADS, interleaved_heads, key_dim: KEY_DIM, value_dim: VALUE_DIM };
    let (size, inputs) = (KEY_DIM * VALUE_DIM, Inputs::new(fades, is_wide));
    let begun = [wave(HEADS * size, 0.05), vec![0.0; HEADS * size]];
    for level in Level::available() {
        let pool = Pool::with_level(2, level);
        let mut copy = vec![0.0; HEADS * size];
        let mut states = begun.clone();
        let [first, second] = &mut states;
        let sequences = vec![
            Stretch { rows: 0..5, state: first, copies: vec![(2, &mut copy)] },
            Stretch { rows: 5..8, state: second, copies: vec![] },
        ];
        let out = recurrence(&pool, shape, inputs.recurred(fades, writes), sequences);
        let near = |found: f32, expected: f64| {
            let is_near = (f64::from(found) - expected).abs() < 2e-5 * (1.0 + expected.abs());
            assert!(is_near, "{fades:?}, {writes:?}: {found} {expected}");
        };
        for (rows, begun, found) in [(0..5, &begun[0], &states[0]), (5..8, &begun[1], &states[1])] {
            for (head, column) in (0..HEADS).flat_map(|head| (0..VALUE_DIM).map(move |column| (head, column))) {
                let key_head = if interleaved_heads { head % KEY_HEADS } else { head / (HEADS / KEY_HEADS) };
                let place = |i: usize| head * size + i * VALUE_DIM + column;
                let mut s: Vec<f64> = (0..KEY_DIM).map(|i| f64::from(begun[place(i)])).collect();
                for row in rows.clone() {
                    if row == 2 {
                        s.iter().enumerate().for_each(|(i, s)| near(copy[place(i)], *s));
                    }
                    let expected = step(&inputs, (fades, writes), [head, key_head, row, column], &mut s);
                    near(out[(row * HEADS + head) * VALUE_DIM + column], expected);
                }
                s.iter().enumerate().for_each(|(i, s)| near(found[place(i)], *s));
            }
        }
    }
}

#[test]
fn every_update_of_a_state_that_fades_in_every_way() {
    for fades in [Fades::Head, Fades::Key, Fades::Value, Fades::Element] {
        for writes in [Writes::Sum, Writes::Delta, Writes::RankOne] {
            for (is_wide, interleaved_heads) in [(false, true), (true, false)] {
                check(fades, writes, is_wide, interleaved_heads);
            }
        }
    }
}

#[test]
fn without_scales_a_token_writes_its_values_as_they_are() {
    let inputs = Inputs::new(Fades::Head, false);
    let shape =
        Heads { heads: HEADS, key_heads: KEY_HEADS, interleaved_heads: false, key_dim: KEY_DIM, value_dim: VALUE_DIM };
    let ones = vec![1.0; inputs.beta.len()];
    let [found, expected] = [None, Some(&ones[..])].map(|beta| {
        let mut state = vec![0.0; HEADS * KEY_DIM * VALUE_DIM];
        let x = Recurred { beta, skip: None, ..inputs.recurred(Fades::Head, Writes::Delta) };
        let sequences = vec![Stretch { rows: 0..TOKENS, state: &mut state, copies: vec![] }];
        recurrence(&Pool::new(1), shape, x, sequences)
    });
    assert_eq!(found, expected);
}

#[test]
#[should_panic(expected = "rows 8..3")]
fn rows_that_overlap_are_refused() {
    let inputs = Inputs::new(Fades::Head, false);
    let shape =
        Heads { heads: HEADS, key_heads: KEY_HEADS, interleaved_heads: false, key_dim: KEY_DIM, value_dim: VALUE_DIM };
    let mut states = [(); 2].map(|()| vec![0.0; HEADS * KEY_DIM * VALUE_DIM]);
    let [first, second] = &mut states;
    let reversed = std::ops::Range { start: TOKENS, end: 3 };
    let sequences = vec![
        Stretch { rows: 0..TOKENS, state: first, copies: vec![] },
        Stretch { rows: reversed, state: second, copies: vec![] },
    ];
    recurrence(&Pool::new(1), shape, inputs.recurred(Fades::Head, Writes::Sum), sequences);
}

//! Rotary position embeddings (arXiv 2104.09864) and their scalings for longer contexts.
//!
//! Angles are computed for each step's positions instead of being looked up: a table for a context of 128k costs 64 MB,
//! the sines of a batch take microseconds. They are computed in `f32`, as in training.

use candle_core::Tensor;
use std::{collections::HashMap, f64::consts::PI};

use crate::{
    Error, Result,
    nn::{Step, spec::Rotation},
    weights::{RopeConfig, RopeScaling, RopeStyle},
};

/// The frequencies at which a head's pairs rotate.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    /// Factor for sines and cosines: the attention factor of YaRN and LongRoPE.
    amplitude: f32,
    style: RopeStyle,
    head_dim: usize,
    /// For each frequency the axis of the positions that it multiplies, of time, height and width; empty if positions
    /// have one dimension.
    axes: Vec<u8>,
}

/// Sines and cosines of a step's positions.
#[derive(Clone, Debug)]
pub struct Angles {
    rotation: Rotation,
    /// Rotation of queries, if it differs from that of keys.
    queries: Option<Rotation>,
    head_dim: usize,
}

impl Rope {
    /// Computes the frequencies of a configuration. `context` is the longest sequence that the model is loaded for:
    /// LongRoPE uses its long factors if that exceeds the original context, whatever a sequence's length, so that
    /// cached keys stay valid.
    pub fn new(config: &RopeConfig, head_dim: usize, context: usize) -> Result<Self> {
        let rotary_dim = config.rotary_dim(head_dim)?;
        let half = rotary_dim / 2;
        let plain: Vec<f64> = (0..half).map(|i| config.theta.powf(-((2 * i) as f64) / rotary_dim as f64)).collect();
        let divided = |divisors: &[f32]| plain.iter().zip(divisors).map(|(f, &d)| f / f64::from(d)).collect();
        let (frequencies, amplitude): (Vec<f64>, f64) = match &config.scaling {
            RopeScaling::None => (plain, 1.0),
            RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Divisors(divisors) => (divided(divisors), 1.0),
            RopeScaling::Proportional { factor } => {
                let rotated = (config.partial_rotary_factor * half as f64 + 1e-9) as usize;
                let of = |(i, f): (usize, &f64)| if i < rotated { f / factor } else { 0.0 };
                (plain.iter().enumerate().map(of).collect(), 1.0)
            }
            RopeScaling::LongRope { short, long, original_context, short_attention_factor, long_attention_factor } => {
                if context > *original_context {
                    (divided(long), *long_attention_factor)
                } else {
                    (divided(short), *short_attention_factor)
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let scale =
                    |&f: &f64| llama3(f, *factor, *low_freq_factor, *high_freq_factor, *original_context as f64);
                (plain.iter().map(scale).collect(), 1.0)
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate } => {
                let turns = |beta| correction_dim(beta, rotary_dim, config.theta, *original_context as f64);
                let (mut low, mut high) = (turns(*beta_fast), turns(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min((rotary_dim - 1) as f64));
                // Equal bounds would divide by zero.
                let width = if low == high { 0.001 } else { high - low };
                let scale = |(i, f): (usize, &f64)| {
                    let stretched = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    f / factor * stretched + f * (1.0 - stretched)
                };
                (plain.iter().enumerate().map(scale).collect(), *attention_factor)
            }
        };
        let frequencies = frequencies.into_iter().map(|f| f as f32).collect();
        Ok(Self { frequencies, amplitude: amplitude as f32, style: config.style, head_dim, axes: Vec::new() })
    }

    /// A rotation by positions in several dimensions: each frequency multiplies the position along its axis (0 for time,
    /// 1 for height, 2 for width). Value `i` of a head is rotated with `i + frequencies.len()`.
    pub fn of_axes(frequencies: Vec<f32>, axes: Vec<u8>, head_dim: usize) -> Result<Self> {
        if frequencies.len() != axes.len() || 2 * axes.len() > head_dim || axes.iter().any(|axis| *axis > 2) {
            let message = format!("{} frequencies of {} axes for heads of {head_dim}", frequencies.len(), axes.len());
            return Err(Error::corrupt(message));
        }
        Ok(Self { frequencies, amplitude: 1.0, style: RopeStyle::NeoX, head_dim, axes })
    }

    /// The same rotation of values in another order.
    #[must_use]
    pub fn in_style(self, style: RopeStyle) -> Self {
        Self { style, ..self }
    }

    /// The rotation of vision transformers (2-D RoPE): half of a head's pairs by height, the other half by width.
    pub fn axial(theta: f64, head_dim: usize) -> Result<Self> {
        let quarter = head_dim / 4;
        let frequency = |i: usize| theta.powf(-((2 * i) as f64) / (2 * quarter) as f64) as f32;
        let frequencies = (0..2).flat_map(|_| (0..quarter).map(frequency)).collect();
        let axes = [1, 2].into_iter().flat_map(|axis| std::iter::repeat_n(axis, quarter)).collect();
        Self::of_axes(frequencies, axes, head_dim)
    }

    /// Multimodal RoPE (mRoPE, arXiv 2409.12191): the frequencies are divided into sections for time, height and width,
    /// which follow each other or, if `interleaved`, take turns. Text, whose three positions are equal, is not affected.
    pub fn in_sections(self, [time, height, width]: [usize; 3], interleaved: bool) -> Result<Self> {
        let count = self.frequencies.len();
        if time.checked_add(height).and_then(|sum| sum.checked_add(width)) != Some(count) {
            let message = format!("mRoPE sections of {time}, {height} and {width} for {count} frequencies");
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        let axis = |i: usize| match interleaved {
            true if i % 3 == 1 && i < 3 * height => 1,
            true if i % 3 == 2 && i < 3 * width => 2,
            true => 0,
            false => u8::from(i >= time) + u8::from(i >= time + height),
        };
        Ok(Self { axes: (0..count).map(axis).collect(), ..self })
    }

    /// Computes the angles of these positions, one for each row, in time, height and width.
    pub fn angles_at(&self, positions: &[[u32; 3]], step: &Step<'_>) -> Result<Angles> {
        let half = self.frequencies.len();
        let (mut cos, mut sin) =
            (Vec::with_capacity(positions.len() * half), Vec::with_capacity(positions.len() * half));
        // An image has as many positions as its sides are long, and many more patches.
        let mut known = HashMap::new();
        let of =
            |position: u32| self.frequencies.iter().map(|frequency| (position as f32 * frequency).sin_cos()).collect();
        for position in positions {
            for coordinate in position {
                known.entry(*coordinate).or_insert_with(|| -> Vec<(f32, f32)> { of(*coordinate) });
            }
            let by_axis = position.map(|coordinate| &known[&coordinate][..]);
            let axis = |index: usize| self.axes.get(index).map_or(0, |axis| usize::from(*axis));
            for (s, c) in (0..half).map(|index| by_axis[axis(index)][index]) {
                cos.push(c * self.amplitude);
                sin.push(s * self.amplitude);
            }
        }
        let shape = (positions.len(), half);
        let (cos, sin) = (step.ops().activation_of(cos, shape)?, step.ops().activation_of(sin, shape)?);
        Ok(Angles { rotation: Rotation { cos, sin, style: self.style }, queries: None, head_dim: self.head_dim })
    }

    /// Computes the angles of a step's positions; all layers share them.
    pub fn angles(&self, step: &Step<'_>) -> Result<Angles> {
        if let Some(positions) = step.item_positions().filter(|_| !self.axes.is_empty()) {
            return self.angles_at(&positions, step);
        }
        Ok(Angles { rotation: self.rotation(step, None)?, queries: None, head_dim: self.head_dim })
    }

    /// Angles that also scale each query by a factor of its position, for models that scale attention with length. The
    /// whole head must be rotated.
    pub fn angles_scaling_queries(&self, step: &Step<'_>, factor: impl Fn(u32) -> f32) -> Result<Angles> {
        let factors: Vec<f32> = step.positions().iter().map(|&position| factor(position)).collect();
        Ok(Angles { queries: Some(self.rotation(step, Some(&factors))?), ..self.angles(step)? })
    }

    fn rotation(&self, step: &Step<'_>, factors: Option<&[f32]>) -> Result<Rotation> {
        step.ops().rotation(&self.frequencies, self.amplitude, factors, self.style, &step.pass)
    }
}

impl Angles {
    /// The rotation that queries and keys share; `None` if they differ.
    pub(in crate::nn) fn common(&self) -> Option<&Rotation> {
        self.queries.is_none().then_some(&self.rotation)
    }

    /// Rotates the heads of `x`, of shape `[tokens, heads · head_dim]`, for attention that rotates only part of each
    /// head (MLA). Otherwise pass the angles to [`Attention::forward`](crate::nn::Attention::forward), which is faster.
    pub fn rotate(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().rotate(x, self.head_dim, &self.rotation)
    }

    pub(super) fn rotate_queries(&self, q: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        step.ops().rotate(q, self.head_dim, self.queries.as_ref().unwrap_or(&self.rotation))
    }
}

/// Llama 3's scaling: long wavelengths are stretched, short ones kept, and the ones in between interpolated.
fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original / low {
        frequency / factor
    } else if wavelength < original / high {
        frequency
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// YaRN (arXiv 2309.00071): the dimension that makes `beta` full rotations within the original context.
fn correction_dim(beta: f64, rotary_dim: usize, theta: f64, original: f64) -> f64 {
    rotary_dim as f64 * (original / (beta * 2.0 * PI)).ln() / (2.0 * theta.ln())
}

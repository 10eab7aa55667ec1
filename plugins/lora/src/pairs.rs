//! Collects the factors of low-rank pairs, which files store one by one.

use pensieve_sdk::{Error, LowRankPair, Result, weights::RawTensor};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A larger rank indicates a corrupt file.
const RANK_MAX: usize = 1024;
/// Limit on the values of one factor, so that a small file cannot claim much memory.
const VALUES_MAX: usize = 1 << 28;

/// Limit on the values of an adapter, for the same reason.
const ALL_VALUES_MAX: usize = 1 << 30;

/// Which factor of a pair a tensor holds, and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// `[rank, inputs]`.
    A,
    /// `[outputs, rank]`.
    B,
    /// An embedding's `[rank, rows]`: the columns of B.
    TableA,
    /// The same transposed, `[rows, rank]`.
    TableRows,
    /// An embedding's `[width, rank]`: the columns of A.
    TableB,
}

/// The factors of one target read so far.
#[derive(Default)]
struct PartialPair {
    a: Option<(Half, RawTensor)>,
    b: Option<(Half, RawTensor)>,
}

/// The pairs of one adapter while its tensors are being read.
#[derive(Default)]
pub struct Pairs {
    found: BTreeMap<String, PartialPair>,
    digest: Sha256,
    /// Number of values so far.
    values: usize,
}

impl Pairs {
    /// Adds a tensor to its target's pair.
    pub fn add(&mut self, target: &str, half: Half, tensor: RawTensor) -> Result<()> {
        let values = tensor.shape.iter().fold(1, |values: usize, size| values.saturating_mul(*size));
        self.values = self.values.saturating_add(values);
        if self.values > ALL_VALUES_MAX {
            let message =
                format!("tensor '{}': with it, the adapter has more than {ALL_VALUES_MAX} values", tensor.name);
            return Err(Error::unsupported(message));
        }
        self.digest.update(format!("{target}\0{half:?}\0{:?}\0{:?}\0", tensor.dtype, tensor.shape));
        self.digest.update(&*tensor.data);
        let found = self.found.entry(target.to_owned()).or_default();
        let place = if matches!(half, Half::B | Half::TableB) { &mut found.b } else { &mut found.a };
        if place.is_some() {
            return Err(Error::corrupt(format!("tensor '{}': its weight is changed twice", tensor.name)));
        }
        *place = Some((half, tensor));
        Ok(())
    }

    /// Returns the pairs, scaled by `scale` for each target and rank, and their fingerprint.
    pub fn finish(self, scale: impl Fn(&str, usize) -> Result<f32>) -> Result<(Vec<LowRankPair>, String)> {
        if self.found.is_empty() {
            return Err(Error::corrupt("the adapter changes nothing: it has no low-rank pairs"));
        }
        let mut digest = self.digest;
        let mut pairs = Vec::new();
        for (target, found) in self.found {
            let pair = whole(&target, found, &scale)?;
            digest.update(pair.scale.to_le_bytes());
            pairs.push(pair);
        }
        let fingerprint = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((pairs, fingerprint))
    }
}

fn whole(target: &str, found: PartialPair, scale: &impl Fn(&str, usize) -> Result<f32>) -> Result<LowRankPair> {
    let ((kind, a), (other, b)) = match (found.a, found.b) {
        (Some(a), Some(b)) => (a, b),
        (Some((_, half)), None) | (None, Some((_, half))) => {
            let message = format!("tensor '{}' is half of a pair, and the other half is not there", half.name);
            return Err(Error::corrupt(message).help("the file is damaged, or the adapter was not saved as a whole"));
        }
        (None, None) => return Err(Error::corrupt(format!("'{target}' has no tensors"))),
    };
    if (kind == Half::A) != (other == Half::B) {
        return Err(Error::corrupt(format!("tensors '{}' and '{}' are no pair", a.name, b.name)));
    }
    let (first, second) = (Factor::of(&a)?, Factor::of(&b)?);
    let rank = if kind == Half::TableRows { first.columns } else { first.rows };
    if rank != second.columns {
        let (a, b, other) = (&a.name, &b.name, second.columns);
        return Err(Error::corrupt(format!("tensor '{a}' has rank {rank}, its other half '{b}' has rank {other}")));
    }
    if rank == 0 || rank > RANK_MAX {
        return Err(Error::unsupported(format!("tensor '{}': rank {rank} is outside 1 to {RANK_MAX}", a.name)));
    }
    let scale = scale(target, rank).map_err(|error| error.context(format!("tensor '{}'", a.name)))?;
    if !scale.is_finite() {
        return Err(Error::corrupt(format!("tensor '{}': its scale {scale} is no number", a.name)));
    }
    // An embedding is changed by (B·A)ᵀ, so the factors swap.
    let (a, b) = match kind {
        Half::A => (first, second),
        Half::TableRows => (second.transposed(), first),
        _ => (second.transposed(), first.transposed()),
    };
    let target = target.to_owned();
    Ok(LowRankPair { target, rank, inputs: a.columns, outputs: b.rows, scale, a: a.values, b: b.values })
}

/// The values of one half.
struct Factor {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Factor {
    fn of(tensor: &RawTensor) -> Result<Self> {
        let name = &tensor.name;
        let &[rows, columns] = tensor.shape.as_slice() else {
            let message = format!("tensor '{name}' has shape {:?}, which is no factor of a linear layer", tensor.shape);
            return Err(Error::unsupported(message));
        };
        if rows.checked_mul(columns).is_none_or(|values| values > VALUES_MAX) {
            return Err(Error::unsupported(format!("tensor '{name}' of {rows} × {columns} values is too large")));
        }
        let values = tensor.to_f32()?;
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            let message = format!("tensor '{name}': value {place} is {}, no number to compute with", values[place]);
            return Err(Error::corrupt(message));
        }
        Ok(Self { rows, columns, values })
    }

    fn transposed(self) -> Self {
        let Self { rows, columns, values } = self;
        let column = |column: usize| (0..rows).map(move |row| row * columns + column);
        let values = (0..columns).flat_map(column).map(|place| values[place]).collect();
        Self { rows: columns, columns: rows, values }
    }
}

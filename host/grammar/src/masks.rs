//! Logits masks at work: computed on worker threads while the model computes the logits, then applied to the candidates
//! before the first sampler sees them.

use crate::constraint::Constraint;

/// Lexers recurse, but not deeply.
const STACK_BYTES: usize = 16 << 20;

pub struct Masks {
    pool: rayon::ThreadPool,
}

impl Masks {
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let name = |index| format!("mask {index}");
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES).thread_name(name);
        Ok(Self { pool: builder.build()? })
    }

    /// Computes the masks of all constraints while `forward` runs on the calling thread; returns when both are done.
    pub fn overlap<'a, T>(
        &self,
        constraints: impl IntoIterator<Item = &'a mut Constraint>,
        forward: impl FnOnce() -> T,
    ) -> T {
        self.pool.in_place_scope(|scope| {
            for constraint in constraints.into_iter().filter(|constraint| constraint.is_pending()) {
                scope.spawn(|_| constraint.prepare());
            }
            forward()
        })
    }
}

pub fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask.get((token / u32::BITS) as usize).is_some_and(|word| word >> (token % u32::BITS) & 1 == 1)
}

/// Moves the allowed candidates to the front, keeping their order, and returns their count.
pub fn keep_allowed(mask: &[u32], ids: &mut [u32], logits: &mut [f32]) -> usize {
    let mut kept = 0;
    for index in 0..ids.len().min(logits.len()) {
        if is_allowed(mask, ids[index]) {
            ids[kept] = ids[index];
            logits[kept] = logits[index];
            kept += 1;
        }
    }
    kept
}

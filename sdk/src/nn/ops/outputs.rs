//! Outputs of a step: logits, the best tokens, or candidates.

use candle_core::{DType, Tensor};

use super::Ops;
use crate::{
    CandidateRows, Result,
    nn::backend::{Backend, Taken},
};

impl Ops {
    /// Copies the requested output of rows of logits to the host.
    pub(in crate::nn) fn take(&self, logits: &Tensor, taken: &mut Taken<'_>) -> Result<()> {
        let logits = logits.to_dtype(DType::F32)?;
        match taken {
            Taken::Logits(out) => self.read(&logits, out),
            Taken::Best(out) => {
                let best = self.parts.near([&logits], |part, [logits]| part.best(logits))?;
                self.read(&best, out.as_flattened_mut())
            }
            Taken::Candidates { top, masks, rows } => self.take_candidates(&logits, masks, *top, rows),
        }
    }

    fn take_candidates(&self, logits: &Tensor, masks: &[u32], top: usize, rows: &mut CandidateRows<'_>) -> Result<()> {
        if self.parts.backend(self.place_of(logits)?)?.candidates(logits, masks, top, rows)? {
            return Ok(());
        }
        let (count, width) = logits.dims2()?;
        let mut values = vec![f32::NAN; count * width];
        self.read(logits, &mut values)?;
        let words = width.div_ceil(32);
        for (row, logits) in values.chunks_exact(width).enumerate() {
            let mask = if masks.is_empty() { &[][..] } else { &masks[row * words..][..words] };
            rows.choose(row, top, logits, mask);
        }
        Ok(())
    }

    /// Finding so many candidates of a row on its device is cheaper than copying the row to the host.
    pub(in crate::nn) fn finds_candidates(&self, top: usize) -> bool {
        self.parts.backend(self.place).is_ok_and(|part| part.finds_candidates(top))
    }

    /// Finding the best token of a row where the logits are is cheaper than reading the row here.
    pub(in crate::nn) fn finds_best(&self) -> bool {
        self.parts.backend(self.place).is_ok_and(Backend::finds_best)
    }

    /// Copies an activation's values to the host, once the step has been computed; `out` has as many places.
    pub fn read(&self, x: &Tensor, out: &mut [f32]) -> Result<()> {
        let x = x.to_dtype(DType::F32)?;
        self.parts.backend(self.place_of(&x)?)?.read(&x, out)
    }
}

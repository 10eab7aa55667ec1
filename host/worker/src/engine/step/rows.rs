//! Jobs that ask for a row: takes the hidden rows of a step into their pools, and hands out the rows of texts that end.

use super::Engine;
use crate::engine::{active_jobs::Close, model::Asked, scheduler::Plan};
use pensieve_protocol::job::{Event, Failure};

/// Pooled rows of texts that have ended, by job.
pub(super) type Pooled = Vec<(u64, Result<Vec<f32>, Failure>)>;

impl Engine {
    /// Takes the hidden rows of a step into the pools, and returns the rows of texts that end with it.
    pub(super) fn pool(&mut self, plan: &Plan, asked: &[Asked], hidden: &[f32]) -> Pooled {
        let (width, mut done, mut pooled) = (self.model.card.hidden as usize, 0, Vec::new());
        for (span, asked) in plan.spans.iter().zip(asked) {
            let Some(want) = asked.hidden else { continue };
            let rows = want.rows(span.tokens.len() as u32).unwrap_or(0) as usize;
            let values = hidden.get(done..done + rows * width).unwrap_or_default();
            done += rows * width;
            let Some(pool) = self.jobs.get_mut(span.sequence).and_then(|job| job.pool.as_mut()) else { continue };
            if rows > 0 {
                pool.take(span.tokens.start, values, width);
            }
            if span.logits {
                pooled.push((span.sequence, pool.pooled()));
            }
        }
        pooled
    }

    /// Applies what follows pooling to all rows at once, and ends their jobs.
    pub(super) fn hand_out(&mut self, pooled: Pooled) {
        let (mut ids, mut rows) = (Vec::new(), Vec::new());
        for (id, row) in pooled {
            match row {
                Ok(row) => {
                    ids.push(id);
                    rows.push(row);
                }
                Err(failure) => self.fail(id, failure),
            }
        }
        match self.model.finish(rows) {
            Ok(rows) => ids.into_iter().zip(rows).for_each(|(id, row)| self.end_with(id, row)),
            Err(failure) => ids.into_iter().for_each(|id| self.fail(id, failure.clone())),
        }
    }

    fn end_with(&mut self, id: u64, row: Vec<f32>) {
        let finished = self.jobs.get(id).and_then(|job| job.pool.as_ref()).map(|pool| pool.finished(row));
        match finished {
            Some(Ok(values)) => {
                let Some(job) = self.close(id, Close::Intact) else { return };
                self.events.push((id, Event::Row { values, usage: job.usage() }));
            }
            Some(Err(failure)) => self.fail(id, failure),
            None => {}
        }
    }
}

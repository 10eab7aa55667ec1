//! Items of prompts in a step: encodes those that prompts are about to reach, tells the model where rows stand, and closes
//! what is no longer needed. Beside streams, encoding takes part of the time that prompts could take, and takes turns
//! with them.

use std::time::{Duration, Instant};

use super::Engine;
use crate::engine::{
    items::CheckedItem,
    model::micros,
    scheduler::{Plan, Span},
};
use pensieve_protocol::job::{Failure, FailureCode};

/// Shares of turns that the encoder may owe.
const DEBT_SHARES: u32 = 4;

/// When the encoder may run.
#[derive(Debug, Default)]
pub(super) struct EncoderTurn {
    /// Prompts leave the current step to the encoder.
    is_encoders: bool,
    /// Time beside streams that the encoder took beyond its share, and has to wait for in its next turns.
    debt: Duration,
    /// It ran in the current step.
    has_run: bool,
}

impl EncoderTurn {
    /// Takes a share beside streams: returns the time that is left of it after the debt.
    fn begin(&mut self, share: Duration) -> Duration {
        let paid = self.debt.min(share);
        self.debt -= paid;
        share - paid
    }

    /// Adds to the debt, which ends after a few turns in any case.
    fn owe(&mut self, time: Duration, share: Duration) {
        self.debt = (self.debt + time).min(DEBT_SHARES * share);
    }
}

impl Engine {
    /// Takes in the items of a job that the scheduler has.
    pub(super) fn register_items(&mut self, id: u64, api_key: &[u8], items: Vec<CheckedItem>) {
        if !items.is_empty() {
            self.items.register(id, api_key, items);
            self.jobs.scheduler_mut().set_gate(id, self.items.gate(id, 0));
        }
    }

    /// Tells the scheduler how far prompts can be computed.
    pub(super) fn set_gates(&mut self) {
        let turn = &mut self.encoder_turn;
        turn.is_encoders = !turn.is_encoders && self.items.has_work();
        let scheduler = self.jobs.scheduler_mut();
        scheduler.yield_prompts(turn.is_encoders);
        if self.items.is_empty() {
            return;
        }
        let progress: Vec<(u64, usize)> = scheduler.progress().collect();
        for (id, computed) in progress {
            scheduler.set_gate(id, self.items.gate(id, computed));
        }
    }

    /// Opens and encodes items for as long as the step allows. Returns the time that it took.
    pub(super) fn encode(&mut self, plan: &Plan) -> Duration {
        if self.items.is_empty() {
            return Duration::ZERO;
        }
        let began = Instant::now();
        for id in &plan.preempted {
            self.jobs.scheduler_mut().set_gate(*id, self.items.gate(*id, 0));
        }
        let computes = |id: u64| plan.spans.iter().any(|span| span.sequence == id);
        let running: Vec<_> = self.jobs.scheduler().progress().map(|(id, done)| (id, done, computes(id))).collect();
        let gave_up = self.items.plan(&running);
        for (id, computed, _) in running.into_iter().filter(|(id, ..)| gave_up.contains(id)) {
            self.place_one(id, computed);
        }
        self.close_items();
        let decodes = plan.spans.iter().filter(|span| span.tokens.len() == 1).count();
        let share = self.jobs.scheduler().spare_time(decodes);
        let turn = &mut self.encoder_turn;
        if decodes == 0 {
            *turn = EncoderTurn::default();
            if self.items.has_work() {
                self.encode_for(began, share);
            }
            return began.elapsed();
        }
        turn.has_run = false;
        let is_prompts = !turn.is_encoders && decodes < plan.spans.len();
        if is_prompts || share.is_zero() {
            return began.elapsed();
        }
        let time = turn.begin(share);
        turn.has_run = !time.is_zero() && self.items.has_work();
        if turn.has_run {
            self.encode_for(began, time);
            self.jobs.scheduler_mut().disturb();
        }
        let took = began.elapsed();
        self.encoder_turn.owe(took.saturating_sub(time), share);
        took
    }

    /// Counts by how much the encoder has slowed down the decodes of its step, which find less in the processor's caches, as
    /// time that it took.
    pub(super) fn charge_encoder(&mut self, plan: &Plan, elapsed: Duration) {
        let decodes = plan.spans.iter().filter(|span| span.tokens.len() == 1).count();
        let (scheduler, turn) = (self.jobs.scheduler(), &mut self.encoder_turn);
        let share = scheduler.spare_time(decodes);
        if turn.has_run && decodes == plan.spans.len() && !share.is_zero() {
            let slower = scheduler.decode_time(decodes).map_or(Duration::ZERO, |alone| elapsed.saturating_sub(alone));
            turn.owe(slower, share);
        }
    }

    fn encode_for(&mut self, began: Instant, share: Duration) {
        while let Some(item) = self.items.next_opening() {
            if let Err(failure) = self.model.open_item(&item) {
                self.model.close_item(item.handle);
                let failed = self.items.failed(item.handle);
                self.fail_with(failed, &failure);
            }
            if began.elapsed() >= share {
                return;
            }
        }
        loop {
            let batch = self.items.next_batch();
            if batch.is_empty() {
                return;
            }
            let encoding = Instant::now();
            let left = self.model.encode_items(&batch, share.saturating_sub(began.elapsed()));
            self.stats.encode_us += micros(encoding.elapsed());
            self.device_failures.note(&left);
            let encoded = left.and_then(|left| {
                let stuck = |message| Failure::new(FailureCode::Plugin, message);
                self.items.encoded(left).map_err(stuck).map(|()| left)
            });
            match encoded {
                Ok(0) => self.stats.encoded_items += batch.len() as u64,
                Ok(_) => {}
                Err(failure) => {
                    let (handles, failed) = self.items.batch_failed();
                    handles.into_iter().for_each(|handle| self.model.close_item(handle));
                    self.fail_with(failed, &failure);
                }
            }
            if began.elapsed() >= share {
                return;
            }
        }
    }

    /// Tells the model about the items of sequences that are about to be computed.
    pub(super) fn place(&mut self, plan: &mut Plan) {
        if !self.items.is_empty() {
            for &Span { sequence, ref tokens, .. } in &plan.spans {
                self.place_one(sequence, tokens.start);
            }
        }
        plan.spans.retain(|span| self.jobs.contains(span.sequence));
    }

    /// Takes back rows that the sequences of a step have passed, and closes them if no other needs them.
    pub(super) fn leave_items(&mut self, plan: &Plan) {
        if self.items.is_empty() {
            return;
        }
        for span in &plan.spans {
            if self.jobs.contains(span.sequence) {
                self.place_one(span.sequence, span.tokens.end);
            }
        }
        self.close_items();
    }

    fn place_one(&mut self, id: u64, computed: usize) {
        let Some(placed) = self.items.to_place(id, computed) else { return };
        let handles = placed.iter().map(|item| item.handle).collect();
        let on = self.jobs.scheduler().state_of(id);
        match self.model.place_items(on, &placed) {
            Ok(()) => self.items.placed(id, on, handles),
            Err(failure) => self.fail(id, failure),
        }
    }

    /// Makes an opaque model forget the rows of a job that ends; its state may go on in another. Any other model forgets
    /// them with the sequence.
    pub(super) fn displace(&mut self, id: u64) {
        let Some(state) = self.items.placed_on(id).filter(|_| self.model.is_opaque()) else { return };
        let Some(placed) = self.items.to_place(id, usize::MAX) else { return };
        // If this fails, so does the next job that goes on from the state, when its own items are placed.
        let _ = self.model.place_items(state, &placed);
    }

    pub(super) fn close_items(&mut self) {
        for handle in self.items.take_unheld() {
            self.model.close_item(handle);
        }
    }

    fn fail_with(&mut self, failed: Vec<(u64, String)>, failure: &Failure) {
        for (id, field) in failed {
            self.fail(id, failure.clone().at(field));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// The encoder's time in 100 turns of 20 ms each, if a piece takes as long as given.
    fn encoded(piece: u64) -> u64 {
        let (mut turn, mut all) = (EncoderTurn::default(), 0);
        for _ in 0..100 {
            let time = turn.begin(ms(20));
            let mut took = 0;
            while !time.is_zero() && ms(took) < time {
                took += piece;
            }
            turn.owe(ms(took).saturating_sub(time), ms(20));
            all += took;
        }
        all
    }

    #[test]
    fn the_encoder_keeps_to_its_share_however_long_its_pieces_are() {
        for piece in [1, 3, 15, 19, 21, 45, 70] {
            let all = encoded(piece);
            assert!((2000 - piece..2000 + piece).contains(&all), "pieces of {piece} ms: {all} of 2000 ms");
        }
    }

    #[test]
    fn a_long_piece_is_waited_for_and_a_debt_has_an_end() {
        let mut turn = EncoderTurn::default();
        assert_eq!(turn.begin(ms(20)), ms(20));
        turn.owe(ms(25), ms(20));
        assert_eq!(turn.begin(ms(20)), Duration::ZERO);
        assert_eq!(turn.begin(ms(20)), ms(15));
        turn.owe(ms(5000), ms(20));
        let waited = std::iter::repeat_with(|| turn.begin(ms(20))).take_while(Duration::is_zero).count();
        assert_eq!(waited, DEBT_SHARES as usize);
    }
}

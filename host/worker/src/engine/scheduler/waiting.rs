//! The queue of waiting sequences. Preempted ones come first, oldest first: nothing newer passes them. Then clients
//! take turns, and each client's requests keep their order: while a request is at the head of its client's queue, every
//! other client is admitted at most once before it, however many requests it has sent.

use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Preempted sequences, by age.
    preempted: BTreeMap<u64, u64>,
    /// Clients in turn order, with their requests; no queue is empty.
    clients: VecDeque<(u64, VecDeque<u64>)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.preempted.len() + self.clients.iter().map(|(_, queue)| queue.len()).sum::<usize>()
    }

    /// Number of a client's waiting requests that have not run yet.
    pub(super) fn of(&self, client: u64) -> usize {
        self.clients.iter().find(|(other, _)| *other == client).map_or(0, |(_, queue)| queue.len())
    }

    pub(super) fn push(&mut self, client: u64, sequence: u64) {
        match self.clients.iter_mut().find(|(other, _)| *other == client) {
            Some((_, queue)) => queue.push_back(sequence),
            None => self.clients.push_back((client, VecDeque::from([sequence]))),
        }
    }

    pub(super) fn push_preempted(&mut self, age: u64, sequence: u64) {
        self.preempted.insert(age, sequence);
    }

    pub(super) fn next(&self) -> Option<u64> {
        let first_sent = || self.clients.front().and_then(|(_, queue)| queue.front());
        self.preempted.values().next().or_else(first_sent).copied()
    }

    /// Removes the sequence that [`Waiting::next`] returned, and ends its client's turn.
    pub(super) fn pop(&mut self) {
        if self.preempted.pop_first().is_none()
            && let Some((client, mut queue)) = self.clients.pop_front()
        {
            queue.pop_front();
            if !queue.is_empty() {
                self.clients.push_back((client, queue));
            }
        }
    }

    pub(super) fn remove(&mut self, sequence: u64) {
        self.preempted.retain(|_, other| *other != sequence);
        for (_, queue) in &mut self.clients {
            queue.retain(|other| *other != sequence);
        }
        self.clients.retain(|(_, queue)| !queue.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut waiting: Waiting) -> Vec<u64> {
        std::iter::from_fn(|| waiting.next().inspect(|_| waiting.pop())).collect()
    }

    #[test]
    fn clients_take_turns_and_keep_their_own_order() {
        let mut waiting = Waiting::default();
        for (client, sequence) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            waiting.push(client, sequence);
        }
        assert_eq!(drain(waiting), [10, 20, 30, 11, 21, 12]);
    }

    #[test]
    fn what_was_preempted_comes_first_and_the_oldest_of_it_before_others() {
        let mut waiting = Waiting::default();
        waiting.push(1, 10);
        waiting.push_preempted(7, 70);
        waiting.push_preempted(3, 30);
        assert_eq!(drain(waiting), [30, 70, 10]);
    }

    #[test]
    fn a_removed_sequence_leaves_the_turns_of_others_alone() {
        let mut waiting = Waiting::default();
        for (client, sequence) in [(1, 10), (2, 20), (3, 30), (3, 31)] {
            waiting.push(client, sequence);
        }
        waiting.push_preempted(1, 40);
        for sequence in [20, 30, 40, 99] {
            waiting.remove(sequence);
        }
        assert_eq!(waiting.len(), 2);
        assert_eq!(drain(waiting), [10, 31]);
    }
}

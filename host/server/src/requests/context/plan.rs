//! Decides what is left out of a conversation that has grown long: a pure function of its sizes.
//!
//! Clients send the whole conversation every time, so a cut has to be found again in each request, and at the same place:
//! otherwise each turn moves it, and each prompt is computed anew from there. The plan is therefore made by walking through
//! the conversation as it grew, from one request to the next. A cut is made in the request in which the conversation has
//! reached its trigger, goes well below it, and stays until what is left has grown to the trigger again.

/// Share of the trigger (1/N) that a repeated clearing has to save, unless the client says how much is worth it.
const WORTH_SHARE: u32 = 8;

/// A conversation in numbers of tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// The system prompt and the tools.
    pub head: u32,
    pub turns: Vec<TurnSize>,
}

#[derive(Clone, Debug)]
pub(super) struct TurnSize {
    pub kind: TurnKind,
    /// Without reasoning.
    pub tokens: u32,
    /// Reasoning, which templates show in the current run only: from the user's last message on.
    pub thoughts: u32,
    /// The results in this turn, in order.
    pub uses: Vec<UseSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnKind {
    /// Instructions in the middle.
    System,
    /// A message of the user.
    Question,
    /// Results of tools.
    Results,
    Answer,
}

/// A call and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UseSize {
    /// Tokens that clearing it saves; `None` if it has to stay.
    pub saves: Option<u32>,
    /// How many of them are the call's input, and the turn of the call.
    pub input: Option<(usize, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    pub clearing: Option<Clearing>,
    /// Prompt size from which turns are left out.
    pub truncation: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Clearing {
    /// Prompt size from which uses are cleared.
    pub tokens: Option<u32>,
    /// Number of uses from which they are cleared.
    pub uses: Option<u32>,
    pub keep: usize,
    pub at_least: Option<u32>,
}

/// The part of a conversation that is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Number of leading uses that are cleared.
    pub cleared: usize,
    /// Turns before this one are left out, except for instructions at the start and for `question`.
    pub first: usize,
    /// The message of the user that the first turn belongs to.
    pub question: Option<usize>,
    /// Size of the prompt.
    pub tokens: u64,
}

/// Number of turns of instructions at the start, which are never left out.
pub(super) fn lead(sizes: &Sizes) -> usize {
    sizes.turns.iter().take_while(|turn| turn.kind == TurnKind::System).count()
}

pub(super) fn plan(sizes: &Sizes, limits: &Limits) -> Plan {
    let mut walk = Walk::new(sizes);
    for place in 0..sizes.turns.len() {
        walk.add(place);
        let is_answered = sizes.turns.get(place + 1).is_none_or(|next| next.kind == TurnKind::Answer);
        if is_answered && sizes.turns[place].kind != TurnKind::Answer {
            walk.request(place, limits);
        }
    }
    walk.plan
}

struct Walk<'a> {
    sizes: &'a Sizes,
    plan: Plan,
    /// Turn, and what clearing saves up to and including it, of each use so far.
    uses: Vec<(usize, u64)>,
    /// Tokens that each turn so far has less because of uses that are cleared: results, and inputs of calls.
    cleared: Vec<u64>,
    /// Reasoning of the current run.
    thoughts: u64,
    /// Latest message of the user before or at each turn so far.
    questions: Vec<Option<usize>>,
}

impl<'a> Walk<'a> {
    fn new(sizes: &'a Sizes) -> Self {
        let plan = Plan { first: lead(sizes), tokens: u64::from(sizes.head), ..Plan::default() };
        Self { sizes, plan, uses: Vec::new(), cleared: vec![0; sizes.turns.len()], thoughts: 0, questions: Vec::new() }
    }

    fn add(&mut self, place: usize) {
        let turn = &self.sizes.turns[place];
        self.plan.tokens += u64::from(turn.tokens) + u64::from(turn.thoughts);
        self.thoughts += u64::from(turn.thoughts);
        let before = self.questions.last().copied().flatten();
        let is_question = turn.kind == TurnKind::Question;
        if is_question {
            self.plan.tokens -= self.thoughts;
            self.thoughts = 0;
        }
        self.questions.push(if is_question { Some(place) } else { before });
        for size in &turn.uses {
            let saved = self.saved(self.uses.len()) + u64::from(size.saves.unwrap_or(0));
            self.uses.push((place, saved));
        }
    }

    /// Tokens that clearing saves in the first `count` uses.
    fn saved(&self, count: usize) -> u64 {
        count.checked_sub(1).map_or(0, |last| self.uses[last].1)
    }

    /// Applies the limits to the prompt of a request that ends with this turn.
    fn request(&mut self, place: usize, limits: &Limits) {
        if let Some(clearing) = limits.clearing {
            self.clear(clearing);
        }
        if limits.truncation.is_some_and(|trigger| self.plan.tokens > u64::from(trigger)) {
            self.truncate(place, limits.truncation.unwrap_or_default());
        }
    }

    fn clear(&mut self, clearing: Clearing) {
        let left = self.uses.len() - self.plan.cleared;
        let is_due = clearing.tokens.is_some_and(|tokens| self.plan.tokens > u64::from(tokens))
            || clearing.uses.is_some_and(|uses| left > uses as usize);
        let until = self.uses.len().saturating_sub(clearing.keep).max(self.plan.cleared);
        let gone = self.uses.partition_point(|(turn, _)| *turn < self.plan.first);
        let gain = self.saved(until.max(gone)) - self.saved(self.plan.cleared.max(gone));
        // Each clearing has the prompt computed again from there.
        let worth = match (self.plan.cleared, clearing.tokens) {
            (1.., Some(tokens)) => tokens / WORTH_SHARE,
            _ => 0,
        };
        if is_due && gain > 0 && gain >= u64::from(clearing.at_least.unwrap_or(worth)) {
            for index in self.plan.cleared..until {
                self.take_out(index);
            }
            self.plan.cleared = until;
        }
    }

    /// Takes what clearing a use saves from the turns that have it. Turns that are left out are not in the sum.
    fn take_out(&mut self, index: usize) {
        let turn = self.uses[index].0;
        let saves = self.saved(index + 1) - self.saved(index);
        let begin = self.uses.partition_point(|(at, _)| *at < turn);
        let input = self.sizes.turns[turn].uses[index - begin].input.filter(|_| saves > 0);
        let (call, input) = input.map_or((turn, 0), |(call, input)| (call, u64::from(input).min(saves)));
        for (turn, tokens) in [(turn, saves - input), (call, input)] {
            let Some(cleared) = self.cleared.get_mut(turn) else { continue };
            *cleared += tokens;
            if turn >= self.plan.first {
                self.plan.tokens = self.plan.tokens.saturating_sub(tokens);
            }
        }
    }

    /// Leaves out turns until half of the room for them is free, or else as many as there are before the current ones.
    fn truncate(&mut self, place: usize, trigger: u32) {
        let head = u64::from(self.sizes.head.min(trigger));
        let goal = head + (u64::from(trigger) - head) / 2;
        let mut left = self.plan.tokens - self.plan.question.map_or(0, |question| self.tokens(question));
        let mut best = None;
        for first in self.plan.first + 1..=place {
            left = left.saturating_sub(self.tokens(first - 1));
            let question = match self.sizes.turns[first].kind {
                TurnKind::Question => None,
                TurnKind::Answer => self.questions[first],
                TurnKind::System | TurnKind::Results => continue,
            };
            let tokens = left + question.map_or(0, |question| self.tokens(question));
            best = Some(Plan { first, question, tokens, ..self.plan });
            if tokens <= goal {
                break;
            }
        }
        self.plan = best.unwrap_or(self.plan);
        // Reasoning that was left out is not taken away again at the end of its run.
        let run = self.questions[place].map_or(0, |question| question + 1).max(self.plan.first);
        self.thoughts = (run..=place).map(|turn| u64::from(self.sizes.turns[turn].thoughts)).sum();
    }

    /// The tokens of a turn in the current prompt, where thoughts before the last question are gone.
    fn tokens(&self, place: usize) -> u64 {
        let turn = &self.sizes.turns[place];
        let is_current = self.questions.last().copied().flatten().is_none_or(|question| place > question);
        let tokens = u64::from(turn.tokens) + if is_current { u64::from(turn.thoughts) } else { 0 };
        tokens.saturating_sub(self.cleared[place])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

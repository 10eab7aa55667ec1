//! Workloads of coding agents against the table, to compare eviction policies: how much of the prompts is found again.
//! Lengths are an eighth of what the clients send; everything follows from the seed.

use std::collections::VecDeque;

use super::*;

const BLOCK: usize = 16;
/// A client's instructions and tools.
const SYSTEM: usize = 2_000;
const SUBAGENT_SYSTEM: usize = 1_000;
const TITLE_SYSTEM: usize = 60;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

struct Workload {
    table: BlockTable,
    random: Random,
    sequence: u64,
    fresh: u32,
    /// Tokens of prompts that an earlier prompt had already, and how many of these were found.
    seen: usize,
    found: usize,
}

/// A conversation, and the tokens that an earlier prompt of it had.
#[derive(Clone)]
struct Session {
    text: Vec<u32>,
    seen: usize,
}

impl Workload {
    fn new(blocks: u32, lru: bool) -> Self {
        let mut table = BlockTable::new(Layout::plain(blocks, BLOCK, 0), &[3; 16]);
        table.is_plain_lru = lru;
        table.index.evicted.limit *= usize::from(!lru);
        Self { table, random: Random(1), sequence: 0, fresh: 1 << 20, seen: 0, found: 0 }
    }

    /// Tokens that occur nowhere else.
    fn tokens(&mut self, count: usize) -> Vec<u32> {
        self.fresh += count as u32;
        (self.fresh - count as u32..self.fresh).collect()
    }

    fn session(&mut self, system: u32, length: usize, seen: bool) -> Session {
        Session {
            text: (0..length as u32).map(|token| system << 16 | token).collect(),
            seen: if seen { length } else { 0 },
        }
    }

    /// A request that adds to a session, and its answer.
    fn turn(&mut self, session: &mut Session, added: usize) {
        let added = added / 2 + self.random.below(added.max(1));
        session.text.extend(self.tokens(added));
        self.sequence += 1;
        let (id, root) = (self.sequence, self.table.root(b""));
        self.table.open(id, root);
        self.table.share(id, &session.text, 0);
        let known = self.table.known(id);
        self.seen += session.seen / BLOCK * BLOCK;
        self.found += known.min(session.seen);
        let answer = 10 + self.random.below(60);
        session.text.extend(self.tokens(answer));
        self.table.extend(id, known, session.text.len()).unwrap();
        self.table.publish(id, &session.text);
        self.table.close(id);
        session.seen = session.text.len();
    }

    /// A prompt that is never continued.
    fn once(&mut self, system: u32, length: usize) {
        let mut session = self.session(system, TITLE_SYSTEM, true);
        self.turn(&mut session, length);
    }

    fn rate(&self) -> f64 {
        self.found as f64 / self.seen as f64
    }

    /// Several people at their agents: sessions of 30 turns, of which the last few are live, with a title at the start,
    /// subagents in between, pages that are summarised, and a compaction.
    fn coding(mut self, live: usize) -> f64 {
        let mut sessions: VecDeque<(Session, usize)> = VecDeque::new();
        let mut begun = 0;
        while begun < 4 * live || !sessions.is_empty() {
            while sessions.len() < live && begun < 4 * live {
                self.once(9, 100);
                sessions.push_back((self.session(1 + begun as u32 % 2, SYSTEM, begun > 1), 0));
                begun += 1;
            }
            let chosen = self.random.below(sessions.len());
            let (mut session, turns) = sessions.remove(chosen).unwrap();
            match self.random.below(16) {
                0 => {
                    let mut subagent = self.session(5, SUBAGENT_SYSTEM, begun > live);
                    (0..6).for_each(|_| self.turn(&mut subagent, 120));
                }
                1 | 2 => self.once(7, 1_500),
                3 if session.text.len() > 2 * SYSTEM => {
                    session.text.truncate(SYSTEM);
                    session.seen = SYSTEM;
                }
                _ => {}
            }
            // A few calls of tools follow one another.
            let calls = 1 + self.random.below(4);
            (0..calls).for_each(|_| self.turn(&mut session, 90));
            if turns + calls < 30 {
                sessions.push_back((session, turns + calls));
            }
        }
        self.rate()
    }

    /// Chats without a beginning in common, one after the other in turn: what LRU is made for.
    fn chats(mut self, live: usize) -> f64 {
        let mut sessions: Vec<Session> = (0..live as u32).map(|_| self.session(0, 0, false)).collect();
        for round in 0..60 {
            for (place, session) in sessions.iter_mut().enumerate() {
                // Each is left for a new one now and then.
                if (round + place) % 9 == 0 {
                    *session = self.session(0, 0, false);
                }
                self.turn(session, 200);
            }
        }
        self.rate()
    }

    /// Long pages that have nothing in common, each read once, beside a conversation.
    fn pages(mut self) -> f64 {
        let mut session = self.session(1, SYSTEM, false);
        for _ in 0..30 {
            self.turn(&mut session, 90);
            let mut page = self.session(0, 0, false);
            self.turn(&mut page, 1_500);
        }
        self.rate()
    }
}

#[test]
fn conversations_keep_their_beginnings_beside_others_and_prompts_used_once() {
    type Play = fn(Workload) -> f64;
    // Blocks, workload, hit rate of LRU at most, hit rate at least: as measured, rounded down.
    let cases: [(u32, &str, Play, f64, f64); 9] = [
        (560, "3 coding", |workload| workload.coding(3), 0.94, 0.93),
        (800, "3 coding", |workload| workload.coding(3), 0.99, 0.98),
        (560, "6 coding", |workload| workload.coding(6), 0.90, 0.89),
        (1_200, "6 coding", |workload| workload.coding(6), 0.99, 0.98),
        (560, "6 chats", |workload| workload.chats(6), 0.88, 0.88),
        (640, "12 chats", |workload| workload.chats(12), 0.03, 0.50),
        (800, "12 chats", |workload| workload.chats(12), 0.26, 0.75),
        (1_200, "12 chats", |workload| workload.chats(12), 1.00, 0.99),
        (640, "pages", Workload::pages, 1.00, 0.99),
    ];
    for (blocks, name, play, most, least) in cases {
        let [old, new] = [true, false].map(|lru| play(Workload::new(blocks, lru)));
        println!("{name}, {blocks} blocks: {old:.3} with LRU, {new:.3}");
        assert!(old <= most && new >= least, "{name}, {blocks} blocks: {old} with LRU, {new}");
        assert!(new > old - 0.01, "{name}, {blocks} blocks: {old} with LRU, {new}");
    }
}

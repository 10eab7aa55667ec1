//! Facts about a model's servers, and how long they hold. No request waits for a refresh, or for a server that has
//! stopped while another one answers.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::{
    Remote,
    facts::{self, Asked, Facts},
    failure,
};
use pensieve_protocol::job::Failure;

/// How long a server's word about itself holds.
const FACTS_AGE_MAX: Duration = Duration::from_secs(300);
/// How long nothing is asked again after nothing has answered.
const FAILURE_AGE_MAX: Duration = Duration::from_secs(1);
/// How much longer others have to answer once a server has said nothing about itself.
const BETTER_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Known {
    state: Mutex<State>,
    /// Held by the request that asks while nothing is known; others wait for it.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Nothing,
    Facts {
        asked: Instant,
        facts: Facts,
        is_refreshed: bool,
    },
    Failed(Instant, Failure),
}

impl Known {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts, or the failure that has just been met; with whether to ask again.
    fn read(&self) -> (Option<Result<Facts, Failure>>, bool) {
        match &mut *self.state() {
            State::Facts { asked, facts, is_refreshed } => {
                let is_old = asked.elapsed() >= FACTS_AGE_MAX;
                (Some(Ok(*facts)), is_old && !mem::replace(is_refreshed, true))
            }
            State::Failed(asked, failure) if asked.elapsed() < FAILURE_AGE_MAX => (Some(Err(failure.clone())), false),
            State::Nothing | State::Failed(..) => (None, false),
        }
    }

    fn write(&self, asked: &Result<Facts, Failure>) {
        let mut state = self.state();
        let now = Instant::now();
        *state = match (asked, &*state) {
            (Ok(facts), _) => State::Facts { asked: now, facts: *facts, is_refreshed: false },
            // What was true a while ago is better than nothing.
            (Err(_), State::Facts { facts, .. }) => State::Facts { asked: now, facts: *facts, is_refreshed: false },
            (Err(failure), _) => State::Failed(now, failure.clone()),
        };
    }
}

/// The facts that the servers give about themselves; the first that answers speaks for all.
pub(super) async fn facts(remote: &Arc<Remote>) -> Result<Facts, Failure> {
    let (known, is_due) = remote.known.read();
    if is_due {
        let remote = remote.clone();
        tokio::spawn(async move { remote.known.write(&ask(&remote).await) });
    }
    if let Some(known) = known {
        return known;
    }
    let _turn = remote.known.asking.lock().await;
    if let (Some(known), _) = remote.known.read() {
        return known;
    }
    let asked = ask(remote).await;
    remote.known.write(&asked);
    asked
}

/// Asks all servers at once.
async fn ask(remote: &Remote) -> Result<Facts, Failure> {
    let settings = remote.replicas.settings();
    let ask = |url| async move { (url, facts::ask(&remote.replicas.client, url, settings).await) };
    let mut asked: FuturesUnordered<_> = settings.urls.iter().map(ask).collect();
    let mut failure = failure::nonsense(&remote.id, "has no address");
    let (mut guess, mut until) = (None, None);
    loop {
        let next = match until {
            None => asked.next().await,
            Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
        };
        match next {
            Some((_, Ok(Asked { facts, is_guess: false }))) => return Ok(facts),
            Some((_, Ok(Asked { facts, is_guess: true }))) => {
                guess = guess.or(Some(facts));
                until = until.or_else(|| Some(Instant::now() + BETTER_WAIT));
            }
            Some((url, Err(why))) => failure = failure::broken(&remote.id, &why.at(url)).failure,
            None => return guess.ok_or(failure),
        }
    }
}

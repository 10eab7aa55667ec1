//! A model's template and tokenizer together.
//!
//! Both come out of a checkpoint, and both can be made to panic, to overflow the stack or to take forever. So they run
//! on a thread of their own with a large stack, under a deadline, and whatever goes wrong there is a [`Failure`] of one
//! request. A thread cannot be ended from without: one that stalls keeps its permit, so that a bad model uses up its own
//! few threads and no more. Scripts are read once and kept while they are among the last ones that were asked for.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    sync::{OnceCell, Semaphore, oneshot},
    time::timeout,
};

use super::{template::Template, tokens::Tokens};
use crate::chat::Conversation;
use pensieve_protocol::{
    card::Card,
    job::{Failure, FailureCode},
};

/// How many scripts are kept; a large tokenizer takes some 100 MB.
const SCRIPTS_MAX: usize = 8;
/// How long reading a template and a tokenizer may take.
const READING_TIME_MAX: Duration = Duration::from_secs(60);
/// How long writing one prompt may take, waiting for a thread included.
const WRITING_TIME_MAX: Duration = Duration::from_secs(20);
/// How many prompts of one model are written at a time.
const WRITERS_MAX: usize = 8;
/// Address space, most of which is never touched.
const STACK_BYTES: usize = 256 << 20;

/// The scripts that were asked for lately.
#[derive(Debug, Default)]
pub struct Scripts {
    /// The last one asked for comes last.
    kept: Mutex<Vec<(Key, Arc<Entry>)>>,
}

/// A model's template and tokenizer.
#[derive(Debug)]
pub struct Script {
    /// Renders conversations.
    pub(crate) template: Template,
    /// Makes tokens of what is rendered.
    pub(crate) tokens: Arc<Tokens>,
    writers: Arc<Semaphore>,
}

/// All of a card that a script depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    fingerprint: String,
    chat_template: Option<String>,
    ids: (Option<u32>, bool, Vec<u32>),
    vocabulary: u32,
    tokenizer_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    script: OnceCell<Arc<Script>>,
    readers: Arc<Semaphore>,
}

impl Scripts {
    /// The script of a card, read if it was not yet.
    pub async fn of(&self, card: &Arc<Card>) -> Result<Arc<Script>, Failure> {
        let entry = self.entry(card);
        let read = || async {
            let card = card.clone();
            run(&entry.readers, READING_TIME_MAX, "reading the model's chat template and tokenizer", move || {
                let tokens = Tokens::of(&card)?;
                let template = Template::of(&card, tokens.specials())?;
                Ok(Arc::new(Script { template, tokens, writers: Arc::new(Semaphore::new(WRITERS_MAX)) }))
            })
            .await
        };
        entry.script.get_or_try_init(read).await.cloned()
    }

    fn entry(&self, card: &Card) -> Arc<Entry> {
        let key = Key {
            fingerprint: card.fingerprint.clone(),
            chat_template: card.chat_template.clone(),
            ids: (card.bos, card.add_bos, card.eos.clone()),
            vocabulary: card.vocabulary,
            tokenizer_bytes: card.tokenizer.len(),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().position(|(known, _)| *known == key).map(|place| kept.remove(place).1);
        let new = || Arc::new(Entry { script: OnceCell::new(), readers: Arc::new(Semaphore::new(1)) });
        let entry = known.unwrap_or_else(new);
        if kept.len() >= SCRIPTS_MAX {
            kept.remove(0);
        }
        kept.push((key, entry.clone()));
        entry
    }
}

impl Script {
    /// The tokens of a conversation up to where the model goes on.
    pub async fn write(
        self: &Arc<Self>,
        conversation: &Arc<Conversation>,
        tools_in_words: Option<String>,
    ) -> Result<Vec<u32>, Failure> {
        let (script, conversation) = (self.clone(), conversation.clone());
        run(&self.writers, WRITING_TIME_MAX, "writing the prompt", move || {
            script.tokens.encode(&script.template.render(&conversation, tools_in_words.as_deref())?)
        })
        .await
    }

    /// The tokens of a plain text.
    pub async fn write_text(self: &Arc<Self>, text: String) -> Result<Vec<u32>, Failure> {
        let script = self.clone();
        run(&self.writers, WRITING_TIME_MAX, "writing the prompt", move || script.tokens.encode_text(&text)).await
    }
}

/// Runs what may go wrong in any way.
async fn run<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    time_max: Duration,
    what: &str,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let internal = |message: &str| Failure::new(FailureCode::Internal, format!("{what} failed: {message}"));
    let work = async {
        let permit = permits.clone().acquire_owned().await.map_err(|_| internal("nobody does it any more"))?;
        let (answer, answered) = oneshot::channel();
        let body = move || {
            // Nothing that a panic leaves half done is seen again, but for the cache, which is then merely smaller.
            let result = catch_unwind(AssertUnwindSafe(work));
            drop(permit);
            let _gone = answer.send(result);
        };
        let builder = thread::Builder::new().name("prompt".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(body).map_err(|error| internal(&error.to_string()))?;
        match answered.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Failure::new(
                FailureCode::Unsupported,
                format!("{what} failed: the template or the tokenizer of this model panicked"),
            )
            .with_help("the checkpoint is damaged, or of a kind that this host does not know")),
        }
    };
    timeout(time_max, work).await.unwrap_or_else(|_| {
        let seconds = time_max.as_secs();
        Err(Failure::new(FailureCode::Unsupported, format!("{what} takes longer than {seconds} seconds"))
            .with_help("the template or the tokenizer of this model may be damaged"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_a_name() {
        let work = || -> Result<(), Failure> { panic!("as a damaged tokenizer may") };
        let failure = run(&permits(), Duration::from_secs(5), "reading", work).await.unwrap_err();
        assert_eq!(failure.message, "reading failed: the template or the tokenizer of this model panicked");
    }

    #[tokio::test]
    async fn what_stalls_fails_in_time_and_keeps_its_thread() {
        let permits = permits();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let work = move || {
            // Nothing is ever sent: it waits until the sender is gone.
            let _ = held.recv();
            Ok(())
        };
        let failure = run(&permits, Duration::from_millis(20), "writing", work).await.unwrap_err();
        assert!(failure.message.contains("takes longer"), "{failure}");
        // No second thread is stalled as long as the first one is.
        let next = run(&permits, Duration::from_millis(20), "writing", || Ok(())).await;
        assert!(next.unwrap_err().message.contains("takes longer"));
        drop(release);
        assert!(run(&permits, Duration::from_secs(5), "writing", || Ok(())).await.is_ok());
    }

    #[tokio::test]
    async fn the_stack_is_deep() {
        fn depth(left: usize) -> usize {
            let here = std::hint::black_box([left; 64]);
            if left == 0 { 0 } else { 1 + depth(here[7] - 1) }
        }
        let deep = run(&permits(), Duration::from_secs(5), "writing", || Ok(depth(100_000))).await.unwrap();
        assert_eq!(deep, 100_000);
    }
}

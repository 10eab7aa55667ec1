//! Media processes: the only place in the server that reads pictures. A process decodes them and has the model's plugin
//! measure and prepare them ([`pensieve_protocol::decoding`]).
//!
//! A process serves one model and one key, since it holds what a stranger's file has made of it, and answers one question at
//! a time, with limits of memory and time. A picture that ends it fails its request; other requests have processes of their
//! own. Results are cached by the digest of the file, per key, so that the next turn of a conversation, which sends every
//! picture again, decodes nothing.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use lru::LruCache;
use sha2::{Digest, Sha256};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    lock,
    process::{Death, Process},
};
use crate::{
    chat::Client,
    fleet::{Fleet, Target},
    shares::{Share, Shares},
};
use pensieve_protocol::{
    decoding::{FILE_BYTES_MAX, MeasuredItem, MediaAnswer, MediaQuestion, Opening, PREPARED_BYTES_MAX, text_bytes_max},
    job::{Failure, FailureCode},
    media::{
        ItemKind, ItemSize, KindUse, LAYOUT_BYTES_MAX, PREPARED_BYTES_MAX as JOB_PREPARED_BYTES_MAX, PreparedBytes,
    },
    outside::Outside,
};

/// Maximum number of processes, busy and idle.
const PROCESSES_MAX: usize = 4;
/// Memory of a process besides its picture: the program, the plugin's library and its dependencies.
const MEMORY_BYTES: u64 = 768 << 20;
/// Memory for each pixel that a picture may have: decoded once or twice, and what a plugin makes of it.
const MEMORY_PER_PIXEL: u64 = 24;
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);
/// A plugin's library is up to some hundred megabytes, which may come from a disk.
const OPEN_TIME_MAX: Duration = Duration::from_secs(30);
const MEASURE_TIME_MAX: Duration = Duration::from_secs(10);
const PREPARE_TIME_MAX: Duration = Duration::from_secs(30);
/// Limits of the cache.
const CACHED_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const CACHED_BYTES_MAX: usize = 256 << 20;
const COMPLAINT_CHARS_MAX: usize = 300;
/// Prepared bytes of one request without its last image, so that a job stays below its limit.
const JOB_BYTES_MAX: usize = JOB_PREPARED_BYTES_MAX - PREPARED_BYTES_MAX;
/// Prepared bytes of all requests until workers have them, beside the cache.
const HELD_BYTES_MAX: usize = 1 << 30;

/// Limits on the pictures of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Number in a request.
    pub count: usize,
    /// Pixels of one picture.
    pub pixels: u64,
}

/// Runs media processes, and caches their results.
#[derive(Debug)]
pub(crate) struct MediaPool {
    program: PathBuf,
    limits: ImageLimits,
    /// One for each process that may be at work.
    permits: Arc<Semaphore>,
    /// The most recently used one last.
    idle: Mutex<Vec<OpenProcess>>,
    cache: Mutex<Cache>,
    /// Prepared bytes of requests, by client.
    held: Shares,
}

/// How much of a picture has to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Its part of a prompt, which follows from its header.
    Measured,
    /// The bytes for a worker as well.
    Prepared,
}

/// A file that a client sent, with the field that it comes from.
#[derive(Clone, Debug)]
pub(crate) struct ImageSource<'a> {
    pub field: &'a str,
    pub bytes: &'a Bytes,
    pub digest: [u8; 32],
}

/// A picture's part of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct ReadItem {
    pub size: ItemSize,
    pub text: String,
    pub rows: u32,
    pub layout: Vec<u8>,
    /// `None` if it was only measured.
    pub prepared: Option<PreparedItem>,
}

#[derive(Clone, Debug)]
pub(crate) struct PreparedItem {
    pub digest: [u8; 32],
    pub bytes: PreparedBytes,
}

/// A process that has opened a model's plugin.
#[derive(Debug)]
struct OpenProcess {
    /// Of the model and the key.
    key: [u8; 32],
    process: Process,
}

/// A process at work, which counts as busy until this is dropped.
#[derive(Debug)]
struct BusyProcess {
    open: OpenProcess,
    _permit: OwnedSemaphorePermit,
}

/// Results by the digest of the file, the model and the key.
#[derive(Debug)]
struct Cache {
    known: LruCache<[u8; 32], Arc<ReadItem>>,
    bytes: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { count: 64, pixels: 50_000_000 }
    }
}

impl MediaPool {
    /// A pool of processes that run this program.
    pub fn new(program: PathBuf, limits: ImageLimits) -> Self {
        Self {
            program,
            limits,
            permits: Arc::new(Semaphore::new(PROCESSES_MAX)),
            idle: Mutex::default(),
            cache: Mutex::new(Cache { known: LruCache::new(CACHED_MAX), bytes: 0 }),
            held: Shares::new(HELD_BYTES_MAX),
        }
    }

    /// Counts prepared bytes for this client until the last clone of the result is dropped.
    pub fn hold(&self, client: u64, prepared: &PreparedBytes) -> Result<PreparedBytes, Failure> {
        struct Held(PreparedBytes, #[allow(dead_code, reason = "it is kept for its drop")] Share);
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let share = self.held.take(client, prepared.len()).ok_or_else(|| {
            let message = "the images of running requests use up this client's share of memory";
            Failure::new(FailureCode::Busy, message).with_help("send less, or try again later")
        })?;
        Ok(Bytes::from_owner(Held(prepared.clone(), share)).into())
    }

    /// Reads pictures for a model, in order.
    pub async fn read(
        &self,
        fleet: &Fleet,
        target: &Target,
        client: &Client,
        files: &[ImageSource<'_>],
        depth: Depth,
    ) -> Result<Vec<Arc<ReadItem>>, Failure> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let media = target.card.media().and_then(|media| media.image.as_ref());
        let Some(image) = media else {
            let message = format!("'{}' reads text only", target.id);
            return Err(Failure::new(FailureCode::Unsupported, message).at(files[0].field));
        };
        let owner = digest(&[target.card_key.as_bytes(), &client.salt]);
        let mut process = None;
        let mut items: Vec<Arc<ReadItem>> = Vec::with_capacity(files.len());
        for file in files {
            let prepared: usize = items.iter().map(|item| item.prepared_bytes()).sum();
            if prepared > JOB_BYTES_MAX {
                let message =
                    format!("the images before this one take more than {JOB_BYTES_MAX} bytes, decoded and prepared");
                return Err(Failure::new(FailureCode::Invalid, message)
                    .at(file.field)
                    .with_help("send fewer or smaller images"));
            }
            let key = digest(&[&owner, &file.digest]);
            if let Some(known) = lock(&self.cache).get(&key, depth) {
                items.push(known);
                continue;
            }
            if file.bytes.len() > FILE_BYTES_MAX {
                let message = format!("the image has {} bytes, more than {FILE_BYTES_MAX}", file.bytes.len());
                return Err(Failure::new(FailureCode::Invalid, message).at(file.field));
            }
            let mut busy: BusyProcess = match process.take() {
                Some(busy) => busy,
                None => self.process(fleet, target, image, owner).await?,
            };
            let item = Arc::new(self.ask(&mut busy.open.process, image, file, depth).await?);
            process = Some(busy);
            lock(&self.cache).put(key, item.clone());
            items.push(item);
        }
        if let Some(BusyProcess { open, .. }) = process {
            lock(&self.idle).push(open);
        }
        Ok(items)
    }

    async fn ask(
        &self,
        process: &mut Process,
        image: &KindUse,
        file: &ImageSource<'_>,
        depth: Depth,
    ) -> Result<ReadItem, Failure> {
        let bytes = PreparedBytes::from(file.bytes.clone());
        let (question, deadline) = match depth {
            Depth::Measured => (MediaQuestion::Measure(bytes), MEASURE_TIME_MAX),
            Depth::Prepared => (MediaQuestion::Prepare(bytes), PREPARE_TIME_MAX),
        };
        let of_image = |what: &str| {
            let what = Outside::new(what).at_most(COMPLAINT_CHARS_MAX).to_string();
            Failure::new(FailureCode::Invalid, format!("the image {what}")).at(file.field)
        };
        let read = match process.ask(&question, deadline).await {
            Ok(MediaAnswer::Measured(item)) if depth == Depth::Measured => ReadItem::of(item, None),
            Ok(MediaAnswer::Prepared { item, digest, prepared }) if depth == Depth::Prepared => {
                ReadItem::of(item, Some(PreparedItem { digest, bytes: prepared }))
            }
            Ok(MediaAnswer::Unreadable(why)) => return Err(of_image(&why)),
            Ok(MediaAnswer::Failed(failure)) => return Err(failure.at(file.field)),
            Ok(_) => return Err(of_image("was answered with something else")),
            Err(death) => return Err(of_image(&death.to_string())),
        };
        if read.is_valid(image, self.limits.pixels) { Ok(read) } else { Err(of_image("was measured wrongly")) }
    }

    /// Returns a process that has opened the model's plugin for this key.
    async fn process(
        &self,
        fleet: &Fleet,
        target: &Target,
        image: &KindUse,
        owner: [u8; 32],
    ) -> Result<BusyProcess, Failure> {
        let permit = timeout(WAIT_TIME_MAX, self.permits.clone().acquire_owned()).await.ok().and_then(Result::ok);
        let permit = permit.ok_or_else(|| {
            Failure::new(FailureCode::Busy, "other requests keep all media processes busy").with_help("try again later")
        })?;
        while let Some(mut open) = self.idle_of(&owner) {
            if open.process.is_alive() {
                return Ok(BusyProcess { open, _permit: permit });
            }
        }
        self.make_room();
        let memory = MEMORY_BYTES.saturating_add(self.limits.pixels.saturating_mul(MEMORY_PER_PIXEL));
        let plugin = fleet.media_plugin(target, memory).await?;
        let failed = |death: &Death| {
            let message = format!("opening the plugin of model '{}' for images {death}", target.id);
            Failure::new(FailureCode::Internal, message)
        };
        let mut process = Process::start(&self.program, "media", &plugin.policy).map_err(|death| failed(&death))?;
        let opening = Opening {
            plugin: plugin.path.clone(),
            architecture: plugin.architecture.clone(),
            image: image.clone(),
            pixels_max: self.limits.pixels,
            // One row or column of all pixels is a line, not a picture.
            side_max: u32::try_from(self.limits.pixels).unwrap_or(u32::MAX),
        };
        match process.ask(&MediaQuestion::Open(Box::new(opening)), OPEN_TIME_MAX).await {
            Ok(MediaAnswer::Opened) => Ok(BusyProcess { open: OpenProcess { key: owner, process }, _permit: permit }),
            Ok(MediaAnswer::Failed(failure)) => Err(failure),
            Ok(_) => Err(failed(&Death::Garbled)),
            Err(death) => Err(failed(&death)),
        }
    }

    fn idle_of(&self, owner: &[u8; 32]) -> Option<OpenProcess> {
        let mut idle = lock(&self.idle);
        let index = idle.iter().rposition(|open| open.key == *owner)?;
        Some(idle.remove(index))
    }

    /// Ends idle processes, the longest unused first, so that with those at work there are at most [`PROCESSES_MAX`].
    fn make_room(&self) {
        let mut idle = lock(&self.idle);
        let surplus = idle.len().saturating_sub(self.permits.available_permits());
        idle.drain(..surplus);
    }
}

impl ReadItem {
    fn of(item: MeasuredItem, prepared: Option<PreparedItem>) -> Self {
        let MeasuredItem { size, text, rows, layout } = item;
        Self { size, text, rows, layout, prepared }
    }

    fn is_valid(&self, image: &KindUse, pixels_max: u64) -> bool {
        let pixels = u64::from(self.size.width) * u64::from(self.size.height);
        self.size.kind == ItemKind::Image
            && (1..=pixels_max).contains(&pixels)
            && (1..=image.rows_max).contains(&self.rows)
            && self.text.len() <= text_bytes_max(self.rows)
            && self.layout.len() <= LAYOUT_BYTES_MAX
    }

    fn prepared_bytes(&self) -> usize {
        self.prepared.as_ref().map_or(0, |prepared| prepared.bytes.len())
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len() + self.layout.len() + self.prepared_bytes()
    }
}

impl Cache {
    fn get(&mut self, key: &[u8; 32], depth: Depth) -> Option<Arc<ReadItem>> {
        let item = self.known.get(key)?;
        (depth == Depth::Measured || item.prepared.is_some()).then(|| item.clone())
    }

    fn put(&mut self, key: [u8; 32], item: Arc<ReadItem>) {
        self.bytes += item.bytes();
        if let Some((_, replaced)) = self.known.push(key, item) {
            self.bytes -= replaced.bytes();
        }
        while self.bytes > CACHED_BYTES_MAX
            && let Some((_, dropped)) = self.known.pop_lru()
        {
            self.bytes -= dropped.bytes();
        }
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

//! Media processes: the only place in the server that reads pictures. A process decodes them and has the model's plugin
//! measure and prepare them ([`pensieve_protocol::decoding`]).
//!
//! A process serves one model and one key, since it holds what a stranger's file has made of it, and answers one question at
//! a time, with limits of memory and time. A picture that ends it fails its request; other requests have processes of their
//! own, and get theirs between the pictures of a request. Results are cached by the digest of the file, per key, so that the
//! next turn of a conversation, which sends every picture again, decodes nothing.

mod cache;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;

use self::cache::{Cache, digest};
use super::{
    lock,
    permits::{Permit, Permits},
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

/// Maximum number of processes, busy and idle, and of those at work for one client.
const PROCESSES_MAX: usize = 4;
const CLIENT_PROCESSES_MAX: usize = 3;
/// Pixels of a picture's longer side: the limit of JPEG and GIF files, which others have to keep, too, as an image of all
/// its pixels in a few rows is a line, not a picture.
const SIDE_MAX: u32 = 65_535;
/// Memory of a process besides its picture: the program, the plugin's library and its dependencies.
const MEMORY_BYTES: u64 = 768 << 20;
/// Memory for each pixel that a picture may have: decoded once or twice, and what a plugin makes of it.
const MEMORY_PER_PIXEL: u64 = 24;
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);
/// A plugin's library is up to some hundred megabytes, which may come from a disk.
const OPEN_TIME_MAX: Duration = Duration::from_secs(30);
const MEASURE_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
const PREPARE_TIME_MAX: Duration = Duration::from_secs(30);
const COMPLAINT_CHARS_MAX: usize = 300;
/// Prepared bytes of one request without its last image, so that a job stays below its limit.
const JOB_BYTES_MAX: usize = JOB_PREPARED_BYTES_MAX - PREPARED_BYTES_MAX;
/// Prepared bytes of all requests until workers have them, beside the cache.
const HELD_BYTES_MAX: usize = 2 << 30;

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
    permits: Permits,
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
    _permit: Permit,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { count: 100, pixels: 50_000_000 }
    }
}

impl MediaPool {
    /// A pool of processes that run this program.
    pub fn new(program: PathBuf, limits: ImageLimits) -> Self {
        Self {
            program,
            limits,
            permits: Permits::new(PROCESSES_MAX, CLIENT_PROCESSES_MAX),
            idle: Mutex::default(),
            cache: Mutex::default(),
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
        let reader =
            Reader { pool: self, image, owner, client: client.share, start: || self.start(fleet, target, image) };
        reader.read(files, depth).await
    }

    /// Starts a process and has it open the model's plugin.
    async fn start(&self, fleet: &Fleet, target: &Target, image: &KindUse) -> Result<Process, Failure> {
        let memory = MEMORY_BYTES.saturating_add(self.limits.pixels.saturating_mul(MEMORY_PER_PIXEL));
        let plugin = fleet.media_plugin(target, memory).await?;
        let failed = |death: &Death| {
            let message = format!("opening the plugin of model '{}' for images {death}", target.id);
            Failure::new(FailureCode::Internal, message)
        };
        let mut process = Process::start(&self.program, "media", &plugin.policy).map_err(|death| failed(&death))?;
        process.widen_pipes();
        let opening = Opening {
            plugin: plugin.path.clone(),
            architecture: plugin.architecture.clone(),
            image: image.clone(),
            pixels_max: self.limits.pixels,
            side_max: SIDE_MAX,
        };
        match process.ask(&MediaQuestion::Open(Box::new(opening)), OPEN_TIME_MAX).await {
            Ok(MediaAnswer::Opened) => Ok(process),
            Ok(MediaAnswer::Failed(failure)) => Err(bounded(&failure)),
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
        let surplus = idle.len().saturating_sub(self.permits.available());
        idle.drain(..surplus);
    }
}

/// Reads the pictures of one request.
struct Reader<'a, S> {
    pool: &'a MediaPool,
    image: &'a KindUse,
    /// Of the model and the key.
    owner: [u8; 32],
    client: u64,
    /// Starts a process that has opened the model's plugin.
    start: S,
}

impl<S, F> Reader<'_, S>
where
    S: Fn() -> F,
    F: Future<Output = Result<Process, Failure>>,
{
    async fn read(&self, files: &[ImageSource<'_>], depth: Depth) -> Result<Vec<Arc<ReadItem>>, Failure> {
        let (mut items, mut prepared, mut known) = (Vec::with_capacity(files.len()), 0, HashSet::new());
        for file in files {
            if prepared > JOB_BYTES_MAX {
                let message =
                    format!("the images before this one take more than {JOB_BYTES_MAX} bytes, decoded and prepared");
                return Err(Failure::new(FailureCode::Invalid, message)
                    .at(file.field)
                    .with_help("send fewer or smaller images"));
            }
            let key = digest(&[&self.owner, &file.digest]);
            let cached = lock(&self.pool.cache).get(&key, depth);
            let item = match cached {
                Some(item) => item,
                None => self.ask_anew(file, depth, key).await?,
            };
            if item.prepared.as_ref().is_some_and(|prepared| known.insert(prepared.digest)) {
                prepared += item.prepared_bytes();
            }
            items.push(item);
        }
        Ok(items)
    }

    async fn ask_anew(&self, file: &ImageSource<'_>, depth: Depth, key: [u8; 32]) -> Result<Arc<ReadItem>, Failure> {
        if file.bytes.len() > FILE_BYTES_MAX {
            let message = format!("the image has {} bytes, more than {FILE_BYTES_MAX}", file.bytes.len());
            return Err(Failure::new(FailureCode::Invalid, message).at(file.field));
        }
        let item = Arc::new(self.ask(file, depth).await?);
        lock(&self.pool.cache).put(key, item.clone());
        Ok(item)
    }

    /// Has one picture read. A process that has answered serves the next picture, whatever the answer; one that takes too
    /// long may do so because the machine is slow, and one may be killed that was idle, so another one gets the picture
    /// before the client has to come again.
    async fn ask(&self, file: &ImageSource<'_>, depth: Depth) -> Result<ReadItem, Failure> {
        let bytes = PreparedBytes::from(file.bytes.clone());
        let (question, deadline) = match depth {
            Depth::Measured => (MediaQuestion::Measure(bytes), MEASURE_TIME_MAX),
            Depth::Prepared => (MediaQuestion::Prepare(bytes), PREPARE_TIME_MAX),
        };
        let of_image = |what: &str| {
            let what = Outside::new(what).at_most(COMPLAINT_CHARS_MAX).to_string();
            Failure::new(FailureCode::Invalid, format!("the image {what}")).at(file.field)
        };
        let mut is_second = false;
        loop {
            let mut busy = self.process().await?;
            let death = match busy.open.process.ask(&question, deadline).await {
                Ok(answer) => {
                    let read = match answer {
                        MediaAnswer::Measured(item) if depth == Depth::Measured => Ok(ReadItem::of(item, None)),
                        MediaAnswer::Prepared { item, digest, prepared } if depth == Depth::Prepared => {
                            Ok(ReadItem::of(item, Some(PreparedItem { digest, bytes: prepared })))
                        }
                        MediaAnswer::Unreadable(why) => Err(of_image(&why)),
                        MediaAnswer::Failed(failure) => Err(bounded(&failure).at(file.field)),
                        _ => return Err(of_image("was answered with something else")),
                    };
                    if read.as_ref().is_ok_and(|read| !read.is_valid(self.image, self.pool.limits.pixels)) {
                        return Err(of_image("was measured wrongly"));
                    }
                    lock(&self.pool.idle).push(busy.open);
                    return read;
                }
                Err(death) => death,
            };
            busy.open.process.end().await;
            match death {
                Death::Overdue(_) if !is_second => is_second = true,
                death if death.is_from_outside() && !is_second => is_second = true,
                Death::Overdue(_) => {
                    let message = format!("reading the image {death}, twice");
                    let help = "try again later, or send a smaller one";
                    return Err(Failure::new(FailureCode::Busy, message).at(file.field).with_help(help));
                }
                death => return Err(of_image(&death.to_string())),
            }
        }
    }

    /// Returns a process that has opened the model's plugin for this key.
    async fn process(&self) -> Result<BusyProcess, Failure> {
        let permit = self.pool.permits.take(self.client, WAIT_TIME_MAX).await.ok_or_else(|| {
            Failure::new(FailureCode::Busy, "other requests keep all media processes busy").with_help("try again later")
        })?;
        while let Some(mut open) = self.pool.idle_of(&self.owner) {
            if open.process.is_alive() {
                return Ok(BusyProcess { open, _permit: permit });
            }
        }
        self.pool.make_room();
        let process = (self.start)().await?;
        Ok(BusyProcess { open: OpenProcess { key: self.owner, process }, _permit: permit })
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
            && self.prepared.as_ref().is_none_or(|prepared| !prepared.bytes.is_empty())
    }

    fn prepared_bytes(&self) -> usize {
        self.prepared.as_ref().map_or(0, |prepared| prepared.bytes.len())
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len() + self.layout.len() + self.prepared_bytes()
    }
}

/// Bounds and escapes the words of a process, which may come from a stranger's file or plugin.
fn bounded(failure: &Failure) -> Failure {
    let text = |text: &str| Outside::new(text).at_most(COMPLAINT_CHARS_MAX).to_string();
    Failure::new(failure.code, text(&failure.message)).with_help(text(&failure.help))
}

//! The engine's interface in safe Rust. No other file knows that the engine is written in C.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr::{self, NonNull},
    sync::Arc,
};

use pensieve_sdk::{Error, Result};

type Weights = c_void;
type State = c_void;

unsafe extern "C" {
    fn engine_sizes(
        path: *const c_char,
        vocabulary: *mut u32,
        width: *mut u32,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
    fn engine_open(
        path: *const c_char,
        vocabulary: *mut u32,
        width: *mut u32,
        error: *mut c_char,
        error_bytes: usize,
    ) -> *mut Weights;
    fn engine_close(engine: *mut Weights);
    fn sequence_new(engine: *const Weights, copied: *const State) -> *mut State;
    fn sequence_free(sequence: *mut State);
    fn sequence_seen(sequence: *const State) -> u32;
    fn sequence_read(
        engine: *const Weights,
        sequence: *mut State,
        tokens: *const u32,
        count: u32,
        rows: u32,
        logits: *mut f32,
    );
    fn sequence_bytes(engine: *const Weights) -> usize;
    fn sequence_save(engine: *const Weights, sequence: *const State, bytes: *mut u8);
    fn sequence_load(engine: *const Weights, sequence: *mut State, bytes: *const u8, count: usize) -> c_int;
}

/// Header of a weights file.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub vocabulary: u32,
    pub width: u32,
}

impl Sizes {
    pub fn read(path: &Path) -> Result<Self> {
        let (name, mut said, mut sizes) = (name(path)?, Said::new(), Self { vocabulary: 0, width: 0 });
        // SAFETY: the name ends with a zero byte, the sizes outlive the call, and at most `Said::BYTES` bytes are
        // written.
        let code =
            unsafe { engine_sizes(name.as_ptr(), &mut sizes.vocabulary, &mut sizes.width, said.place(), Said::BYTES) };
        if code == 0 { Ok(sizes) } else { Err(said.error(path)) }
    }
}

/// Loaded weights.
pub struct Engine {
    weights: NonNull<Weights>,
    pub sizes: Sizes,
}

// SAFETY: the engine guarantees that its weights do not change, so any thread may read them.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

impl Engine {
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let (name, mut said, mut sizes) = (name(path)?, Said::new(), Sizes { vocabulary: 0, width: 0 });
        // SAFETY: the name ends with a zero byte, the sizes outlive the call, and at most `Said::BYTES` bytes are
        // written.
        let weights =
            unsafe { engine_open(name.as_ptr(), &mut sizes.vocabulary, &mut sizes.width, said.place(), Said::BYTES) };
        let weights = NonNull::new(weights).ok_or_else(|| said.error(path))?;
        Ok(Arc::new(Self { weights, sizes }))
    }

    /// Bytes of a saved sequence.
    pub fn sequence_bytes(&self) -> usize {
        // SAFETY: the weights live until this is dropped.
        unsafe { sequence_bytes(self.weights.as_ptr()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: the weights are no longer in use, because sequences keep the engine alive.
        unsafe { engine_close(self.weights.as_ptr()) }
    }
}

/// State of one sequence.
pub struct Sequence {
    engine: Arc<Engine>,
    state: NonNull<State>,
}

// SAFETY: a sequence has its own memory, which one thread at a time uses.
unsafe impl Send for Sequence {}

impl Sequence {
    /// Creates a sequence without tokens, or a copy of another one.
    pub fn new(engine: &Arc<Engine>, copied: Option<&Self>) -> Result<Self> {
        let copied = copied.map_or(ptr::null(), |copied| copied.state.as_ptr().cast_const());
        // SAFETY: the weights live as long as the engine, and `copied` is null or a sequence of the same engine.
        let state = unsafe { sequence_new(engine.weights.as_ptr(), copied) };
        let state = NonNull::new(state).ok_or_else(|| Error::out_of_memory("there is no memory for a sequence"))?;
        Ok(Self { engine: Arc::clone(engine), state })
    }

    /// Number of tokens read.
    pub fn seen(&self) -> usize {
        // SAFETY: the state lives until this is dropped.
        unsafe { sequence_seen(self.state.as_ptr()) as usize }
    }

    /// Reads tokens, and fills rows of logits for the last ones.
    pub fn read(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let Sizes { vocabulary, .. } = self.engine.sizes;
        let rows = logits.len() / vocabulary as usize;
        if rows > tokens.len() || tokens.iter().any(|token| *token >= vocabulary) {
            return Err(Error::invalid(format!("{} tokens cannot be read for {rows} rows", tokens.len())));
        }
        let (count, rows) = (tokens.len() as u32, rows as u32);
        let (weights, state) = (self.engine.weights.as_ptr(), self.state.as_ptr());
        // SAFETY: all tokens are below the vocabulary's size, and `logits` has room for the `rows` rows that are
        // written.
        unsafe { sequence_read(weights, state, tokens.as_ptr(), count, rows, logits.as_mut_ptr()) };
        Ok(())
    }

    pub fn save(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.engine.sequence_bytes()];
        // SAFETY: the buffer has the size that the engine reports.
        unsafe { sequence_save(self.engine.weights.as_ptr(), self.state.as_ptr(), bytes.as_mut_ptr()) };
        bytes
    }

    /// Restores a sequence from the bytes of [`Self::save`]; other bytes are an error.
    pub fn load(engine: &Arc<Engine>, bytes: &[u8]) -> Result<Self> {
        let fresh = Self::new(engine, None)?;
        // SAFETY: the engine reads at most `bytes.len()` bytes.
        let code = unsafe { sequence_load(engine.weights.as_ptr(), fresh.state.as_ptr(), bytes.as_ptr(), bytes.len()) };
        let expected = engine.sequence_bytes();
        let wrong = || Error::corrupt(format!("{} bytes are no sequence, which has {expected}", bytes.len()));
        if code == 0 { Ok(fresh) } else { Err(wrong()) }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // SAFETY: the state belongs to this sequence alone.
        unsafe { sequence_free(self.state.as_ptr()) }
    }
}

/// Buffer for the engine's error message.
struct Said([u8; Self::BYTES]);

impl Said {
    const BYTES: usize = 256;

    fn new() -> Self {
        Self([0; Self::BYTES])
    }

    fn place(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    fn error(&self, path: &Path) -> Error {
        let said = CStr::from_bytes_until_nul(&self.0).map_or("no reason".into(), CStr::to_string_lossy);
        Error::corrupt(said.into_owned()).context(path.display())
    }
}

fn name(path: &Path) -> Result<CString> {
    let name = CString::new(path.as_os_str().as_encoded_bytes());
    name.map_err(|_| Error::invalid(format!("{}: the name has a zero byte", path.display())))
}

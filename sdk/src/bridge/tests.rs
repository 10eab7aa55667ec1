//! Failures inside a wrapped model, simulated by one that fails on demand, and the calls that it receives.

use candle_core::{Device, Tensor};
use std::{
    sync::{Arc, Mutex, OnceLock, mpsc},
    thread,
    time::Duration,
};

use super::{Parts, Pristine, Shape, VarBuilder, Wrapped, model::Bridged};
use crate::{
    Batch, Cache, Code, Error, Model, Output, Resident, Result, Services, Span, Table, Want, services::heard,
    testing::random_checkpoint, weights::Checkpoint,
};

const VOCABULARY: usize = 3;
const FAILS: u32 = 100;
const PANICS: u32 = 101;
const MISSHAPEN: u32 = 102;
const FALLS: u32 = 1000;

/// Its logits are the sum of the tokens read, their number, and 1.
struct Played {
    sum: u32,
    count: usize,
    /// Number of tokens in each call, over all models.
    calls: Arc<Mutex<Vec<usize>>>,
}

impl Wrapped for Played {
    const NAME: &'static str = "played";
    const CLASSES: &'static [&'static str] = &[];

    fn shape(_: &Checkpoint) -> Result<Shape> {
        Err(Error::unsupported("there is no checkpoint"))
    }

    fn load(_: &Parts<'_>) -> Result<Pristine<Self>> {
        Err(Error::unsupported("there is no checkpoint"))
    }

    fn together(&self, past: usize, left: usize) -> usize {
        if past < 4 { left.min(4 - past) } else { 0 }
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle_core::Result<Tensor> {
        let tokens = tokens.squeeze(0)?.to_vec1::<u32>()?;
        assert_eq!(past, self.count);
        assert!(!tokens.contains(&PANICS), "index out of bounds");
        if tokens.contains(&FAILS) {
            candle_core::bail!("shape mismatch in broadcast_add");
        }
        self.calls.lock().unwrap().push(tokens.len());
        (self.sum, self.count) = (self.sum + tokens.iter().sum::<u32>(), past + tokens.len());
        let width = if tokens.contains(&MISSHAPEN) { 2 } else { VOCABULARY };
        Tensor::from_slice(&[self.sum as f32, self.count as f32, 1.0][..width], (1, width), &Device::Cpu)
    }
}

/// Panics on drop once it has read that much.
impl Drop for Played {
    fn drop(&mut self) {
        assert!(self.sum < FALLS, "a buffer is still mapped");
    }
}

struct Rig {
    model: Bridged<Played>,
    calls: Arc<Mutex<Vec<usize>>>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Services::silent())
    }

    fn with(services: Services) -> Self {
        let calls = Arc::<Mutex<Vec<usize>>>::default();
        let shared = Arc::clone(&calls);
        let pristine = Pristine::made_by(move || Ok(Played { sum: 0, count: 0, calls: Arc::clone(&shared) }));
        let (device, note, caches) = ("cpu".into(), String::new(), vec![(Cache::Opaque { bytes: 0 }, 8)]);
        let (weight_bytes, state_bytes, vocabulary, hidden, context) = (0, 0, VOCABULARY as u32, 0, 64);
        let block_tokens = 16;
        let resident =
            Resident { device, note, weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens, caches };
        let model = Bridged::new(pristine, resident, Device::Cpu, 0, services).unwrap();
        Self { model, calls }
    }

    /// Number of sequences' models that are alive.
    fn alive(&self) -> usize {
        // One here, one in the factory.
        Arc::strong_count(&self.calls) - 2
    }

    /// Runs a step of sequences, each with its past and new tokens. Returns the wanted rows.
    fn step(&mut self, spans: &[(u64, usize, &[u32], Want)]) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.2.to_vec()).collect();
        let (mut start, mut rows) = (0, 0);
        let spans = spans.iter().map(|&(sequence, past, tokens, want)| {
            let (len, output, caches) = (tokens.len(), Output::Logits, vec![Table::Opaque]);
            let (mask, adapter, adapter_scale) = (&[][..], 0, 1.0);
            let span = Span { sequence, start, len, past, want, output, mask, adapter, adapter_scale, caches };
            (start, rows) = (start + tokens.len(), rows + want.rows(tokens.len()));
            span
        });
        let spans = spans.collect();
        let mut logits = vec![-1.0; rows * VOCABULARY];
        self.model.forward(&Batch { tokens: &tokens, positions: &tokens, spans, top: 0 }, &mut logits)?;
        Ok(logits.chunks_exact(VOCABULARY).map(<[f32]>::to_vec).collect())
    }
}

#[test]
fn what_goes_wrong_in_one_sequence_is_its_own_affair() {
    for wrong in [FAILS, PANICS, MISSHAPEN] {
        let mut rig = Rig::new();
        let steps = [(1, 0, &[1, 2][..], Want::Last), (2, 0, &[3, 4], Want::Last), (3, 0, &[5], Want::Last)];
        assert_eq!(rig.step(&steps).unwrap(), [[3.0, 2.0, 1.0], [7.0, 2.0, 1.0], [5.0, 1.0, 1.0]]);
        assert_eq!(rig.alive(), 3);
        let rows =
            rig.step(&[(1, 2, &[1], Want::Last), (2, 2, &[wrong], Want::All), (3, 1, &[7], Want::Last)]).unwrap();
        assert_eq!((&rows[0][..], &rows[2][..]), (&[4.0, 3.0, 1.0][..], &[12.0, 2.0, 1.0][..]), "{wrong}");
        assert!(rows[1].iter().all(|logit| logit.is_nan()), "{wrong}: {rows:?}");
        assert_eq!(rig.alive(), 2, "a model that failed is dropped");
        let rows = rig.step(&[(2, 3, &[1], Want::Last), (3, 2, &[1], Want::None), (1, 3, &[1], Want::Last)]).unwrap();
        assert!(rows[0].iter().all(|logit| logit.is_nan()) && rows[1] == [5.0, 4.0, 1.0], "{rows:?}");
        rig.model.release(2);
        assert_eq!(rig.step(&[(2, 0, &[6], Want::Last)]).unwrap(), [[6.0, 1.0, 1.0]]);
    }
}

#[test]
fn what_nobody_waited_for_is_told_with_the_next_logits() {
    let mut rig = Rig::new();
    assert_eq!(rig.step(&[(1, 0, &[FAILS], Want::None), (2, 0, &[1], Want::Last)]).unwrap(), [[1.0, 1.0, 1.0]]);
    let rows = rig.step(&[(1, 1, &[1], Want::Last), (2, 1, &[1], Want::Last)]).unwrap();
    assert!(rows[0][0].is_nan() && rows[1] == [2.0, 2.0, 1.0], "{rows:?}");
    let error = rig.step(&[(1, 2, &[1], Want::Last)]).unwrap_err();
    assert_eq!(error.message, "sequence 1 has failed before");
}

#[test]
fn the_only_sequence_of_a_step_fails_with_its_reason() {
    for (wrong, code, message) in [
        (FAILS, Code::Device, "shape mismatch in broadcast_add"),
        (PANICS, Code::Panicked, "played panicked: index out of bounds"),
        (MISSHAPEN, Code::Invalid, "the logits of played: 2 values do not fill 3 places"),
    ] {
        let error = Rig::new().step(&[(1, 0, &[1, wrong], Want::Last)]).unwrap_err();
        assert_eq!((error.code, error.message.lines().next()), (code, Some(message)));
    }
}

#[test]
fn where_all_sequences_fail_the_first_tells_why_and_the_log_has_the_others() {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&lines);
    let mut rig = Rig::with(heard::by(move |line| heard.lock().unwrap().push(line.to_owned())));
    let error = rig.step(&[(1, 0, &[FAILS], Want::Last), (2, 0, &[PANICS], Want::Last)]).unwrap_err();
    assert_eq!(error.message.lines().next(), Some("shape mismatch in broadcast_add"));
    assert_eq!(rig.alive(), 0);
    let lines = lines.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].starts_with("played: sequence 2 fails: played panicked: index"), "{lines:?}");
}

/// A checkpoint whose tensors are vectors of two.
fn checkpoint_of(names: &[&str]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let tensors: Vec<_> = names.iter().map(|name| ((*name).to_owned(), vec![2])).collect();
    random_checkpoint(folder.path(), r#"{"architectures": ["Played"]}"#, &tensors).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

/// The host's callback may take long, or load tensors itself, so the loader must not hold its lock meanwhile.
#[test]
fn progress_is_told_while_nothing_is_held() {
    let (_folder, checkpoint) = checkpoint_of(&["a", "b"]);
    let tensors = Arc::<OnceLock<VarBuilder<'static>>>::default();
    let (asked, (told, heard)) = (Arc::clone(&tensors), mpsc::channel());
    let services = heard::by(move |name| {
        let (tensors, name, told) = (asked.get().unwrap().clone(), name.to_owned(), told.clone());
        let other = if name == "a" { "b" } else { "a" };
        let _ = thread::spawn(move || told.send((name, tensors.get(2, other).is_ok()))).join();
    });
    let parts = Parts::new(&checkpoint, &Device::Cpu, 8, &services);
    assert!(tensors.set(parts.tensors(&[])).is_ok());
    let loads = Arc::clone(&tensors);
    thread::spawn(move || loads.get().unwrap().get(2, "a").is_ok());
    let first = heard.recv_timeout(Duration::from_secs(20)).expect("the loader waits for itself");
    assert_eq!(first, ("b".to_owned(), true));
}

#[test]
fn an_error_that_candle_got_over_is_not_told_for_a_later_one() {
    let (_folder, checkpoint) = checkpoint_of(&["a"]);
    let services = Services::silent();
    let tensors = Parts::new(&checkpoint, &Device::Cpu, 8, &services).tensors(&[]);
    let absent = Error::from(tensors.get(2, "bias").unwrap_err());
    assert_eq!(absent.code, Code::NotFound, "{absent}");
    assert!(absent.message.contains("bias"), "{absent}");
    let misshapen = Error::from(tensors.get(3, "a").unwrap_err());
    assert!(misshapen.message.contains("'a'") && !misshapen.message.contains("bias"), "{misshapen}");
}

#[test]
fn a_model_that_panics_as_it_is_dropped_takes_nothing_with_it() {
    let mut rig = Rig::new();
    let falling = &[FALLS][..];
    let spans = [1, 2, 3, 4].map(|sequence| (sequence, 0, if sequence < 4 { falling } else { &[5] }, Want::Last));
    rig.step(&spans).unwrap();
    rig.model.release(1);
    assert_eq!(rig.alive(), 3);
    assert_eq!(rig.step(&[(4, 1, &[6], Want::Last)]).unwrap(), [[11.0, 2.0, 1.0]]);
    // Two models remain that panic on drop.
    drop(rig);
}

#[test]
fn a_released_sequence_leaves_nothing() {
    let mut rig = Rig::new();
    rig.step(&[(1, 0, &[1], Want::None), (2, 0, &[1], Want::None)]).unwrap();
    rig.model.release(1);
    rig.model.release(7);
    assert_eq!(rig.alive(), 1);
    let error = rig.step(&[(1, 1, &[1], Want::None)]).unwrap_err();
    assert_eq!((error.code, rig.alive()), (Code::Invalid, 1));
}

#[test]
fn tokens_come_together_as_far_as_the_model_allows_and_one_by_one_where_all_logits_are_wanted() {
    let mut rig = Rig::new();
    let calls = |rig: &Rig| std::mem::take(&mut *rig.calls.lock().unwrap());
    rig.step(&[(1, 0, &[1; 7], Want::Last)]).unwrap();
    assert_eq!(calls(&rig), [4, 1, 1, 1]);
    rig.step(&[(2, 0, &[1], Want::None)]).unwrap();
    rig.step(&[(2, 1, &[1; 4], Want::None)]).unwrap();
    assert_eq!(calls(&rig), [1, 3, 1]);
    let rows = rig.step(&[(3, 0, &[1, 2, 3], Want::All)]).unwrap();
    assert_eq!(rows, [[1.0, 1.0, 1.0], [3.0, 2.0, 1.0], [6.0, 3.0, 1.0]]);
    assert_eq!(calls(&rig), [1, 1, 1]);
}

//! The backend of Apple's GPUs: kernels of our own for attention over block tables, products, norms, embeddings, recurrent
//! layers, experts and candidates, and formulas in candle's ops for the rest. All of this runs above [`Driver`], so tests run it
//! on any machine.
//!
//! At load each library of kernels is held against the formulas, which stand in for one that differs on this device.

use candle_core::{DType, Tensor};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    arena::Arena,
    driver::{Arg, Driver},
    inputs::Inputs,
    launch::Launch,
    recurrence::StepStates,
};
use crate::{
    Code, Error, Result,
    nn::backend::{Backend, Formulas},
};

/// The kernels on a device, and what a step brings to it.
pub(super) struct MetalKernels<D: Driver> {
    pub(super) driver: Arc<D>,
    pub(super) arena: Arena<D>,
    pub(super) formulas: Formulas,
    pub(super) usable: Usable,
    /// The reason why some are not.
    pub(super) declined: Option<String>,
    /// By group of caches; none before the first step.
    inputs: Mutex<Vec<StepInputs>>,
    /// By group of caches, for those with states.
    states: Mutex<Vec<Option<StepStates>>>,
    /// Something was encoded and not waited for.
    pub(super) is_pending: Arc<AtomicBool>,
}

/// The libraries of kernels that compute what the formulas do on this device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    pub(super) attention: bool,
    pub(super) norms: bool,
    pub(super) products: bool,
    pub(super) elementwise: bool,
    pub(super) logits: bool,
    pub(super) recurrence: bool,
    pub(super) experts: bool,
}

impl Usable {
    pub(super) const ALL: Self = Self {
        attention: true,
        norms: true,
        products: true,
        elementwise: true,
        logits: true,
        recurrence: true,
        experts: true,
    };
}

/// A step's inputs on the device.
#[derive(Clone)]
pub(super) struct StepInputs {
    pub(super) slots: Tensor,
    pub(super) tiles: Tensor,
    pub(super) tables: Tensor,
    pub(super) host: Arc<Inputs>,
}

/// An error of the device.
pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Device, format!("Metal: {error}"))
}

impl<D: Driver> MetalKernels<D> {
    /// The kernels that compute what the formulas do on this device; an error if there are none.
    pub(super) fn on(driver: D, formulas: Formulas) -> Result<Self> {
        let mut kernels = Self::new(driver, formulas);
        kernels.prove()?;
        kernels.inputs().clear();
        kernels.states().clear();
        Ok(kernels)
    }

    /// The kernels, untried.
    pub(super) fn new(driver: D, formulas: Formulas) -> Self {
        let driver = Arc::new(driver);
        let arena = Arena::new(driver.clone());
        let (inputs, states, is_pending) = (Mutex::default(), Mutex::default(), Arc::default());
        Self { driver, arena, formulas, usable: Usable::ALL, declined: None, inputs, states, is_pending }
    }

    pub(super) fn inputs(&self) -> MutexGuard<'_, Vec<StepInputs>> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step's inputs for a group of caches; `None` if they are not on the device.
    pub(super) fn inputs_of(&self, group: usize) -> Option<StepInputs> {
        self.inputs().get(group).cloned()
    }

    /// The step's states in a group of caches; `None` if they are not on the device, or there are none.
    pub(super) fn states_of_group(&self, group: usize) -> Option<StepStates> {
        self.states().get(group).cloned().flatten()
    }

    pub(super) fn states(&self) -> MutexGuard<'_, Vec<Option<StepStates>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_device(&self, inputs: Inputs) -> Result<StepInputs> {
        Ok(StepInputs {
            slots: self.arena.ids(&inputs.slots)?,
            tiles: self.arena.ids(inputs.tiles.as_flattened())?,
            tables: self.arena.ids(&inputs.tables)?,
            host: Arc::new(inputs),
        })
    }

    /// Brings a step's inputs to the device.
    pub(super) fn set_inputs(&self, groups: impl Iterator<Item = Inputs>) -> Result<()> {
        // What a step that ended with an error has left behind still reads its inputs. Its error was reported.
        if self.is_pending.load(Ordering::Relaxed) {
            let _ = self.finish();
        }
        self.states().clear();
        let mut inputs = self.inputs();
        inputs.clear();
        for group in groups {
            inputs.push(self.on_device(group)?);
        }
        Ok(())
    }

    /// A tensor that a kernel is about to fill.
    pub(super) fn room(&self, rows: usize, columns: usize) -> Result<Tensor> {
        self.arena.tensor(DType::F32, &[rows, columns])
    }

    /// Puts a kernel behind what has been encoded so far.
    pub(super) fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()> {
        if launch.groups.contains(&0) {
            return Ok(());
        }
        self.is_pending.store(true, Ordering::Relaxed);
        self.driver.launch(launch, args)
    }
}

//! The devices, caches and adapters that a loaded model's layers compute with.

use super::{
    Ops, Step,
    adapters::{Adapters, registry::Registry},
    items::Items,
    memory::kv::KvCache,
};
use crate::{AdapterData, Batch, KvTransfer, Resident, Result};

/// The part of a loaded model beside its layers. It comes from [`ModelPlan::load`](super::ModelPlan::load), makes a
/// [`Step`] of each batch, and answers a [`Model`](crate::Model)'s questions about memory and adapters.
pub struct Runtime {
    pub(super) ops: Ops,
    pub(super) kv: KvCache,
    pub(super) registry: Registry,
    pub(super) adapters: Adapters,
    pub(super) resident: Resident,
    /// Images and sounds, and the sequences that they are placed in.
    pub(super) items: Items,
}

impl Runtime {
    /// Begins a forward pass. When it is over, [`Ops::read`] copies its output to the host; a pass without output ends
    /// with [`Ops::finish`].
    pub fn step<'a>(&'a mut self, batch: &'a Batch<'a>) -> Result<Step<'a>> {
        self.ops.begin(batch)?;
        let items = Some(&self.items).filter(|items| items.touch(batch));
        let mut step = Step::new(&self.ops, batch, &mut self.kv, &self.adapters);
        if let Some(items) = items {
            step.items = Some(items);
            step.pass.see(items.seen(batch));
        }
        Ok(step)
    }

    /// [`Self::step`] for a batch that the devices have already.
    pub(super) fn step_begun<'a>(&'a mut self, batch: &'a Batch<'a>) -> Step<'a> {
        Step::new(&self.ops, batch, &mut self.kv, &self.adapters)
    }

    /// The operations on the model's devices.
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// The answer to [`Model::resident`](crate::Model::resident).
    pub fn resident(&self) -> Resident {
        let adapters = self.adapters.bytes();
        Resident { weight_bytes: self.resident.weight_bytes.saturating_add(adapters), ..self.resident.clone() }
    }

    /// Attaches an adapter to the layers that were loaded under its names.
    pub fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        self.adapters.attach(adapter, &self.registry, &self.ops)
    }

    /// Removes an adapter.
    pub fn detach(&mut self, adapter: u32) -> Result<()> {
        self.adapters.detach(adapter)
    }

    /// Copies blocks and slots of the caches.
    pub fn kv_transfer(&mut self) -> &mut dyn KvTransfer {
        &mut self.kv
    }
}

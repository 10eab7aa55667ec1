//! Wraps a model as the contract's object.

mod media;
mod timeline;

use pensieve_plugin_api::{
    self as api, PluginError,
    abi_stable::{
        sabi_trait::TD_Opaque,
        sabi_types::RMut,
        std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec},
    },
    ext::{
        kv_transfer::{self, KvTransfer},
        media::ID as MEDIA,
        rows::{self, Finish},
        sequence_state::{self, SequenceState},
        timeline::ID as TIMELINE,
    },
};
use std::collections::HashSet;

use super::{
    check::BatchCheck,
    convert,
    guard::{discard, guard, own},
};
use crate::{CandidateRows, Error, Model, Outputs, Result};

/// Wraps a model for the host, if its description of itself is valid.
pub(crate) fn export_model(mut model: Box<dyn Model>) -> Result<api::ModelBox> {
    let transfers_kv = model.kv_transfer().is_some();
    let copies_sequences = model.sequence_state().is_some();
    let reads_media = model.media().is_some();
    let records_timeline = model.timeline().is_some();
    let (check, finish_width) = (BatchCheck::new(&model.resident())?, model.finish_width());
    let adapters = HashSet::new();
    let exported = ExportedModel {
        model: Some(model),
        check,
        adapters,
        finish_width,
        transfers_kv,
        copies_sequences,
        reads_media,
        records_timeline,
    };
    Ok(api::Model_TO::from_value(exported, TD_Opaque))
}

pub(super) struct ExportedModel {
    /// `None` only during drop.
    model: Option<Box<dyn Model>>,
    check: BatchCheck,
    adapters: HashSet<u32>,
    /// 0 if nothing follows pooling.
    finish_width: usize,
    transfers_kv: bool,
    copies_sequences: bool,
    reads_media: bool,
    records_timeline: bool,
}

impl ExportedModel {
    pub(super) fn model(&mut self) -> Result<&mut dyn Model> {
        match &mut self.model {
            Some(model) => Ok(&mut **model),
            None => Err(Error::invalid("the model has been dropped")),
        }
    }
}

impl api::Model for ExportedModel {
    fn resident(&self) -> api::Resident {
        let answer = guard("resident", || match &self.model {
            Some(model) => Ok(api::Resident::from(&model.resident())),
            None => Err(Error::invalid("the model has been dropped")),
        });
        answer.unwrap_or_else(|error| api::Resident {
            device: "unknown".into(),
            note: error.to_string().into(),
            weight_bytes: 0,
            state_bytes: 0,
            places: RVec::new(),
            context: 0,
        })
    }

    fn forward(&mut self, batch: &api::Batch<'_>, outputs: &mut api::Outputs<'_>) -> RResult<(), PluginError> {
        guard("forward", || {
            let batch = self.check.check(batch, &self.adapters, outputs)?;
            let mut outputs = Outputs {
                logits: outputs.logits.as_mut_slice(),
                candidates: CandidateRows {
                    ids: outputs.ids.as_mut_slice(),
                    scores: outputs.scores.as_mut_slice(),
                    totals: outputs.totals.as_mut_slice(),
                },
                hidden: outputs.hidden.as_mut_slice(),
                vocabulary: self.check.vocabulary(),
            };
            self.model()?.forward_to(&batch, &mut outputs)
        })
    }

    fn attach(&mut self, adapter: &api::AdapterData) -> RResult<u32, PluginError> {
        guard("attach", || {
            let adapter = convert::adapter_in(adapter)?;
            let id = self.model()?.attach(&adapter)?;
            if id == api::NO_ADAPTER || !self.adapters.insert(id) {
                return Err(Error::invalid(format!("the model named a new adapter {id}, which is taken")));
            }
            Ok(id)
        })
    }

    fn detach(&mut self, adapter: u32) -> RResult<(), PluginError> {
        guard("detach", || {
            if !self.adapters.remove(&adapter) {
                return Err(Error::not_found(format!("no adapter {adapter} is attached")));
            }
            self.model()?.detach(adapter)
        })
    }

    fn release(&mut self, sequence: u64) {
        // There is nobody to return an error to: the host has already forgotten the sequence.
        let _ = guard("release", || {
            self.model()?.release(sequence);
            Ok(())
        });
    }

    fn extension(&self, id: RStr<'_>) -> ROption<api::Extension> {
        match id.as_str() {
            kv_transfer::ID if self.transfers_kv => ROption::RSome(api::Extension::offer(&KV_TRANSFER)),
            MEDIA if self.reads_media => ROption::RSome(api::Extension::offer(&media::ENCODE)),
            rows::ID if self.finish_width > 0 => ROption::RSome(api::Extension::offer(&FINISH)),
            sequence_state::ID if self.copies_sequences => ROption::RSome(api::Extension::offer(&SEQUENCE_STATE)),
            TIMELINE if self.records_timeline => ROption::RSome(api::Extension::offer(&timeline::TABLE)),
            id => own(|| self.model.as_ref().and_then(|model| model.extension(id))),
        }
    }
}

impl Drop for ExportedModel {
    fn drop(&mut self) {
        discard(self.model.take());
    }
}

static KV_TRANSFER: KvTransfer = KvTransfer { bytes, export, import };
static FINISH: Finish = Finish { finish };
static SEQUENCE_STATE: SequenceState = SequenceState { fork, snapshot, restore };

/// Returns the object behind a table's first argument.
fn exported(model: RMut<'_, ()>) -> &mut ExportedModel {
    // SAFETY: only the functions of the SDK's tables call this, and only `ExportedModel::extension` offers these tables.
    // The host passes the object that offered the table, exclusively, for the duration of the call.
    unsafe { &mut *model.into_raw().cast::<ExportedModel>() }
}

/// Returns the model's transfer of blocks and slots, after checking that this one exists and has `len` bytes.
fn transferring(model: RMut<'_, ()>, group: u32, id: u32, len: usize) -> Result<&mut dyn crate::KvTransfer> {
    let exported = exported(model);
    let count = exported.check.places(group as usize);
    if id >= count {
        return Err(Error::invalid(format!("{id} is out of range: group {group} has {count} blocks or slots")));
    }
    let Some(ability) = exported.model()?.kv_transfer() else {
        return Err(Error::unsupported("this model transfers no blocks"));
    };
    let bytes = ability.bytes(group as usize);
    if bytes != len {
        return Err(Error::invalid(format!("what is transferred of group {group} has {bytes} bytes, not {len}")));
    }
    Ok(ability)
}

fn copying(model: RMut<'_, ()>) -> Result<&mut dyn crate::SequenceState> {
    exported(model).model()?.sequence_state().ok_or_else(|| Error::unsupported("this model copies no sequences"))
}

unsafe extern "C" fn bytes(model: RMut<'_, ()>, group: u32) -> u64 {
    let answer = guard("bytes", || {
        let exported = exported(model);
        if exported.check.places(group as usize) == 0 {
            return Ok(0);
        }
        Ok(exported.model()?.kv_transfer().map_or(0, |ability| ability.bytes(group as usize) as u64))
    });
    answer.unwrap_or(0)
}

unsafe extern "C" fn export(
    model: RMut<'_, ()>,
    group: u32,
    id: u32,
    mut bytes: RSliceMut<'_, u8>,
) -> RResult<(), PluginError> {
    guard("export", || transferring(model, group, id, bytes.len())?.export(group as usize, id, bytes.as_mut_slice()))
}

unsafe extern "C" fn import(
    model: RMut<'_, ()>,
    group: u32,
    id: u32,
    bytes: RSlice<'_, u8>,
) -> RResult<(), PluginError> {
    guard("import", || transferring(model, group, id, bytes.len())?.import(group as usize, id, bytes.as_slice()))
}

unsafe extern "C" fn fork(model: RMut<'_, ()>, from: u64, to: u64) -> RResult<(), PluginError> {
    guard("fork", || copying(model)?.fork(from, to))
}

unsafe extern "C" fn snapshot(model: RMut<'_, ()>, sequence: u64) -> RResult<RVec<u8>, PluginError> {
    guard("snapshot", || copying(model)?.snapshot(sequence).map(RVec::from))
}

unsafe extern "C" fn restore(model: RMut<'_, ()>, sequence: u64, bytes: RSlice<'_, u8>) -> RResult<(), PluginError> {
    guard("restore", || copying(model)?.restore(sequence, bytes.as_slice()))
}

unsafe extern "C" fn finish(
    model: RMut<'_, ()>,
    rows: RSlice<'_, f32>,
    mut out: RSliceMut<'_, f32>,
) -> RResult<(), PluginError> {
    guard("finish", || {
        let exported = exported(model);
        let (hidden, width) = (exported.check.hidden(), exported.finish_width);
        let count = rows.len().checked_div(hidden).unwrap_or(0);
        if count == 0 || (rows.len(), out.len()) != (count * hidden, count * width) {
            let message =
                format!("{} values in rows of {hidden} do not make {} in rows of {width}", rows.len(), out.len());
            return Err(Error::invalid(message));
        }
        exported.model()?.finish(rows.as_slice(), out.as_mut_slice())
    })
}

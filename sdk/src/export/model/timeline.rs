//! `draft/timeline/1` of an exported model.

use pensieve_plugin_api::{
    PluginError,
    abi_stable::{
        sabi_types::RMut,
        std_types::{RResult, RString, RVec},
    },
    ext::timeline::{Recording, Span, Timeline},
};
use std::{collections::HashMap, time::Duration};

use super::exported;
use crate::{Error, Result, TimelineSpan, export::guard::guard};

pub(super) static TABLE: Timeline = Timeline { start, finish };

fn recorder(model: RMut<'_, ()>) -> Result<&mut dyn crate::Timeline> {
    exported(model).model()?.timeline().ok_or_else(|| Error::unsupported("this model records no timeline"))
}

unsafe extern "C" fn start(model: RMut<'_, ()>) -> RResult<(), PluginError> {
    guard("timeline start", || {
        recorder(model)?.start();
        Ok(())
    })
}

unsafe extern "C" fn finish(model: RMut<'_, ()>) -> RResult<Recording, PluginError> {
    guard("timeline finish", || Ok(recording(recorder(model)?.finish())))
}

/// Writes each name and each thread once.
fn recording(spans: Vec<TimelineSpan>) -> Recording {
    let threads = spans.iter().map(|span| span.thread + 1).max().unwrap_or(0);
    let threads = (0..threads).map(|index| match index {
        0 => RString::from("engine"),
        index => RString::from(format!("kernels-{index}")),
    });
    let (mut names, mut known) = (RVec::new(), HashMap::new());
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let spans = spans.into_iter().map(|span| {
        let name = *known.entry(span.what).or_insert_with_key(|what| {
            names.push(what.as_deref().unwrap_or("wait").into());
            names.len() as u32 - 1
        });
        let (start_ns, end_ns) = (nanoseconds(span.start), nanoseconds(span.end));
        Span { thread: span.thread as u32, name, start_ns, end_ns }
    });
    let spans = spans.collect();
    Recording { threads: threads.collect(), names, spans }
}

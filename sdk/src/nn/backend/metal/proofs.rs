//! The proof at load: each kernel is held against its formula on this device.

use candle_core::Tensor;

use super::{
    driver::Driver,
    kernels::{MetalKernels, failed},
};
use crate::{
    Batch, Output, Result, Span, Table, Want,
    nn::{
        backend::Backend,
        memory::{kv::KvCache, pass::Pass},
        spec::{Attention, KvShape, KvType, Rotation},
    },
    weights::RopeStyle,
};

/// Blocks of the caches that are attended to.
const BLOCKS: usize = 12;

/// A form of attention that kernels have a case for.
struct Form {
    name: &'static str,
    heads: usize,
    head_dim: usize,
    rotated: usize,
    style: RopeStyle,
    kind: KvType,
    window: Option<usize>,
    softcap: Option<f32>,
    has_sinks: bool,
}

const PLAIN: Form = Form {
    name: "attention",
    heads: 4,
    head_dim: 64,
    rotated: 64,
    style: RopeStyle::NeoX,
    kind: KvType::F16,
    window: None,
    softcap: None,
    has_sinks: false,
};

const FORMS: [Form; 4] = [
    PLAIN,
    // With this window, the oldest keys of a tile are out of reach for some of its rows, and all of them for others.
    Form { name: "attention within a window", head_dim: 128, rotated: 128, window: Some(20), ..PLAIN },
    Form {
        name: "attention with sinks and interleaved rotation",
        heads: 16,
        rotated: 32,
        style: RopeStyle::Interleaved,
        has_sinks: true,
        window: Some(24),
        ..PLAIN
    },
    Form { name: "capped attention in f32", head_dim: 80, rotated: 80, kind: KvType::F32, softcap: Some(5.0), ..PLAIN },
];

/// Checks that a kernel's output is its formula's, within `most`; what is no number is not.
pub(super) fn same(what: &str, ours: &Tensor, formula: &Tensor, most: f32) -> Result<()> {
    let difference = (ours - formula)?.abs()?.max_all()?.to_scalar::<f32>()?;
    let total = ours.sum_all()?.to_scalar::<f32>()?;
    match difference < most && total.is_finite() {
        true => Ok(()),
        false => Err(failed(format!("{what} differs by {difference}"))),
    }
}

impl<D: Driver> MetalKernels<D> {
    pub(super) fn prove(&self) -> Result<()> {
        self.prove_norm()?;
        FORMS.iter().try_for_each(|form| self.prove_attention(form))
    }

    fn prove_norm(&self) -> Result<()> {
        let (x, y) = (self.formulas.wave(5, 96)?, (self.formulas.wave(5, 96)? * 0.5)?);
        let weight = self.formulas.wave(1, 96)?.squeeze(0)?;
        let (sum, normed) = self.add_rms_norm(&x, &y, &weight, 1e-5)?;
        same("the sum", &sum, &(x + y)?, 1e-5)?;
        same("rms_norm", &normed, &self.formulas.rms_norm(&sum, &weight, 1e-5)?, 1e-4)
    }

    /// A chunk of a prompt after a past of several tiles, and two decodes, over a cache in any order.
    fn prove_attention(&self, form: &Form) -> Result<()> {
        let (kv_heads, formulas, head_dim) = (2, &self.formulas, form.head_dim);
        let sequences: [(usize, usize, &[u32]); 3] =
            [(81, 9, &[7, 1, 9, 0, 4, 11]), (40, 1, &[3, 10, 5]), (0, 1, &[8])];
        let (mut spans, mut start) = (Vec::new(), 0);
        for (past, len, blocks) in sequences {
            spans.push(Span {
                sequence: start as u64,
                start,
                len,
                past,
                want: Want::Last,
                output: Output::Logits,
                mask: &[],
                adapter: 0,
                adapter_scale: 0.0,
                caches: vec![Table::Blocks(blocks.into())],
            });
            start += len;
        }
        let (tokens, ids) = (start, vec![0; start]);
        let batch = Batch { tokens: &ids, positions: &ids, spans, top: 0 };
        let [q, k, v] = [form.heads, kv_heads, kv_heads].map(|heads| formulas.wave(tokens, heads * head_dim));
        let (q, k, v) = (q?, k?, v?);
        let half = form.rotated / 2;
        let (cos, sin) = (formulas.wave(tokens, half)?, (formulas.wave(tokens, half)? * 0.5)?);
        let rotation = Rotation { cos, sin, style: form.style };
        let sinks = form.has_sinks.then(|| formulas.wave(1, form.heads)?.squeeze(0)).transpose()?;
        let (window, softcap) = (form.window, form.softcap);
        let spec = Attention { window, softcap, sinks, ..Attention::new(0, form.heads, kv_heads, head_dim)? };
        self.begin(&batch)?;
        let compute = |backend: &dyn Backend| -> Result<Tensor> {
            let shape = KvShape::uniform(1, kv_heads, head_dim);
            let make = |_, shape, _| formulas.store(shape);
            let mut cache = KvCache::new(&shape, form.kind, &[BLOCKS], |_| 0, make)?;
            for store in cache.layer(0)? {
                let store = store.tensor()?;
                let (heads, slots, dim) = store.dims3()?;
                let past = formulas.wave(heads, slots * dim)?.reshape((heads, slots, dim))?;
                store.slice_set(&past.to_dtype(store.dtype())?, 1, 0)?;
            }
            let mut pass = Pass::new(&batch, &mut cache);
            backend.rotated_attention(&spec, [&q, &k, &v], &rotation, &mut pass)
        };
        same(form.name, &compute(self)?, &compute(formulas)?, 1e-2)
    }
}

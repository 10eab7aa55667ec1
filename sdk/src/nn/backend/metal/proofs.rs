//! The proof at load: each kernel is held against its formula on this device.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use pensieve_kernels::Activation;

use super::{
    driver::Driver,
    kernels::{MetalKernels, Usable, failed},
};
use crate::{
    Batch, Output, Result, Span, Table, Want,
    nn::{
        backend::{Backend, Formulas, Matrix},
        memory::{kv::KvCache, pass::Pass},
        spec::{Attention, KvShape, KvType, Rotation},
    },
    weights::{Bytes, Dtype, RawTensor, RopeStyle},
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

/// Checks that a kernel's output is its formula's, within `most`; NaN and infinities are not.
pub(super) fn same(what: &str, ours: &Tensor, formula: &Tensor, most: f32) -> Result<()> {
    let difference = (ours - formula)?.abs()?.max_all()?.to_scalar::<f32>()?;
    let total = ours.sum_all()?.to_scalar::<f32>()?;
    match difference < most && total.is_finite() {
        true => Ok(()),
        false => Err(failed(format!("{what} differs by {difference}"))),
    }
}

/// [`same`], relative to the formula's largest value.
fn near(what: &str, ours: &Tensor, formula: &Tensor, most: f32) -> Result<()> {
    let largest = formula.abs()?.max_all()?.to_scalar::<f32>()?;
    same(what, ours, formula, most * largest.max(1.0))
}

impl<D: Driver> MetalKernels<D> {
    /// Tries each library, and does without those whose kernels compute anything else; an error if that is all of them.
    pub(super) fn prove(&mut self) -> Result<()> {
        let attention = || FORMS.iter().try_for_each(|form| self.prove_attention(form));
        let proved = [
            attention(),
            self.prove_norms(),
            self.prove_products(),
            self.prove_elementwise(),
            self.prove_best(),
            self.prove_recurrence(),
        ];
        // Comparisons have read everything, so an error of the device has shown there; this only forgets it.
        let finished = self.finish();
        let [attention, norms, products, elementwise, logits, recurrence] = proved.each_ref().map(Result::is_ok);
        self.usable = Usable { attention, norms, products, elementwise, logits, recurrence };
        self.declined = proved.into_iter().filter_map(|result| result.err().map(|error| error.message)).next();
        match &self.declined {
            Some(why) if self.usable == Usable::default() => Err(failed(why)),
            Some(_) => Ok(()),
            None => finished,
        }
    }

    fn prove_norms(&self) -> Result<()> {
        let (x, y) = (self.formulas.wave(5, 96)?, (self.formulas.wave(5, 96)? * 0.5)?);
        let weight = self.formulas.wave(1, 96)?.squeeze(0)?;
        let (sum, normed) = self.add_rms_norm(&x, &y, &weight, 1e-5)?;
        same("the sum", &sum, &(&x + y)?, 1e-5)?;
        same("rms_norm", &normed, &self.formulas.rms_norm(&sum, &weight, 1e-5)?, 1e-4)?;
        same("rms_norm", &self.rms_norm(&x, &weight, 1e-5)?, &self.formulas.rms_norm(&x, &weight, 1e-5)?, 1e-4)?;
        let (ours, formula) =
            (self.layer_norm(&x, &weight, &weight, 1e-5)?, self.formulas.layer_norm(&x, &weight, &weight, 1e-5)?);
        same("layer_norm", &ours, &formula, 1e-4)
    }

    /// Every kernel, by the number of rows, over formats of several kinds.
    fn prove_products(&self) -> Result<()> {
        const OUTPUTS: usize = 50;
        const INPUTS: usize = 512;
        let values = Formulas::plain(Device::Cpu).wave(OUTPUTS, INPUTS)?;
        for (ggml, dtype) in [
            (GgmlDType::F16, Dtype::F16),
            (GgmlDType::Q8_0, Dtype::Q8_0),
            (GgmlDType::Q4K, Dtype::Q4K),
            (GgmlDType::Q6K, Dtype::Q6K),
        ] {
            let quantized = QTensor::quantize(&values, ggml)?;
            let data = Bytes::copy_of(&quantized.data()?)?;
            let raw = RawTensor { name: "proof".into(), dtype, shape: vec![OUTPUTS, INPUTS], data };
            let form = self.weight(&raw)?.ok_or_else(|| failed(format!("no kernel reads {}", dtype.name())))?;
            let matrix = Matrix { outputs: OUTPUTS, inputs: INPUTS, place: 0, form };
            let dense = quantized.dequantize(&Device::Cpu)?.to_device(&self.formulas.device)?;
            for rows in [1, 2, 3, 7, 40] {
                let x = self.formulas.wave(rows, INPUTS)?;
                let formula = x.matmul(&dense.t()?)?;
                let what = format!("a product of {rows} rows with {}", dtype.name());
                near(&what, &self.linear(&x, &matrix, None)?, &formula, 5e-3)?;
            }
            let x = self.formulas.wave(3, INPUTS)?;
            let (product, residual) = (x.matmul(&dense.t()?)?, self.formulas.wave(3, OUTPUTS)?);
            near(
                "a sum with a product",
                &self.add_linear(&residual, &x, &matrix, None)?,
                &(residual + &product)?,
                5e-3,
            )?;
            let x = (x * 0.05)?;
            let product = (product * 0.05)?;
            let gated = (self.formulas.activate(&product, Activation::Silu)? * &product)?;
            let layers = [(&matrix, None), (&matrix, None)];
            near("a gated product", &self.gated(&x, layers, Activation::Silu)?, &gated, 2e-2)?;
            let rows = self.look_up(&matrix, &[7, 0, 49])?.ok_or_else(|| failed("no table is looked up"))?;
            near("rows of a table", &rows, &dense.index_select(&self.formulas.ids(&[7, 0, 49])?, 0)?, 1e-3)?;
        }
        Ok(())
    }

    fn prove_elementwise(&self) -> Result<()> {
        let (x, y, formulas) = (self.formulas.wave(5, 70)?, (self.formulas.wave(5, 70)? * 0.5)?, &self.formulas);
        let row = formulas.wave(1, 70)?.squeeze(0)?;
        same("a sum", &self.add(&x, &y)?, &(&x + &y)?, 1e-5)?;
        for kind in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh] {
            same("an activation", &self.activate(&x, kind)?, &formulas.activate(&x, kind)?, 1e-3)?;
            same("a gate", &self.gate(&x, &y, kind)?, &formulas.gate(&x, &y, kind)?, 1e-3)?;
        }
        let (bias, kind) = (Some(&row), Some(Activation::Sigmoid));
        let (ours, formula) =
            (self.bias_act_scale(&x, bias, kind, bias)?, formulas.bias_act_scale(&x, bias, kind, bias)?);
        same("an activation with bias and factor", &ours, &formula, 1e-3)?;
        let parts = [(0, 30), (30, 1), (31, 39)];
        for (ours, formula) in self.columns(&x, &parts)?.iter().zip(&formulas.columns(&x, &parts)?) {
            same("columns", ours, formula, 1e-6)?;
        }
        Ok(())
    }

    fn prove_best(&self) -> Result<()> {
        let logits = self.formulas.wave(3, 1500)?;
        same("the best of logits", &self.best(&logits)?, &self.formulas.best(&logits)?, 1e-3)
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::{double::Double, kernels::MetalKernels};
    use super::{Formulas, Usable};

    #[test]
    fn kernels_that_compute_the_formulas_are_all_used() {
        let kernels = MetalKernels::on(Double::default(), Formulas::plain(Device::Cpu)).unwrap();
        let all =
            Usable { attention: true, norms: true, products: true, elementwise: true, logits: true, recurrence: true };
        assert_eq!((kernels.usable, kernels.declined), (all, None));
    }

    #[test]
    fn kernels_that_compute_nothing_are_not_used() {
        let double = Double::default();
        double.record().is_idle = true;
        let Err(error) = MetalKernels::on(double, Formulas::plain(Device::Cpu)) else { panic!("all are used") };
        assert!(error.message.contains("differs by"), "{error}");
    }
}

//! The proof at load: each kernel is held against its formula on this device.

use candle_core::{Device, Tensor};
use pensieve_kernels::{Activation, dequantize};

use super::{
    driver::Driver,
    kernels::{MetalKernels, Usable, failed},
    products::READ,
};
use crate::{
    Batch, CandidateRows, Result,
    nn::{
        backend::{
            Backend, Matrix,
            cases::{Activations, CASES, Case, MIXTURES, Mixture, Part, RECURRENT, spans, tables},
            noise,
        },
        memory::{kv::KvCache, pass::Pass},
        spec::KvShape,
    },
    weights::{Bytes, Dtype, RawTensor},
};

/// A chunk of a prompt after a past of several tiles, two decodes, and two whose contexts begin with the same blocks.
const SEQUENCES: [Part; 5] = [(81, 9), (40, 1), (0, 1), (300, 1), (290, 1)];
const SHARED_BLOCKS: usize = 17;

/// The size of made-up weights, whose outputs fill no threadgroup.
const OUTPUTS: usize = 50;
const INPUTS: usize = 512;

/// Formats of several kinds: dense, with a scale for a block, and with one for each part of a block, with minimums and without.
const USED: [Dtype; 4] = [Dtype::F16, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];

/// Checks that a kernel's output is its formula's, within `most`; NaN and infinities are not.
fn same(what: &str, ours: &Tensor, formula: &Tensor, most: f32) -> Result<()> {
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
        let mut cases = CASES.into_iter().filter(|case| case.at_load);
        let mut attention = || cases.try_for_each(|case| self.prove_attention(case));
        let proved = [
            attention(),
            self.prove_norms(),
            self.prove_products(),
            self.prove_elementwise(),
            self.prove_logits(),
            self.prove_recurrence(),
            self.prove_experts(),
        ];
        // Comparisons have read everything, so an error of the device has shown there; this only forgets it.
        let finished = self.finish();
        let [attention, norms, products, elementwise, logits, recurrence, experts] =
            proved.each_ref().map(Result::is_ok);
        self.usable = Usable { attention, norms, products, elementwise, logits, recurrence, experts };
        self.declined = proved.into_iter().filter_map(|result| result.err().map(|error| error.message)).next();
        match &self.declined {
            Some(why) if self.usable == Usable::default() => Err(failed(why)),
            Some(_) => Ok(()),
            None => finished,
        }
    }

    fn prove_norms(&self) -> Result<()> {
        let x = self.formulas.wave(5, 96)?;
        let weight = self.formulas.wave(1, 96)?.squeeze(0)?;
        same("rms_norm", &self.rms_norm(&x, &weight, 1e-5)?, &self.formulas.rms_norm(&x, &weight, 1e-5)?, 1e-4)?;
        let (q, k, of_head) = (self.formulas.wave(5, 96)?, self.formulas.wave(5, 32)?, self.formulas.wave(1, 16)?);
        let of_head = of_head.squeeze(0)?;
        let weights = [&of_head; 2];
        let (ours, formula) =
            (self.norm_heads([&q, &k], weights, 1e-5)?, self.formulas.norm_heads([&q, &k], weights, 1e-5)?);
        same("the norms of queries", &ours.0, &formula.0, 1e-4)?;
        same("the norms of keys", &ours.1, &formula.1, 1e-4)?;
        let (ours, formula) =
            (self.layer_norm(&x, &weight, &weight, 1e-5)?, self.formulas.layer_norm(&x, &weight, &weight, 1e-5)?);
        same("layer_norm", &ours, &formula, 1e-4)
    }

    /// Every kernel, by the number of rows, over every format; and every use of a product, over formats of several kinds.
    fn prove_products(&self) -> Result<()> {
        READ.iter().try_for_each(|dtype| self.prove_format(*dtype))?;
        USED.iter().try_for_each(|dtype| self.prove_uses(*dtype))
    }

    fn prove_format(&self, dtype: Dtype) -> Result<()> {
        let (matrix, dense) = self.made_up(dtype)?;
        for rows in [1, 2, 3, 7, 40] {
            let x = self.formulas.wave(rows, INPUTS)?;
            let what = format!("a product of {rows} rows with {}", dtype.name());
            near(&what, &self.linear(&x, &matrix, None)?, &x.matmul(&dense.t()?)?, 5e-3)?;
        }
        let rows = self.look_up(&matrix, &[7, 0, 49])?.ok_or_else(|| failed("no table is looked up"))?;
        let formula = dense.index_select(&self.formulas.ids(&[7, 0, 49])?, 0)?;
        near(&format!("rows of a table of {}", dtype.name()), &rows, &formula, 1e-3)
    }

    fn prove_uses(&self, dtype: Dtype) -> Result<()> {
        let (matrix, dense) = self.made_up(dtype)?;
        let x = self.formulas.wave(3, INPUTS)?;
        let (product, residual) = (x.matmul(&dense.t()?)?, self.formulas.wave(3, OUTPUTS)?);
        let sum = self.add_linear(&residual, &x, &matrix, None)?;
        near("a sum with a product", &sum, &(residual + &product)?, 5e-3)?;
        // Small enough for an activation to be no straight line.
        let small = 3.0 / f64::from(product.abs()?.max_all()?.to_scalar::<f32>()?);
        let (x, product) = ((x * small)?, (product * small)?);
        let gated = (self.formulas.activate(&product, Activation::Silu)? * &product)?;
        let activated = self.linear_act(&x, &matrix, None, Activation::Silu)?;
        near("an activated product", &activated, &self.formulas.activate(&product, Activation::Silu)?, 2e-2)?;
        let layers = [(&matrix, None), (&matrix, None)];
        near("a gated product", &self.gated(&x, layers, Activation::Silu)?, &gated, 2e-2)
    }

    /// A weight in a format, and what it means.
    fn made_up(&self, dtype: Dtype) -> Result<(Matrix, Tensor)> {
        let data = Bytes::copy_of(&noise::weight(dtype, OUTPUTS, INPUTS, 1))?;
        let raw = RawTensor { name: "made up".into(), dtype, shape: vec![OUTPUTS, INPUTS], data };
        let dense = Tensor::from_vec(dequantize(&raw)?, (OUTPUTS, INPUTS), &self.formulas.device)?;
        Ok((Matrix { outputs: OUTPUTS, inputs: INPUTS, place: 0, form: self.matrix(&raw)? }, dense))
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

    fn prove_logits(&self) -> Result<()> {
        let (rows, width, top) = (3, 1500, 40);
        let logits = self.formulas.wave(rows, width)?;
        same("the best of logits", &self.best(&logits)?, &self.formulas.best(&logits)?, 1e-3)?;
        let mut values = vec![0.0; rows * width];
        self.read(&logits, &mut values)?;
        let masks = vec![0x5555_5555; rows * width.div_ceil(32)];
        let ours = self.candidates_of(&logits, &masks, top)?.ok_or_else(|| failed("no kernel finds candidates"))?;
        let (mut ids, mut scores, mut totals) = (vec![0; rows * top], vec![0.0; rows * top], vec![0.0; 2 * rows]);
        let mut expected = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        for (row, (logits, mask)) in values.chunks(width).zip(masks.chunks(width.div_ceil(32))).enumerate() {
            expected.choose(row, top, logits, mask);
        }
        let (ours_ids, ours) = ours.split_at(ids.len());
        let ours = ours.iter().map(|word| f32::from_bits(*word));
        let is_near = ours.zip(scores.iter().chain(&totals)).all(|(ours, value)| (ours - value).abs() < 1e-3);
        if ours_ids == ids && is_near { Ok(()) } else { Err(failed("candidates are others than on the host")) }
    }

    fn prove_recurrence(&self) -> Result<()> {
        RECURRENT.iter().try_for_each(|case| {
            let what = format!("a recurrent layer, {},", case.name);
            same(&what, &case.compute_flat(self)?, &case.compute_flat(&self.formulas)?, 1e-3)
        })
    }

    fn prove_experts(&self) -> Result<()> {
        let mixture = Mixture::new(self)?;
        for (rows, glu) in MIXTURES {
            let ours = mixture.compute(self, rows, glu)?.ok_or_else(|| failed("no kernel computes experts"))?;
            self.finish()?;
            let what = format!("a mixture for {rows} rows, {glu:?},");
            near(&what, &ours.to_device(&Device::Cpu)?, &mixture.formula(rows, glu)?, 2e-2)?;
        }
        Ok(())
    }

    fn prove_attention(&self, case: Case) -> Result<()> {
        let (formulas, mut tables) = (&self.formulas, tables(SEQUENCES.map(|(past, len)| past + len)));
        let blocks = tables.iter().map(Vec::len).sum();
        if let [.., first, second] = tables.as_mut_slice() {
            second[..SHARED_BLOCKS].copy_from_slice(&first[..SHARED_BLOCKS]);
        }
        let ids = vec![0; SEQUENCES.iter().map(|(_, len)| len).sum()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(&SEQUENCES, &tables), top: 0 };
        let x = Activations::of(case, ids.len(), &formulas.device)?;
        self.begin(&batch)?;
        let compute = |backend: &dyn Backend| -> Result<Tensor> {
            let shape = KvShape::uniform(1, case.kv_heads, case.head_dim);
            let make = |_, shape, _| formulas.store(shape);
            let mut cache = KvCache::new(&shape, case.kv, &[blocks], |_| 0, make)?;
            for store in cache.layer(0)? {
                let store = store.tensor()?;
                let (heads, slots, dim) = store.dims3()?;
                let past = formulas.wave(heads, slots * dim)?.reshape((heads, slots, dim))?;
                store.slice_set(&past.to_dtype(store.dtype())?, 1, 0)?;
            }
            let mut pass = Pass::new(&batch, &mut cache);
            backend.rotated_attention(&x.spec, x.qkv.each_ref(), &x.rotation, &mut pass)
        };
        same(&format!("attention as of {}", case.name), &compute(self)?, &compute(formulas)?, 1e-2)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::{attention::head_sizes, double::Double, kernels::MetalKernels, libraries::LIBRARIES};
    use super::{CASES, Usable};
    use crate::nn::backend::Formulas;

    #[test]
    fn kernels_that_compute_the_formulas_are_all_used() {
        let kernels = MetalKernels::on(Double::default(), Formulas::plain(Device::Cpu)).unwrap();
        assert_eq!((kernels.usable, kernels.declined), (Usable::ALL, None));
    }

    #[test]
    fn kernels_that_compute_nothing_are_not_used() {
        let double = Double::default();
        double.record().is_idle = true;
        let Err(error) = MetalKernels::on(double, Formulas::plain(Device::Cpu)) else { panic!("all are used") };
        assert!(error.message.contains("differs by"), "{error}");
    }

    #[test]
    fn every_size_of_head_that_has_a_kernel_is_proved_at_load() {
        for size in head_sizes() {
            assert!(CASES.iter().any(|case| case.at_load && case.head_dim == size), "none of {size}");
        }
    }

    type Flag = fn(&mut Usable) -> &mut bool;

    /// A kernel of each library, and the library that is not used when it is wrong.
    #[test]
    fn a_wrong_kernel_takes_its_library_with_it_and_no_other() {
        let wrong: [(&str, Flag); 7] = [
            ("flash_f16_512", |usable| &mut usable.attention),
            ("layer_norm", |usable| &mut usable.norms),
            ("product_4", |usable| &mut usable.products),
            ("columns", |usable| &mut usable.elementwise),
            ("candidates", |usable| &mut usable.logits),
            ("short_conv", |usable| &mut usable.recurrence),
            ("combine", |usable| &mut usable.experts),
        ];
        for library in LIBRARIES {
            assert!(wrong.iter().any(|(kernel, _)| library.kernels.contains(kernel)), "none of '{}'", library.name);
        }
        for (kernel, flag) in wrong {
            let double = Double::default();
            double.record().wrong = Some(kernel);
            let kernels = MetalKernels::on(double, Formulas::plain(Device::Cpu)).unwrap();
            let mut expected = Usable::ALL;
            *flag(&mut expected) = false;
            assert_eq!(kernels.usable, expected, "{kernel}: {:?}", kernels.declined);
        }
    }
}

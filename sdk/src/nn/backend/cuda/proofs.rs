//! Kernels held against the formulas, on the device that they are to run on, when a model loads.

use candle_core::Tensor;
use half::{bf16, f16};

use super::{CudaKernels, memory::failed};
use crate::{
    Result,
    nn::{
        backend::{Backend, Matrix, Rotation, Routing},
        cpu::{self, Activation, Glu},
    },
    weights::{Bytes, Dtype, RawTensor, RopeStyle},
};

impl CudaKernels {
    /// Compares kernels with their formulas.
    pub(super) fn prove(&self) -> Result<()> {
        let wave = |rows, columns| self.formulas.wave(rows, columns);
        let same = |what: &str, ours: Result<Tensor>, formula: Result<Tensor>| -> Result<()> {
            let difference = largest(&(ours? - formula?)?)?;
            if difference < 1e-4 { Ok(()) } else { Err(failed(format!("{what} differs by {difference}"))) }
        };
        let (x, y, weight) = (wave(5, 96)?, wave(5, 96)?, wave(1, 96)?.squeeze(0)?);
        same("rms_norm", self.rms_norm(&x, &weight, 1e-5), self.formulas.rms_norm(&x, &weight, 1e-5))?;
        same(
            "layer_norm",
            self.layer_norm(&x, &weight, &weight, 1e-5),
            self.formulas.layer_norm(&x, &weight, &weight, 1e-5),
        )?;
        for kind in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh] {
            same("gate", self.gate(&x, &y, kind), self.formulas.gate(&x, &y, kind))?;
        }
        for style in [RopeStyle::NeoX, RopeStyle::Interleaved] {
            let rotation = Rotation { cos: wave(5, 8)?, sin: wave(5, 8)?, style };
            same("rotate", self.rotate(&x, 32, &rotation), self.formulas.rotate(&x, 32, &rotation))?;
        }
        Ok(())
    }

    /// Compares quantized products of a row, of two, of a few and of many.
    pub(super) fn prove_products(&self) -> Result<()> {
        let (outputs, inputs) = (40, 288);
        // Blocks of 32 values begin with a scale, and some have a minimum behind it. Whatever follows is valid.
        for (dtype, halves) in [(Dtype::Q8_0, 1), (Dtype::Q4_0, 1), (Dtype::Q4_1, 2)] {
            let block = |index: usize| {
                let half = f16::from_f32(0.01 + 0.001 * (index % 7) as f32).to_le_bytes();
                let rest = (0..dtype.block_bytes() - 2 * halves).map(move |at| (37 * (32 * index + at)) as u8);
                half.repeat(halves).into_iter().chain(rest)
            };
            let data: Vec<u8> = (0..outputs * inputs / 32).flat_map(block).collect();
            let (shape, data) = (vec![outputs, inputs], Bytes::copy_of(&data)?);
            let raw = RawTensor { name: String::new(), dtype, shape, data };
            let dense = Tensor::from_vec(cpu::dequantize(&raw)?, (outputs, inputs), &self.formulas.device)?.t()?;
            let weight = Matrix { outputs, inputs, place: 0, form: self.matrix(&raw)? };
            // More than 32 rows are multiplied by cuBLAS.
            for rows in [1, 2, 5, 40] {
                let x = self.formulas.wave(rows, inputs)?;
                let (ours, formula) = (self.linear(&x, &weight, None)?, x.matmul(&dense)?);
                let (difference, size) = (largest(&(&ours - &formula)?)?, largest(&formula)?);
                if difference > 5e-3 * size {
                    let what = format!("a product of {rows} rows with {dtype} differs by {difference} of {size}");
                    return Err(failed(what));
                }
            }
        }
        Ok(())
    }

    /// Compares what the kernel finds in rows of logits, of equal ones the first.
    pub(super) fn prove_best(&self) -> Result<()> {
        let (rows, width) = (3, 5000);
        let logits = (self.formulas.wave(rows, width)? * 8.0)?.round()?;
        let (ours, formula) = (self.best(&logits)?.to_vec2::<f32>()?, self.formulas.best(&logits)?.to_vec2::<f32>()?);
        let is_same =
            |(ours, formula): (&Vec<f32>, &Vec<f32>)| ours[..2] == formula[..2] && (ours[2] - formula[2]).abs() < 1e-3;
        let is_right = ours.len() == rows && ours.iter().zip(&formula).all(is_same);
        if is_right { Ok(()) } else { Err(failed("the best logits differ")) }
    }

    /// Compares small mixtures with their formula: of a row alone, and of rows in tiles.
    pub(super) fn prove_mixture(&self) -> Result<()> {
        let (count, width, inner, top_k) = (8, 64, 32, 2);
        let layer = |index: usize, outputs: usize, inputs: usize| -> Result<(Matrix, Tensor)> {
            let values = self.formulas.wave(outputs, inputs)?.affine(0.1, 0.01 * index as f64)?.flatten_all()?;
            let values: Vec<bf16> = values.to_vec1::<f32>()?.into_iter().map(bf16::from_f32).collect();
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let (dtype, shape, data) = (Dtype::BF16, vec![outputs, inputs], Bytes::copy_of(&data)?);
            let raw = RawTensor { name: String::new(), dtype, shape, data };
            let dense = Tensor::from_vec(raw.to_f32()?, (outputs, inputs), &self.formulas.device)?;
            Ok((Matrix { outputs, inputs, place: 0, form: self.matrix(&raw)? }, dense))
        };
        let expert = |index: usize| -> Result<_> {
            Ok([
                layer(3 * index, inner, width)?,
                layer(3 * index + 1, inner, width)?,
                layer(3 * index + 2, width, inner)?,
            ])
        };
        let experts = (0..count).map(expert).collect::<Result<Vec<_>>>()?;
        let layers: Vec<_> = experts.iter().map(|layers| layers.each_ref().map(|(matrix, _)| (matrix, None))).collect();
        let table = self.table_of(&layers)?.ok_or_else(|| failed("experts in bf16 have no table"))?;
        let (scale, silu) = (1.5, Activation::Silu);
        let routing =
            Routing { top_k, is_sigmoid: true, renormalize: true, scale, correction: None, groups: Some([4, 2, 1]) };
        for rows in [1, 5] {
            let (x, logits) = (self.formulas.wave(rows, width)?, self.formulas.wave(rows, count)?);
            let routed = self.choose_experts(&logits, &routing)?.ok_or_else(|| failed("nothing was chosen"))?;
            let ours = self.mix(&x, &routed, &table, Glu::Plain(silu))?;
            let ours = ours.ok_or_else(|| failed("gated experts have no kernel"))?;
            let mut formula = Vec::with_capacity(rows);
            for (row, logits) in logits.to_vec2::<f32>()?.into_iter().enumerate() {
                let (x, mut order) = (x.narrow(0, row, 1)?, (0..count).collect::<Vec<_>>());
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let group = |expert: usize| expert / 2;
                let first = group(order[0]);
                let second = order.iter().map(|&expert| group(expert)).find(|&other| other != first);
                order.retain(|&expert| group(expert) == first || Some(group(expert)) == second);
                let score = |expert: usize| 1.0 / (1.0 + (-logits[expert]).exp());
                let total: f32 = order[..top_k].iter().map(|&expert| score(expert)).sum();
                let mut sum: Tensor = Tensor::zeros((1, width), x.dtype(), x.device())?;
                for &expert in &order[..top_k] {
                    let [gate, up, down] = experts[expert].each_ref().map(|(_, dense)| dense.t());
                    let hidden = self.formulas.gate(&x.matmul(&gate?)?, &x.matmul(&up?)?, silu)?;
                    let weight = f64::from(scale * score(expert) / total);
                    sum = (sum + (hidden.matmul(&down?)? * weight)?)?;
                }
                formula.push(sum);
            }
            let difference = largest(&(ours - Tensor::cat(&formula, 0)?)?)?;
            if difference > 1e-3 {
                return Err(failed(format!("experts differ by {difference}")));
            }
        }
        Ok(())
    }
}

/// The largest of absolute values, infinite where one is not a number: candle's own maximum passes over these.
fn largest(x: &Tensor) -> Result<f32> {
    let values = x.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(|value| if value.is_nan() { f32::INFINITY } else { value.abs() }).fold(0.0, f32::max))
}

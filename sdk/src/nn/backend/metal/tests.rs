//! The kernels without a Mac: `kernels.metal` compiled as C++ (see `emulation`), threads in step, and held against the
//! formulas on the CPU.

use candle_core::{Device, Tensor};
use half::f16;
use std::{
    cmp::Ordering,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::LazyLock,
};

use super::{
    inputs::{AttendShape, Inputs, NormShape, StoreShape},
    launch::Launch,
};
use crate::{
    Batch, Output, Span, Table, Want,
    nn::{
        Attention, BLOCK_TOKENS, KvShape, KvType,
        backend::{Backend, Formulas},
        memory::kv::KvCache,
        memory::pass::Pass,
        spec::Rotation,
    },
    weights::RopeStyle,
};

/// The program that runs the kernels, compiled once.
pub(super) static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::compile(include_str!("kernels.metal"), "-O2"));

/// Kernels compiled as C++.
pub(super) struct Program {
    folder: tempfile::TempDir,
    /// Which of the mistakes in its source it makes (see `mistakes`); 0: none.
    pub(super) mistake: usize,
}

impl Program {
    pub(super) fn compile(source: &str, level: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kernels.metal"), source).unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nn/backend/metal/emulation");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let output = Command::new(compiler)
            .args(["-std=c++20", level, "-w", "-x", "c++", "-I"])
            .arg(&here)
            .arg("-I")
            .arg(folder.path())
            .arg(here.join("run.cpp"))
            .arg("-o")
            .arg(folder.path().join("run"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder, mistake: 0 }
    }

    /// Runs a dispatch over its buffers.
    pub(super) fn launch(&self, launch: &Launch, buffers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        let [x, y, z] = launch.groups;
        // What takes a position in the grid is run by threads.
        let grid = if launch.kernel.starts_with("store_") { [x * launch.threads, y, z] } else { launch.groups };
        self.run(launch.kernel, grid, launch.shared_bytes, buffers)
    }

    /// Runs a kernel over its buffers, and answers what has become of them.
    fn run(
        &self,
        kernel: &str,
        grid: [usize; 3],
        shared_bytes: usize,
        buffers: &[Vec<u8>],
    ) -> Result<Vec<Vec<u8>>, String> {
        let mut command = Command::new(self.folder.path().join("run"));
        command.arg(kernel).args(grid.map(|side| side.to_string())).arg(shared_bytes.to_string());
        command.env("MISTAKE", self.mistake.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for buffer in buffers {
            stdin.write_all(&(buffer.len() as u64).to_le_bytes()).unwrap();
            stdin.write_all(buffer).unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(format!("{kernel}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
        let (mut out, mut rest) = (Vec::new(), output.stdout.as_slice());
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let (bytes, after) = after.split_at(u64::from_le_bytes(*length) as usize);
            out.push(bytes.to_vec());
            rest = after;
        }
        Ok(out)
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn of(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Says where values are not the formula's.
fn close(ours: &[f32], formula: &[f32], most: f32, what: &str) -> Result<(), String> {
    if ours.len() != formula.len() {
        return Err(format!("{what}: {} values, not {}", ours.len(), formula.len()));
    }
    for (place, (ours, formula)) in ours.iter().zip(formula).enumerate() {
        // What is no number is not close to any.
        if !matches!((ours - formula).abs().partial_cmp(&most), Some(Ordering::Less | Ordering::Equal)) {
            return Err(format!("{what}: value {place} is {ours}, not {formula}"));
        }
    }
    Ok(())
}

/// A model's attention, and how its heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) family: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotated: usize,
    style: RopeStyle,
    window: Option<usize>,
    softcap: Option<f32>,
    has_sinks: bool,
    kv: KvType,
}

const PLAIN: Case = Case {
    family: "llama",
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    rotated: 64,
    style: RopeStyle::NeoX,
    window: None,
    softcap: None,
    has_sinks: false,
    kv: KvType::F16,
};

/// The shapes of all families, with fewer heads.
pub(super) const CASES: [Case; 8] = [
    PLAIN,
    Case { family: "llama as GGUF, in f32", style: RopeStyle::Interleaved, kv: KvType::F32, ..PLAIN },
    Case { family: "mistral", head_dim: 128, rotated: 128, window: Some(24), heads: 4, kv_heads: 1, ..PLAIN },
    Case { family: "phi", head_dim: 80, rotated: 32, heads: 3, kv_heads: 3, ..PLAIN },
    Case { family: "qwen, odd group", heads: 7, kv_heads: 1, ..PLAIN },
    Case { family: "gemma", head_dim: 256, rotated: 256, heads: 2, kv_heads: 1, softcap: Some(5.0), ..PLAIN },
    Case { family: "glm", head_dim: 96, rotated: 48, heads: 32, kv_heads: 2, style: RopeStyle::Interleaved, ..PLAIN },
    Case { family: "gpt-oss", heads: 16, window: Some(20), has_sinks: true, ..PLAIN },
];

/// A step of three sequences: a decode, the chunk of a prompt after a past, and a whole prompt; blocks in any order.
fn spans() -> (Vec<Vec<u32>>, [(usize, usize); 3]) {
    let sizes: [(usize, usize); 3] = [(37, 1), (20, 9), (0, 70)];
    let mut next = 0;
    let tables = sizes.map(|(past, len)| {
        let blocks = (past + len).div_ceil(BLOCK_TOKENS) as u32;
        next += blocks;
        (next - blocks..next).rev().collect::<Vec<u32>>()
    });
    (tables.to_vec(), sizes)
}

/// Holds the kernels of a model's attention against the formulas.
pub(super) fn check(program: &Program, case: Case) -> Result<(), String> {
    let formulas = Formulas::plain(Device::Cpu);
    let (tables, sizes) = spans();
    let (mut spans, mut start) = (Vec::new(), 0);
    for (place, ((past, len), blocks)) in sizes.into_iter().zip(&tables).enumerate() {
        let (adapter, adapter_scale, want, output, mask) = (0, 0.0, Want::Last, Output::Logits, &[][..]);
        let caches = vec![Table::Blocks(blocks.into())];
        spans.push(Span {
            sequence: place as u64,
            start,
            len,
            past,
            want,
            output,
            mask,
            adapter,
            adapter_scale,
            caches,
        });
        start += len;
    }
    let tokens = start;
    let blocks = tables.iter().map(Vec::len).sum::<usize>();
    let Case { heads, kv_heads, head_dim, kv: kind, .. } = case;
    let ids = vec![0; tokens];
    let batch = Batch { tokens: &ids, positions: &ids, spans, top: 0 };

    let shape = KvShape::uniform(1, kv_heads, head_dim);
    let mut cache = KvCache::new(&shape, kind, &[blocks], |_| 0, |_, shape, _| formulas.store(shape)).unwrap();
    let slots = blocks * BLOCK_TOKENS;
    let before = |seed: f32| -> Vec<f32> {
        let values = (0..kv_heads * slots * head_dim).map(|i| (i as f32 * seed).sin());
        values.map(|value| f16::from_f32(value).to_f32()).collect()
    };
    let past = [before(1.3), before(0.7)];
    for (store, past) in cache.layer(0).unwrap().iter().zip(&past) {
        let memory = store.tensor().unwrap();
        let past = Tensor::from_slice(past, (kv_heads, slots, head_dim), &Device::Cpu).unwrap();
        memory.slice_set(&past.to_dtype(memory.dtype()).unwrap(), 1, 0).unwrap();
    }

    let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| formulas.wave(tokens, heads * head_dim).unwrap());
    let k = (k * 0.7).unwrap();
    let half = case.rotated / 2;
    let (cos, sin) = (formulas.wave(tokens, half).unwrap(), (formulas.wave(tokens, half).unwrap() * 0.5).unwrap());
    let rotation = Rotation { cos, sin, style: case.style };
    let sinks = case.has_sinks.then(|| formulas.wave(1, heads).unwrap().squeeze(0).unwrap());
    let (window, softcap) = (case.window, case.softcap);
    let attention = Attention::new(0, heads, kv_heads, head_dim).unwrap();
    let spec = Attention { window, softcap, sinks: sinks.clone(), ..attention };
    let mut pass = Pass::new(&batch, &mut cache);
    let formula = formulas.rotated_attention(&spec, [&q, &k, &v], &rotation, &mut pass).unwrap();

    // The same by the kernels.
    let inputs = Inputs::of(&batch, 0);
    let is_half = kind == KvType::F16;
    let pack = |values: &[f32]| match is_half {
        true => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        false => bytes(values),
    };
    let suffix = if is_half { "f16" } else { "f32" };
    let shape = StoreShape {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        half_dim: half as u32,
        is_interleaved: u32::from(case.style == RopeStyle::Interleaved),
        rotates: 1,
        tokens: tokens as u32,
        slots: slots as u32,
    };
    let words = |words: &[u32]| bytemuck::cast_slice(words).to_vec();
    let stored = program.run(
        &format!("store_{suffix}"),
        shape.grid(),
        0,
        &[
            bytes(&of(&q)),
            bytes(&of(&k)),
            bytes(&of(&v)),
            bytes(&of(&rotation.cos)),
            bytes(&of(&rotation.sin)),
            words(&inputs.slots),
            bytemuck::bytes_of(&shape).to_vec(),
            vec![0xFF; 4 * tokens * heads * head_dim],
            pack(&past[0]),
            pack(&past[1]),
        ],
    )?;
    let mut memory = |at: usize| of(&cache_tensor(&mut cache, at));
    let unpack = |bytes: &[u8]| -> Vec<f32> {
        match is_half {
            true => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            false => values(bytes),
        }
    };
    for (at, name) in [(0, "keys"), (1, "values")] {
        close(&unpack(&stored[8 + at]), &memory(at), 2e-3, &format!("{}: {name}", case.family))?;
    }
    let shape = AttendShape {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        slots: slots as u32,
        tiles: inputs.tiles.len() as u32,
        window: window.unwrap_or(0) as u32,
        has_sinks: u32::from(case.has_sinks),
        scale: spec.scale,
        softcap: softcap.unwrap_or(0.0),
    };
    let attended = program.run(
        &format!("attend_{suffix}"),
        shape.grid(inputs.longest),
        shape.shared_bytes(),
        &[
            stored[7].clone(),
            stored[8].clone(),
            stored[9].clone(),
            words(inputs.tiles.as_flattened()),
            words(&inputs.tables),
            bytes(&sinks.as_ref().map(of).unwrap_or_default()),
            bytemuck::bytes_of(&shape).to_vec(),
            vec![0xFF; 4 * tokens * heads * head_dim],
        ],
    )?;
    close(&values(&attended[7]), &of(&formula), 2e-3, case.family)
}

fn cache_tensor(cache: &mut KvCache, at: usize) -> Tensor {
    let store = cache.layer(0).unwrap()[at].tensor().unwrap();
    store.to_dtype(candle_core::DType::F32).unwrap()
}

/// Holds the norm of a sum against the formula.
pub(super) fn check_norm(program: &Program) -> Result<(), String> {
    let formulas = Formulas::plain(Device::Cpu);
    for (rows, width) in [(1, 64), (3, 2048), (2, 300)] {
        let (x, delta) = (formulas.wave(rows, width).unwrap(), (formulas.wave(rows, width).unwrap() * 0.3).unwrap());
        let weight = formulas.wave(1, width).unwrap().squeeze(0).unwrap();
        let (sum, normed) = formulas.add_rms_norm(&x, &delta, &weight, 1e-5).unwrap();
        let shape = NormShape { width: width as u32, eps: 1e-5 };
        let empty = vec![0xFF; 4 * rows * width];
        let mut buffers: Vec<Vec<u8>> = [&x, &delta, &weight].map(|tensor| bytes(&of(tensor))).to_vec();
        buffers.extend([bytemuck::bytes_of(&shape).to_vec(), empty.clone(), empty]);
        let out = program.run("add_rms_norm", [rows, 1, 1], 0, &buffers)?;
        close(&values(&out[4]), &of(&sum), 0.0, "sum")?;
        close(&values(&out[5]), &of(&normed), 1e-5, "norm")?;
    }
    Ok(())
}

#[test]
fn paged_attention_on_metal_is_the_formula_s_for_the_shapes_of_all_families() {
    for case in CASES {
        check(&PROGRAM, case).unwrap();
    }
}

#[test]
fn the_norm_of_a_sum_on_metal_is_the_formula_s() {
    check_norm(&PROGRAM).unwrap();
}

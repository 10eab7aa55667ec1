//! Measures attention of a prompt by context, threads and instruction set:
//! `cargo run --release -p pensieve-kernels --example attention [-- THREADS,…] [CONTEXT,…] [HEAD_DIM,…] [ROWS,…] [KV_HEADS,…]`.
//!
//! The last rows of a context attend to all before them, 32 heads over 8 or as many as given, keys and values in `f16`. The instruction sets
//! take turns, and the fastest of several runs counts.

use std::time::Instant;

use half::f16;
use pensieve_kernels::{Kv, KvLayout, Level, Past, Pool, Scores, Span, attention};

const HEADS: usize = 32;
const BLOCK: usize = 16;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut list = |default: &str| -> Vec<usize> {
        let list = arguments.next().unwrap_or_else(|| default.to_owned());
        list.split(',').filter_map(|number| number.parse().ok()).collect()
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let (threads, contexts, dims) = (list(&format!("1,{all}")), list("512,2048,8192,16384"), list("64,128"));
    let (rows, kv_heads) = (list("512"), list("8"));
    let levels: Vec<Level> = Level::available().filter(|level| level.name() != "portable").collect();
    let names = levels.iter().map(|level| format!("{:>9}", level.name())).collect::<String>();
    println!(
        "G multiply-adds per second\n{:>8}{:>9}{:>6}{:>6}{:>9}{names}",
        "threads", "context", "dim", "rows", "kv heads"
    );
    for &threads in &threads {
        let pools: Vec<Pool> = levels.iter().map(|level| Pool::with_level(threads, *level)).collect();
        let cases = contexts.iter().flat_map(|context| dims.iter().map(move |dim| (*context, *dim)));
        let cases = cases.flat_map(|case| rows.iter().map(move |rows| (case, *rows)));
        for (((context, dim), rows), &kv_heads) in
            cases.flat_map(|case| kv_heads.iter().map(move |heads| (case, heads)))
        {
            let past = context.saturating_sub(rows);
            let blocks: Vec<u32> = (0..(past + rows).div_ceil(BLOCK) as u32).rev().collect();
            let slots = blocks.len() * BLOCK;
            let layout = KvLayout { kv_heads, slots, head_dim: dim, block_len: BLOCK };
            let number = |i: usize| ((i * 7919) as f32 * 0.618).sin();
            let cache: Vec<f16> = (0..kv_heads * slots * dim).map(|i| f16::from_f32(number(i))).collect();
            let q: Vec<f32> = (0..rows * HEADS * dim).map(number).collect();
            let mut out = vec![0.0; q.len()];
            let scores =
                Scores { scale: 0.1, window: None, ahead: 0, seen: None, softcap: None, sinks: None, distances: None };
            let kv = (layout, Kv::F16(&cache));
            let span = Span { start: 0, len: rows, past, blocks: &blocks };
            let mut fastest = vec![f64::INFINITY; pools.len()];
            for _ in 0..if rows < 16 { 50 } else { 5 } {
                for (pool, fastest) in pools.iter().zip(&mut fastest) {
                    let begun = Instant::now();
                    attention(
                        pool,
                        Past { keys: kv, values: kv, value_dim: dim },
                        &[span],
                        scores,
                        HEADS,
                        &q,
                        &mut out,
                    );
                    *fastest = fastest.min(begun.elapsed().as_secs_f64());
                }
            }
            let seen: usize = (0..rows).map(|row| past + row + 1).sum();
            let work = (2 * seen * HEADS * dim) as f64 * 1e-9;
            let rates = fastest.iter().map(|seconds| format!("{:9.0}", work / seconds)).collect::<String>();
            println!("{threads:>8}{:>9}{dim:>6}{rows:>6}{kv_heads:>9}{rates}", past + rows);
        }
    }
}

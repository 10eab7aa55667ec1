//! Measures products by format, number of rows, threads, size and instruction set:
//! `cargo run --release -p pensieve-kernels --example products [-- THREADS,…] [ROWS,…] [FORMAT,…] [OUTPUTSxINPUTS,…]`.
//!
//! The instruction sets take turns, and the fastest of many runs counts, so that other programs disturb little. The example
//! is one file without dependencies at run time, so it can be copied to another machine.

use std::time::Instant;

use pensieve_kernels::{Level, Matrix, Pool, matmul};
use pensieve_weights::Dtype;

const FORMATS: &str = "Q4K,Q5K,Q6K,Q8_0,Q4_0,IQ4XS,MXFP4,BF16,F16,F32";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut list = |default: &str| -> Vec<String> {
        arguments.next().unwrap_or_else(|| default.to_owned()).split(',').map(str::to_owned).collect()
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let numbers = |list: Vec<String>| -> Vec<usize> { list.iter().filter_map(|number| number.parse().ok()).collect() };
    let threads = numbers(list(&format!("1,{all}")));
    let rows = numbers(list("8,16,32,64,128,512"));
    let formats = list(FORMATS);
    let sizes = list("2048x2048");
    let size = |size: &String| size.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let Some(sizes) = sizes.iter().map(size).collect::<Option<Vec<(usize, usize)>>>() else {
        eprintln!("sizes are given as OUTPUTSxINPUTS,…, such as 2048x2048,1024x4096");
        std::process::exit(2);
    };
    let levels: Vec<Level> = Level::available().filter(|level| level.name() != "portable").collect();
    let names = levels.iter().map(|level| format!("{:>9}", level.name())).collect::<String>();
    println!("G multiply-adds per second\n{:<10}{:>13}{:>8}{:>6}{names}", "format", "size", "threads", "rows");
    for &threads in &threads {
        let pools: Vec<Pool> = levels.iter().map(|level| Pool::with_level(threads, *level)).collect();
        for dtype in Dtype::ALL.into_iter().filter(|dtype| formats.contains(&format!("{dtype:?}"))) {
            for (&(outputs, cols), &rows) in sizes.iter().flat_map(|size| rows.iter().map(move |rows| (size, rows))) {
                // Several matrices in turn, as in a model, so that weights come from memory rather than from a small cache.
                let bytes = dtype.row_bytes(cols).unwrap_or_default() * outputs;
                let data = vec![0x11; 4 * bytes];
                let x: Vec<f32> = (0..rows * cols).map(|i| (i as f32).sin()).collect();
                let mut out = vec![0.0; rows * outputs];
                let mut fastest = vec![f64::INFINITY; pools.len()];
                for round in 0..if rows > 64 { 24 } else { 60 } {
                    let w = &data[round % 4 * bytes..][..bytes];
                    let w = Matrix { dtype, data: w, rows: outputs, cols };
                    for (pool, fastest) in pools.iter().zip(&mut fastest) {
                        let begun = Instant::now();
                        matmul(pool, &w, &x, rows, &mut out);
                        *fastest = fastest.min(begun.elapsed().as_secs_f64());
                    }
                }
                let work = (rows * outputs * cols) as f64 * 1e-9;
                let rates = fastest.iter().map(|seconds| format!("{:9.0}", work / seconds)).collect::<String>();
                println!("{:<10}{outputs:>6}x{cols:<6}{threads:>8}{rows:>6}{rates}", format!("{dtype:?}"));
            }
        }
    }
}

//! One product on one thread, so that its instructions can be counted: `once LEVEL FORMAT ROWS OUTPUTS`, for `tests/peers/count_arm.py`.
//!
//! Weights have 2,048 columns. The number of outputs changes nothing but the product itself, so the difference between two of them
//! counts products alone.

use pensieve_kernels::{Level, Matrix, Pool, matmul};
use pensieve_weights::Dtype;

const COLS: usize = 2048;
const OUTPUTS_MAX: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [level, format, rows, outputs] = &arguments[..] else { usage() };
    let level = Level::available().find(|available| available.name() == level);
    let dtype = Dtype::ALL.into_iter().find(|dtype| format!("{dtype:?}") == *format);
    let (Some(level), Some(dtype), Ok(rows), Ok(outputs)) = (level, dtype, rows.parse::<usize>(), outputs.parse())
    else {
        usage()
    };
    let (Some(row_bytes), 0..=OUTPUTS_MAX) = (dtype.row_bytes(COLS), outputs) else { usage() };
    let data = vec![0x11; OUTPUTS_MAX * row_bytes];
    let x: Vec<f32> = (0..rows * COLS).map(|i| (i as f32).sin()).collect();
    let mut out = vec![0.0; rows * OUTPUTS_MAX];
    let w = Matrix { dtype, data: &data[..outputs * row_bytes], rows: outputs, cols: COLS };
    matmul(&Pool::with_level(1, level), &w, &x, rows, &mut out[..rows * outputs]);
}

fn usage() -> ! {
    eprintln!("usage: once LEVEL FORMAT ROWS OUTPUTS, with at most {OUTPUTS_MAX} outputs");
    std::process::exit(2);
}

//! The program's verbs, one per file.

pub mod answer;
pub mod plugins;

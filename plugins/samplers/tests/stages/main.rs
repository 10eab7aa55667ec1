//! The stages against definitions written out in f64 with full sorts, and against the inputs that break samplers.

#![allow(clippy::unwrap_used)]

mod chain;
mod narrow;
mod parameters;
mod pick;
mod reference;
mod reweigh;
mod speed;

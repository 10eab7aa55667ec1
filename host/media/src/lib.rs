//! Media processes: they decode the pictures of clients and have a model's plugin prepare them, so that neither the server
//! nor a worker reads a file format.
//!
//! A decoder reads what a stranger made, and a plugin is native code: both run here, behind a fence that lets them read the
//! plugin's library and nothing else, with limits of memory and time. The checkpoint stays closed; a plugin that needs its
//! settings has put them into the description that it made of the checkpoint. A picture that ends the process costs only the
//! request that sent it.
//!
//! [`serve`] runs the process, [`picture`] has the decoders.

mod items;
pub mod picture;
mod process;

pub use process::serve;

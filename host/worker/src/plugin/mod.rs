//! Plugins: opening them, and what they are told of the host.
//!
//! A plugin is native code in this process: it can do everything that this process can, and a damaged one may bring the
//! process down while the system maps it. So only a worker, or a short-lived child that inspects, ever calls
//! [`LoadedPlugin::open`]; the server knows a plugin by its [`pensieve_protocol::manifest::Manifest`], which is plain data. What can be refused without
//! running a byte of the plugin is refused first, each failure with an error of its own that says what to do.

pub mod card;
mod error;
mod load;
mod manifest;
mod object;
mod services;

pub use error::{LoadError, Reason};
pub use load::LoadedPlugin;
pub use services::{Cancel, HostServices};

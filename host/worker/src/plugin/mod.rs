//! Plugins: opening them, and the host's services for them.
//!
//! A plugin is native code in this process: it can do everything that this process can, and a damaged file may crash
//! the process while the system maps it. So only a worker, or a short-lived child that inspects it, ever calls
//! [`LoadedPlugin::open`]; the server knows a plugin by its [`pensieve_protocol::manifest::Manifest`], which is plain
//! data. Checks that need no code of the plugin come first, and each failure has its own error with help.

pub mod card;
mod error;
mod load;
mod manifest;
pub mod media;
mod object;
pub mod rows;
mod services;

pub use error::{LoadError, Reason};
pub use load::LoadedPlugin;
pub use services::{Cancel, HostServices};

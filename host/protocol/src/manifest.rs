//! What a plugin provides, as plain data.
//!
//! A worker or an inspecting child copies it out of the plugin's memory and holds it to limits; the server routes by it and
//! prints it without ever having mapped the library.

use serde::{Deserialize, Serialize};

/// Who a plugin is and what it provides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Short and unique among installed plugins: `llama`.
    pub id: String,
    pub version: String,
    /// One line for a person.
    pub description: String,
    /// The compiler that built it.
    pub toolchain: String,
    /// The kit it was built with; empty for none.
    pub sdk: String,
    /// The architectures that it provides, each with the checkpoints that it claims.
    pub architectures: Vec<Claim>,
    pub samplers: Vec<String>,
    pub adapter_formats: Vec<String>,
}

/// The checkpoints that an architecture claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub architecture: String,
    /// Values of a GGUF file's `general.architecture`.
    pub gguf: Vec<String>,
    /// Values in the `architectures` of a `config.json`.
    pub classes: Vec<String>,
}

//! Converts errors of plugins and adapters to the failures that jobs end with.

use std::path::Path;

use crate::plugin::LoadError;
use pensieve_plugin_api as api;
use pensieve_protocol::job::{Failure, FailureCode};
use pensieve_protocol::outside::Outside;

/// Converts the error of a plugin that could not be loaded.
pub fn of_load(error: &LoadError) -> Failure {
    Failure::new(FailureCode::Plugin, error.message()).with_help(error.help())
}

/// Converts a plugin's error to terms that clients and users understand.
pub fn of_plugin(error: api::PluginError) -> Failure {
    let code = match error.code {
        api::ErrorCode::UNSUPPORTED => FailureCode::Unsupported,
        api::ErrorCode::NOT_FOUND => FailureCode::NotFound,
        api::ErrorCode::DEVICE => FailureCode::Device,
        _ => FailureCode::Plugin,
    };
    Failure::new(code, error.message.into_string()).with_help(error.help.into_string())
}

/// Converts an error about an adapter, which is usually the adapter's fault: something it lacks is not missing from the
/// request's model.
pub fn of_adapter(error: api::PluginError) -> Failure {
    let code = match error.code {
        api::ErrorCode::UNSUPPORTED => FailureCode::Unsupported,
        api::ErrorCode::INVALID | api::ErrorCode::CORRUPT | api::ErrorCode::NOT_FOUND | api::ErrorCode::IO => {
            FailureCode::Invalid
        }
        _ => FailureCode::Plugin,
    };
    Failure { code, ..of_plugin(error) }
}

/// Returns a path in the form that crosses the ABI: UTF-8.
pub fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(FailureCode::Invalid, format!("the path '{}' is not UTF-8", Outside::path(&path)))
            .with_help("rename it")
    })
}

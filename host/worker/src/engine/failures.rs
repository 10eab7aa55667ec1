//! Errors of plugins and adapters as the failures that jobs end with.

use std::path::Path;

use crate::plugin::LoadError;
use pensieve_plugin_api as api;
use pensieve_protocol::job::{Failure, FailureCode};
use pensieve_protocol::outside::Outside;

/// A plugin that could not be loaded.
pub fn of_load(error: &LoadError) -> Failure {
    Failure::new(FailureCode::Plugin, error.message()).with_help(error.help())
}

/// A plugin's error in terms of clients and users.
pub fn of_plugin(error: api::PluginError) -> Failure {
    let code = match error.code {
        api::ErrorCode::UNSUPPORTED => FailureCode::Unsupported,
        api::ErrorCode::NOT_FOUND => FailureCode::NotFound,
        _ => FailureCode::Plugin,
    };
    Failure::new(code, error.message.into_string()).with_help(error.help.into_string())
}

/// The same for an error over an adapter, which is mostly the adapter's fault: what it lacks, the request's model does not.
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

/// A path in the form in which it can cross the ABI: UTF-8.
pub fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(FailureCode::Invalid, format!("the path '{}' is not UTF-8", Outside::path(&path)))
            .with_help("rename it")
    })
}

//! What went wrong in a plugin or an adapter, as the failure that a job ends with.

use std::path::Path;

use pensieve_plugin_api as api;
use pensieve_protocol::job::{Failure, FailureCode};
use pensieve_protocol::outside::Outside;

/// What a plugin's error means to a client or a user.
pub fn of_plugin(error: api::PluginError) -> Failure {
    let code = match error.code {
        api::ErrorCode::UNSUPPORTED => FailureCode::Unsupported,
        api::ErrorCode::NOT_FOUND => FailureCode::NotFound,
        _ => FailureCode::Plugin,
    };
    Failure::new(code, error.message.into_string()).with_help(error.help.into_string())
}

/// The same of an error over an adapter, whose fault it mostly is: whatever it lacks is no affair of the request's model.
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

/// A path as it can cross.
pub fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(FailureCode::Invalid, format!("the path '{}' is not UTF-8", Outside::path(&path)))
            .with_help("rename it")
    })
}

//! Sections that the plugin's library measures on its device (`draft/diagnostics/1`), in a child of the report.

use pensieve_plugin_api::{
    ErrorCode,
    ext::diagnostics::{Diagnostics, ID},
};
use serde_json::{Value, json};
use std::path::Path;

use super::{
    super::{
        error::{CliError, Exit},
        laws,
        reply::SharedReply,
    },
    event::SectionEvent,
};

pub(super) fn measure(
    plugin: &Path,
    name: &str,
    device: &str,
    quick: bool,
    reply: &SharedReply,
) -> Result<SectionEvent, CliError> {
    let plugin = laws::open(plugin)?;
    let failed = |what: String| CliError::new(Exit::Failed, what);
    let Some(table) = plugin.extension::<Diagnostics>(ID) else {
        let why = format!("plugin '{}' measures no devices", plugin.manifest().id);
        return Ok(SectionEvent::NotHere { why });
    };
    let table = table.map_err(|error| failed(error.to_string()))?;
    if !(table.sections)().iter().any(|known| known == name) {
        return Ok(SectionEvent::NotHere { why: format!("plugin '{}' has no such section", plugin.manifest().id) });
    }
    let services = reply.services(
        |message| SectionEvent::Warns { message },
        |done, total, what| SectionEvent::Reaches { done, total, what },
    );
    let settings = json!({ "device": device, "quick": quick }).to_string();
    let measured = (table.measure)(name.into(), settings.as_str().into(), services.into_abi()).into_result();
    match measured {
        Ok(text) => {
            let value: Value = serde_json::from_str(&text).map_err(|error| failed(format!("no JSON: {error}")))?;
            Ok(SectionEvent::Found(value))
        }
        Err(error) if error.code == ErrorCode::UNSUPPORTED => {
            Ok(SectionEvent::NotHere { why: error.message.to_string() })
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

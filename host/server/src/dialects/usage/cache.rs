//! Where a prompt's tokens came from and why some were not cached, as JSON: the `pensieve` member of an answer's usage,
//! which is the same in every API.

use serde_json::{Value, json};

use crate::chat::{CacheMiss, CacheReport, EvictedBy, Eviction};

/// The `pensieve` member.
pub(in crate::dialects) fn report_json(report: &CacheReport) -> Value {
    let CacheReport { memory_tokens, disk_tokens, computed_tokens, miss } = report;
    let mut value = json!({ "prompt": { "memory": memory_tokens, "disk": disk_tokens, "computed": computed_tokens } });
    if let Some(miss) = miss {
        value["cache_miss"] = miss_json(miss);
    }
    value
}

/// Adds it to a usage object, or to an answer of an API without one.
pub(in crate::dialects) fn add_report(usage: &mut Value, report: Option<&CacheReport>) {
    if let Some(report) = report {
        usage["pensieve"] = report_json(report);
    }
}

/// Why a prompt was not cached.
pub(super) fn miss_json(miss: &CacheMiss) -> Value {
    let CacheMiss { kind, at_token, message, text, eviction } = miss;
    let mut value = json!({ "kind": kind.name(), "at_token": at_token });
    if let Some(message) = message {
        value["message"] = (*message).into();
    }
    if !text.is_empty() {
        value["text"] = text.as_str().into();
    }
    if let Some(Eviction { ago, by }) = eviction {
        value["evicted"] = match by {
            EvictedBy::OwnRequest(request) => json!({ "by": "request", "request": request }),
            EvictedBy::OtherClient => json!({ "by": "another_client" }),
            EvictedBy::Unload(reason) => json!({ "by": "unload", "reason": reason }),
        };
        value["evicted"]["seconds_ago"] = ((ago.as_secs_f64() * 10.0).round() / 10.0).into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::MissKind;
    use std::time::Duration;

    #[test]
    fn a_report_says_what_is_known_and_nothing_else() {
        let mut usage = json!({});
        add_report(&mut usage, None);
        assert_eq!(usage, json!({}));
        let report = CacheReport { memory_tokens: 16, disk_tokens: 32, computed_tokens: 5, miss: None };
        assert_eq!(report_json(&report), json!({"prompt": {"memory": 16, "disk": 32, "computed": 5}}));
        let miss = CacheMiss {
            kind: MissKind::Evicted,
            at_token: 48,
            message: None,
            text: String::new(),
            eviction: Some(Eviction { ago: Duration::from_millis(1230), by: EvictedBy::Unload("idle") }),
        };
        add_report(&mut usage, Some(&CacheReport { miss: Some(miss), ..report }));
        let expected = json!({
            "kind": "evicted", "at_token": 48, "evicted": {"by": "unload", "reason": "idle", "seconds_ago": 1.2},
        });
        assert_eq!(usage["pensieve"]["cache_miss"], expected);
    }
}

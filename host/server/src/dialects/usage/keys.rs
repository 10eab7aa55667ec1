//! The `keys` of `GET /v1/usage`: what each key has used by day and model, and what it may use. A named key sees itself; the
//! server's own key sees all.

use serde_json::{Value, json};

use crate::{
    dialects::{ApiError, ApiRequest},
    keys::{Account, DEFAULT_NAME, DayUsage, Tally},
};

/// The most days that can be asked for.
const DAYS_MAX: u32 = 400;

/// Usage of the keys that the client may see, today or of the last `days` of the query.
pub(super) fn usage_of(call: &ApiRequest) -> Result<Vec<Value>, ApiError> {
    let days = days(&call.query)?;
    let (table, ledger) = (call.shared.keyring.table(), &call.shared.ledger);
    let shown = |name: &str, account: Option<&Account>| key_json(name, account, &ledger.last_days(name, days));
    if let Some(account) = &call.client().account {
        return Ok(vec![shown(account.name(), Some(account.as_ref()))]);
    }
    let accounts = table.accounts.iter().map(|account| (account.name().to_owned(), Some(account.as_ref())));
    // Keys that are no more have used something all the same.
    let is_gone = |name: &String| name != DEFAULT_NAME && table.accounts.iter().all(|account| account.name() != name);
    let gone = ledger.names(days).into_iter().filter(is_gone).map(|name| (name, None));
    let all = [(DEFAULT_NAME.to_owned(), None)].into_iter().chain(accounts).chain(gone);
    Ok(all.map(|(name, account)| shown(&name, account)).collect())
}

/// `days=N` of a query; 1 without it.
fn days(query: &str) -> Result<u32, ApiError> {
    let Some(text) = query.split('&').find_map(|pair| pair.strip_prefix("days=")) else { return Ok(1) };
    let days = text.parse().ok().filter(|days| (1..=DAYS_MAX).contains(days));
    days.ok_or_else(|| ApiError::field("days", format!("should be a number from 1 to {DAYS_MAX}")))
}

fn key_json(name: &str, account: Option<&Account>, days: &[DayUsage]) -> Value {
    let spent = days.first().map_or(0, |today| today.total().spent());
    let limit = account.and_then(Account::tokens_per_day);
    json!({
        "name": name,
        "tokens_today": spent,
        "tokens_per_day": limit,
        "tokens_left": limit.map(|limit| limit.saturating_sub(spent)),
        "requests_running": account.map(Account::running),
        "requests_max": account.and_then(Account::requests_max),
        "days": days.iter().map(day_json).collect::<Vec<_>>(),
    })
}

fn day_json(usage: &DayUsage) -> Value {
    let models = usage.models.iter().map(|(model, tally)| {
        let mut value = tally_json(tally);
        value["model"] = model.as_str().into();
        value
    });
    let models: Vec<Value> = models.collect();
    let mut value = tally_json(&usage.total());
    value["day"] = usage.day.to_string().into();
    value["models"] = models.into();
    value
}

fn tally_json(tally: &Tally) -> Value {
    let Tally { requests, input, cached, output } = tally;
    json!({ "requests": requests, "input_tokens": input, "cached_tokens": cached, "output_tokens": output })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        chat::Client,
        dialects::Shared,
        keys::{Key, Keyring, Ledger, NamedKey},
    };
    use std::sync::Arc;

    fn call(client: Client, query: &str) -> ApiRequest {
        let named = |name: &str| NamedKey {
            name: name.into(),
            keys: vec![Key::new(name)],
            tokens_per_day: Some(100),
            ..NamedKey::default()
        };
        let ledger = Ledger::default();
        let tally = Tally { requests: 1, input: 70, cached: 60, output: 5 };
        for name in ["alice", "gone", DEFAULT_NAME] {
            ledger.add(name, "small", tally);
        }
        let keyring = Arc::new(Keyring::new(&[Key::new("own")], &[named("alice"), named("bob")], false));
        let shared = Arc::new(Shared { keyring, ledger: Arc::new(ledger), ..Shared::default() });
        ApiRequest { client: Some(client), query: query.into(), shared, ..ApiRequest::default() }
    }

    #[test]
    fn the_servers_key_sees_all_and_a_named_one_itself() {
        let names = |keys: &[Value]| -> Vec<String> {
            keys.iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect()
        };
        let all = usage_of(&call(Client::default(), "")).unwrap();
        assert_eq!(names(&all), [DEFAULT_NAME, "alice", "bob", "gone"]);
        assert_eq!((&all[1]["tokens_today"], &all[1]["tokens_left"]), (&json!(15), &json!(85)));
        assert_eq!((&all[0]["tokens_per_day"], &all[3]["tokens_today"]), (&Value::Null, &json!(15)));
        let day = &all[1]["days"][0];
        let counts =
            json!({"requests": 1, "input_tokens": 70, "cached_tokens": 60, "output_tokens": 5, "model": "small"});
        assert_eq!((&day["models"][0], &day["input_tokens"]), (&counts, &json!(70)));
        let account = call(Client::default(), "").shared.keyring.table().accounts[1].clone();
        let own = usage_of(&call(Client { account: Some(account), ..Client::default() }, "days=30")).unwrap();
        assert_eq!((names(&own), &own[0]["tokens_today"]), (vec!["bob".to_owned()], &json!(0)));
    }

    #[test]
    fn days_are_a_number() {
        assert_eq!((days("").unwrap(), days("a=1&days=31").unwrap()), (1, 31));
        for wrong in ["days=", "days=0", "days=401", "days=x"] {
            assert_eq!(days(wrong).unwrap_err().field.as_deref(), Some("days"), "{wrong}");
        }
    }
}

//! `[[keys]]`: keys that have names and limits. The file has their hashes alone.

use std::collections::HashSet;

use super::{ServerSettings, reader::Section};
use pensieve_protocol::outside::Outside;
use pensieve_server::http::{Key, LOCAL_KEY, NamedKey, check_key_name};

const NAME_HELP: &str = "it takes 1 to 64 letters, digits and -_. signs, other than 'default'";
const HASH_HELP: &str = "it takes \"sha256:\" and 64 hexadecimal digits, or a list of such; 'pensieve keys new NAME' makes a key and its hash";

pub(super) fn read(root: &Section<'_, '_>) -> Vec<NamedKey> {
    let (mut keys, mut names) = (Vec::new(), HashSet::new());
    for section in root.sections("keys") {
        let mut key = NamedKey::default();
        let (mut hashes, mut tokens, mut requests) = (Vec::new(), 0_u64, 0_usize);
        section.text("name", &mut key.name);
        section.text_or_texts("hash", &mut hashes);
        section.texts("models", &mut key.models);
        section.integer("tokens_per_day", 1..=1 << 50, &mut tokens);
        section.integer("requests", 1..=100_000, &mut requests);
        key.tokens_per_day = Some(tokens).filter(|tokens| *tokens > 0);
        key.requests_max = Some(requests).filter(|requests| *requests > 0);
        let shown = Outside::new(&key.name).at_most(64).to_string();
        if let Err(what) = check_key_name(&key.name) {
            section.note("name", format!("the 'name' in [[keys]] {what}"), NAME_HELP);
        } else if !names.insert(key.name.clone()) {
            section.note("name", format!("two [[keys]] have the name '{shown}'"), "rename one of them");
        }
        if hashes.is_empty() {
            section.note("hash", format!("'{shown}' in [[keys]] has no 'hash'"), HASH_HELP);
        }
        for text in &hashes {
            // It may be the key itself, put there by mistake, so it is not repeated.
            match Key::from_hash(text) {
                Some(hash) => key.keys.push(hash),
                None => section.note("hash", format!("the 'hash' of '{shown}' in [[keys]] is not one"), HASH_HELP),
            }
        }
        if section.has("models") && key.models.is_empty() {
            let help = "name ids of models, such as \"pensieve-*\", or leave it out for all";
            section.note("models", format!("'models' of '{shown}' in [[keys]] is an empty list"), help);
        }
        section.finish();
        keys.push(key);
    }
    keys
}

/// Checks that every key stands for one name, and can be a secret.
pub(super) fn check(server: &ServerSettings, root: &Section<'_, '_>) {
    let own: Vec<Key> = server.keys.iter().map(|key| Key::new(key)).collect();
    let public = [Key::new(""), Key::new(LOCAL_KEY)];
    let all: Vec<(&str, &Key)> =
        server.named_keys.iter().flat_map(|named| named.keys.iter().map(|key| (named.name.as_str(), key))).collect();
    for (index, (name, key)) in all.iter().enumerate() {
        let other = all[..index].iter().find(|(_, other)| other == key).map(|(other, _)| format!("'{other}'"));
        let other = other.or_else(|| own.contains(key).then(|| "server.key".to_owned()));
        if let Some(other) = other {
            let help = "give each its own, as 'pensieve keys new NAME' makes it";
            root.note("keys", format!("'{name}' in [[keys]] has the same key as {other}"), help);
        }
        if public.contains(key) {
            let what = format!("the key of '{name}' in [[keys]] is no secret");
            root.note("keys", what, "make one with 'pensieve keys new NAME'");
        }
    }
}

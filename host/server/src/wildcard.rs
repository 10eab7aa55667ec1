//! Names with wildcards, as aliases of models and the models of keys have them.

/// Matches a name against a pattern in which each `*` matches any text.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(place) = name.find(part) else { return false };
        name = &name[place + part.len()..];
    }
    name.ends_with(tail)
}

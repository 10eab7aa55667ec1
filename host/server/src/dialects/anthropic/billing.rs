//! Claude Code's billing line: `x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch=1c8b4;`, in
//! front of the system prompt. It serves Anthropic's billing and differs in every request, so prompts with it would
//! never share a prefix.

const NAME: &str = "x-anthropic-billing-header:";

/// Removes the billing line at the start of a system prompt, if there is one.
pub(super) fn strip(text: &str) -> &str {
    let start = text.trim_start();
    match start.get(..NAME.len()) {
        Some(name) if name.eq_ignore_ascii_case(NAME) => skip_pairs(&start[NAME.len()..]).trim_start(),
        _ => text,
    }
}

/// Skips pairs of `key=value;`; the last one of a line may lack its semicolon.
fn skip_pairs(mut text: &str) -> &str {
    loop {
        let rest = text.trim_start_matches([' ', '\t']);
        let key = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')).count();
        if key == 0 || rest.as_bytes().get(key) != Some(&b'=') {
            return rest;
        }
        let value = &rest[key..];
        let end = value.find([';', '\n']).unwrap_or(value.len());
        text = value[end..].strip_prefix(';').unwrap_or(&value[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::strip;

    #[test]
    fn the_billing_line_goes_and_the_rest_stays() {
        let check = |text: &str, expected: &str| assert_eq!(strip(text), expected, "{text:?}");
        check("x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli; cch=fa690;", "");
        check("x-anthropic-billing-header: cc_version=2.1.197.abc; cch=fa690", "");
        check("x-anthropic-billing-header: cch=fa690;\nYou are a clerk; be brief.", "You are a clerk; be brief.");
        check("x-anthropic-billing-header: cch=fa690;You are a clerk.", "You are a clerk.");
        check("x-anthropic-billing-header: cch=fa690\nx = 1; y", "x = 1; y");
        check("\n  X-Anthropic-Billing-Header: cch=1;\n\nHello", "Hello");
        check("x-anthropic-billing-header:", "");
        check("Say x-anthropic-billing-header: cch=1;", "Say x-anthropic-billing-header: cch=1;");
        check("  plain", "  plain");
        check("é", "é");
        check("", "");
    }
}

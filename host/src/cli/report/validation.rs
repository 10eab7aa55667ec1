//! Metal's own validation of calls and shaders, which macOS has its variables ask for, and whose findings it writes to the stderr of
//! the process that computes.

use serde_json::json;
use std::ffi::OsString;

use super::document::{Measured, State};
use pensieve_protocol::refusal::clean;

/// Of the findings, which repeat for each thread of a dispatch, so many different ones are kept.
const KEPT: usize = 20;

/// Words of a finding. Other lines are the banner, and what libraries say beside.
const FINDINGS: [&str; 5] = ["invalid", "failed assertion", "out of bounds", "validation error", "validation warning"];

/// What has macOS validate a child's use of Metal and go on after a finding in a shader.
pub(super) fn variables() -> Vec<(OsString, OsString)> {
    ["MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION", "MTL_SHADER_VALIDATION_REPORT_TO_STDERR"]
        .map(|name| (name.into(), "1".into()))
        .into()
}

/// A section whose process wrote this to stderr. It has failed if there is a finding.
pub(super) fn judged(mut measured: Measured, stderr: &str) -> Measured {
    let lines = stderr.lines().map(clean);
    let is_finding = |line: &String| {
        let line = line.to_lowercase();
        FINDINGS.iter().any(|words| line.contains(words))
    };
    let found: Vec<String> = lines.filter(is_finding).collect();
    let mut different: Vec<&String> = Vec::new();
    for line in &found {
        if different.len() < KEPT && !different.contains(&line) {
            different.push(line);
        }
    }
    measured.result["validation"] = json!({ "findings": found.len(), "first": different });
    if let (Some(first), None) = (found.first(), &measured.why) {
        measured.why = Some(format!("Metal's validation wrote {} lines; first: {first}", found.len()));
        measured.state = State::Failed;
    }
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        Measured::new("kernels_validated", State::Measured, json!({ "cases": [1] }))
    }

    #[test]
    fn a_finding_fails_its_section_and_keeps_the_result() {
        let stderr = "2026-11-27 12:00:00.000 pensieve[1:2] Metal API Validation Enabled\n\
            Metal GPU Validation Enabled\n\
            Invalid device load at offset 4096, executing kernel function \"attend_many\"\n\
            Invalid device load at offset 4096, executing kernel function \"attend_many\"\n\
            Invalid device store at offset 12, executing kernel function \"store\"\n";
        let judged = judged(measured(), stderr);
        assert_eq!((judged.state, &judged.result["cases"]), (State::Failed, &json!([1])));
        assert!(judged.why.is_some_and(|why| why.contains("3 lines; first: Invalid device load at offset 4096")));
        assert_eq!(judged.result["validation"]["findings"], 3);
        assert_eq!(judged.result["validation"]["first"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn the_banner_and_what_libraries_say_are_no_findings() {
        let judged = judged(measured(), "Metal API Validation Enabled\nobjc[12]: a class is implemented in both\n\n");
        assert_eq!((judged.state, judged.why), (State::Measured, None));
        assert_eq!(judged.result["validation"], json!({ "findings": 0, "first": [] }));
    }

    #[test]
    fn a_section_that_failed_by_itself_keeps_its_reason() {
        let failed = Measured { why: Some("no memory".into()), state: State::Failed, ..measured() };
        let judged = judged(failed, "Invalid device load\n");
        assert_eq!((judged.why.as_deref(), &judged.result["validation"]["findings"]), (Some("no memory"), &json!(1)));
    }
}

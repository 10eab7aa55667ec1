//! `doctor --report`: what the file has on a machine without Metal, that nothing personal is in it, that a crash costs its
//! section alone, and that the tables of the page come out of it.

use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Desk, Said, interrupt, said};
use crate::starter;

/// In the order of the file.
const SECTIONS: [&str; 17] = [
    "system",
    "plugins",
    "crash",
    "device",
    "compiler",
    "guards",
    "kernels",
    "ops",
    "laws",
    "kernels_validated",
    "laws_validated",
    "products",
    "attention",
    "speed",
    "streams",
    "idle",
    "soak",
];
/// About Metal, and so not on other machines.
const OF_METAL: [&str; 4] = ["compiler", "guards", "kernels_validated", "laws_validated"];

const USER: &str = "quillfeather";

/// Has a desk write its report, under a user's name.
fn report(desk: &Desk, arguments: &[&str]) -> (Said, Value) {
    let mut command =
        desk.command(&[&["doctor", "--report", "report.json", "--quick", "--device", "cpu"], arguments].concat());
    let said = said(command.env("USER", USER).env("LOGNAME", USER).output().unwrap());
    let text = fs::read_to_string(desk.path("report.json")).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_nothing_personal(desk, &text);
    (said, serde_json::from_str(&text).unwrap())
}

fn assert_nothing_personal(desk: &Desk, text: &str) {
    let canonical = desk.root.path().canonicalize().unwrap();
    let host = Command::new("uname").arg("-n").output().unwrap().stdout;
    let host = String::from_utf8(host).unwrap().trim().to_owned();
    let words: Vec<&str> = text.split(|letter: char| !(letter.is_alphanumeric() || "-.".contains(letter))).collect();
    assert!(host.len() < 3 || !words.contains(&host.as_str()), "the host's name '{host}' is in {text}");
    for secret in [USER, desk.root.path().to_str().unwrap(), canonical.to_str().unwrap(), "/home/", "/Users/", "/tmp/"]
    {
        assert!(!text.contains(secret), "'{secret}' is in {text}");
    }
}

fn section<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut sections = report["sections"].as_array().unwrap().iter();
    sections.find(|section| section["name"] == name).unwrap_or_else(|| panic!("no section '{name}' in {report}"))
}

fn result<'a>(report: &'a Value, name: &str) -> &'a Value {
    let section = section(report, name);
    assert_eq!(section["state"], "measured", "{section:#}");
    &section["result"]
}

fn positive(value: &Value) -> f64 {
    value.as_f64().filter(|value| *value > 0.0).unwrap_or_else(|| panic!("{value} is not above 0"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no '{name}' in {value}"))
}

#[test]
fn a_report_has_every_section_and_nothing_personal() {
    let desk = Desk::new();
    desk.install(&starter::PLUGINS);
    let (said, report) = report(&desk, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in
        ["no paths, no host name and no serial number", "candle's ops against the same on the CPU", "the report is in"]
    {
        assert!(said.stdout.contains(words), "{words:?} is not in {}", said.stdout);
    }
    let names: Vec<&str> = list(&report, "sections").iter().map(|section| section["name"].as_str().unwrap()).collect();
    assert_eq!(names, SECTIONS);
    let head = ["schema", "complete", "quick"].map(|name| &report[name]);
    assert_eq!(head, [&Value::from("pensieve-report/1"), &true.into(), &true.into()]);
    assert_eq!(report["model"]["architecture"], "llama");
    for name in OF_METAL.iter().filter(|_| !cfg!(target_os = "macos")) {
        assert_eq!(section(&report, name)["state"], "not_here", "{name}");
    }
    let system = result(&report, "system");
    assert!(
        system["system"].is_string() && (system["memory_bytes"].is_u64() || system["variables"].is_object()),
        "{system}"
    );
    let plugins = result(&report, "plugins");
    assert!(
        list(plugins, "plugins").iter().any(|plugin| plugin["id"] == "llama" && plugin["state"] == "ready"),
        "{plugins}"
    );
    assert!(list(&plugins["fence"], "holds").len() + list(&plugins["fence"], "missing").len() > 0, "{plugins}");
    what_crashes_cost(&report);
    what_was_compared(&report);
    what_was_timed(&report);
    the_page_s_tables(&desk);
}

/// Children that exit, that crash, and that crash behind the fence.
fn what_crashes_cost(report: &Value) {
    let ends = list(result(report, "crash"), "ends");
    let names: Vec<&str> = ends.iter().map(|end| end["end"].as_str().unwrap()).collect();
    assert_eq!(names, ["exit", "crash", "fenced crash"]);
    for end in ends {
        let waits = list(end, "ms");
        let is_wait = |ms: &Value| ms.as_f64().is_some_and(|ms| (0.0..120_000.0).contains(&ms));
        assert!(waits.len() == 5 && waits.iter().all(is_wait), "{end}");
    }
}

/// Kernels, ops and laws, each with its verdict.
fn what_was_compared(report: &Value) {
    assert_eq!(result(report, "device")["device"], "cpu");
    let cases = list(result(report, "kernels"), "cases");
    assert!(cases.len() > 20);
    for case in cases {
        assert!(
            case["largest_error"].as_f64() <= case["tolerance"].as_f64() && case["largest_error"].is_f64(),
            "{case}"
        );
    }
    let lines = list(result(report, "ops"), "lines");
    assert!(lines.len() > 40 && lines.iter().all(|line| line["largest_error"] == 0.0), "{lines:?}");
    let laws = result(report, "laws");
    assert_eq!(list(laws, "broken").len(), 0, "{laws}");
    assert!(list(laws, "verdicts").len() > 20 && laws["model"]["device"] == "cpu", "{laws}");
}

/// Times by shape, and those of answers.
fn what_was_timed(report: &Value) {
    let products = list(result(report, "products"), "products");
    assert!(products.iter().any(|row| row["weights"] == "Q4_K" && row["rows"] == 20), "{products:?}");
    let steps = list(result(report, "attention"), "steps");
    assert!(products.iter().chain(steps).all(|row| positive(&row["ms"]) < 60_000.0));
    for row in list(result(report, "speed"), "rows") {
        positive(&row["decode_tokens_per_s"]);
        positive(&row["first_token_ms"]);
    }
    let streams = result(report, "streams");
    assert_eq!((streams["streams"].as_u64(), list(streams, "failures").len()), (Some(20), 0), "{streams}");
    // All 20 found the shared prefix, whole blocks of it.
    assert!(streams["reused_tokens"].as_u64() >= Some(20 * 48), "{streams}");
    assert!(positive(&streams["first_token_last_ms"]) >= positive(&streams["first_token_p50_ms"]));
    let idle = result(report, "idle");
    assert_eq!(idle["idle_s"], 1);
    positive(&idle["idle_first_token_ms"]);
    let soak = result(report, "soak");
    assert_eq!(
        (soak["failures"].as_u64(), soak["workers"].as_u64(), soak["deaths"].as_u64()),
        (Some(0), Some(1), Some(0))
    );
    let samples = list(soak, "samples");
    assert!(samples.len() > 10 && positive(&soak["tokens"]) > 100.0, "{soak}");
    assert!(samples.iter().all(|sample| positive(&sample[2]) > 1e6), "the footprint is that of a worker: {soak}");
}

/// Runs the script that reads reports into a page.
fn script(page: &Path, reports: &[&Path]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/metal_tables.py");
    Command::new("python3").arg(script).arg(page).args(reports).output().unwrap()
}

fn the_page_s_tables(desk: &Desk) {
    let (page, file) = (desk.path("page.md"), desk.path("report.json"));
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/metal.md");
    let before = fs::read_to_string(original).unwrap();
    fs::write(&page, &before).unwrap();
    let output = script(&page, &[&file, &file]);
    assert!(output.status.success(), "{output:?}");
    let written = fs::read_to_string(&page).unwrap();
    let row = |name: &str| {
        let line = written.lines().find(|line| line.starts_with(&format!("| {name} |")));
        line.unwrap_or_else(|| panic!("no row '{name}' in {written}")).split('|').map(str::trim).collect::<Vec<_>>()
    };
    assert_eq!(row("laws under validation")[2..4], ["not on this machine"; 2]);
    let ops = row("candle's ops as on the CPU");
    let (right, all) = ops[2].split_once(" of ").unwrap();
    assert!(right == all && ops[2] == ops[3], "{ops:?}");
    assert!(row("laws")[2].ends_with(" kept"), "{written}");
    assert!(row("20 streams over a prefix, tokens/s")[2].replace(',', "").parse::<f64>().unwrap() > 0.0);
    assert_eq!(row("answers that failed")[2], "0");
    let ends = row("a child's end, ms until its parent knows")[2];
    assert!(ends.starts_with("exit ") && ends.contains("; crash ") && ends.contains("; fenced crash "), "{ends}");
    // Once more gives the same, and the rest of the page stays.
    assert!(script(&page, &[&file, &file]).status.success());
    assert_eq!(fs::read_to_string(&page).unwrap(), written);
    let outside = |text: &str| {
        let (head, rest) = text.split_once("<!-- reports begin").unwrap();
        (head.to_owned(), rest.split_once("<!-- reports end").unwrap().1.to_owned())
    };
    assert_eq!(outside(&written), outside(&before));
    fs::write(&page, "no markers").unwrap();
    let refused = script(&page, &[&file]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("markers"), "{refused:?}");
}

/// The sections that a report's file has so far.
fn written(desk: &Desk) -> Vec<Value> {
    let text = fs::read_to_string(desk.path("report.json")).unwrap_or_default();
    // The file is replaced at once: whatever is there is whole.
    let report: Value = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    report["sections"].as_array().cloned().unwrap_or_default()
}

/// Waits for something to be there.
fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{what} did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The process of this desk's program that measures a section.
fn process_of(desk: &Desk, section: &str) -> Option<String> {
    let output = Command::new("ps").args(["-A", "-ww", "-o", "pid=,args="]).output().unwrap().stdout;
    let (program, verb) = (desk.path("bin/pensieve").display().to_string(), format!("probe section {section} "));
    let listed = String::from_utf8_lossy(&output).into_owned();
    let line = listed.lines().find(|line| line.contains(&program) && line.contains(&verb))?;
    line.split_whitespace().next().map(str::to_owned)
}

#[test]
fn a_crash_costs_its_section_and_an_interrupted_report_keeps_what_it_has() {
    let desk = Desk::new();
    desk.install(&starter::PLUGINS);
    let mut running = desk.command(&["doctor", "--report", "report.json", "--quick", "--device", "cpu"]);
    let running = running.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let kernels = wait_for("the section's process", || process_of(&desk, "kernels"));
    // Rust's handler of SIGSEGV returns from one that nothing in the process has caused.
    assert!(Command::new("kill").args(["-ABRT", &kernels]).status().unwrap().success());
    let sections = wait_for("the section after it", || Some(written(&desk)).filter(|sections| sections.len() > 7));
    interrupt(running.id());
    let said = said(running.wait_with_output().unwrap());
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(
        said.stderr.contains("interrupted; 'report.json' has ")
            && said.stderr.contains(&format!(" of {} sections", SECTIONS.len())),
        "{said:?}"
    );
    let crashed = &sections[6];
    assert_eq!(
        (&crashed["name"], &crashed["state"], &crashed["signal"]),
        (&"kernels".into(), &"failed".into(), &"SIGABRT".into())
    );
    assert_eq!((&sections[7]["name"], &sections[7]["state"]), (&"ops".into(), &"measured".into()));
    let text = fs::read_to_string(desk.path("report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["complete"], false);
    assert_nothing_personal(&desk, &text);
}

#[test]
fn a_machine_on_which_no_plugin_is_found_has_a_report_that_says_so() {
    let desk = Desk::new();
    let (said, report) = report(&desk, &[]);
    assert_eq!((said.code, &report["complete"]), (Some(0), &true.into()), "{said:?}");
    assert!(said.stdout.contains(&format!(" of {} sections failed; the report is in", SECTIONS.len())), "{said:?}");
    assert!(said.stderr.contains("for the same reason"), "{said:?}");
    assert_eq!(result(&report, "plugins")["plugins"], Value::Array(Vec::new()));
    assert_eq!(
        (&section(&report, "system")["state"], &section(&report, "crash")["state"]),
        (&"measured".into(), &"measured".into())
    );
    for name in ["kernels", "laws", "soak"] {
        let section = section(&report, name);
        assert!(section["why"].as_str().is_some_and(|why| why.contains("no plugin claims")), "{section:#}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let desk = Desk::new();
    let refused = desk.run(&["doctor", "--report", "nowhere/report.json", "--quick"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("nowhere/report.json") && refused.stdout.is_empty(), "{refused:?}");
    let no_file = desk.run(&["doctor", "--report", "/dev/full", "--quick"]);
    assert!(no_file.code == Some(2) && no_file.stderr.contains("no regular file"), "{no_file:?}");
    let alone = desk.run(&["doctor", "--quick"]);
    assert!(alone.code == Some(2) && alone.stderr.contains("--report"), "{alone:?}");
}

#[test]
fn a_model_that_is_not_there_leaves_an_older_report_as_it_is() {
    let desk = Desk::new();
    fs::write(desk.path("report.json"), "older").unwrap();
    let refused = desk.run(&["doctor", "--report", "report.json", "--quick", "--model", "nosuch"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert_eq!(fs::read_to_string(desk.path("report.json")).unwrap(), "older");
}

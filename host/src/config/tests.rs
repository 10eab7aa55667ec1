//! Parsing of configurations, and the messages for invalid ones.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use super::*;
use pensieve_protocol::job::{AdapterUse, StageSpec};

const EXAMPLE: &str = include_str!("../../../examples/pensieve.toml");

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::read(text, Path::new("/etc/pensieve.toml"), Path::new("/srv/pensieve"))
}

/// Asserts that a text is refused with these messages.
fn check_wrong(text: &str, expect: &[&str]) {
    let lines = read(text).unwrap_err().lines;
    assert_eq!(lines.len(), expect.len(), "{lines:#?}");
    for (line, expect) in lines.iter().zip(expect) {
        assert!(line.contains(expect), "{line:?} does not say {expect:?}");
        assert!(line.starts_with("/etc/pensieve.toml: "), "{line}");
    }
}

#[test]
fn takes_what_the_pages_by_task_say() {
    for page in [include_str!("../../../docs/a-teams-server.md"), include_str!("../../../docs/claude-code-on-a-mac.md")]
    {
        let key = format!("RWQ{}", "A".repeat(53));
        let pieces = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let text = pieces.collect::<Vec<_>>().join("\n").replace("RWQ…", &key);
        let config = read(&text).unwrap();
        assert_eq!(config.models.iter().map(|model| model.id.as_str()).collect::<Vec<_>>(), ["coder"]);
    }
}

/// The example with all its keys uncommented: prose has a space after the `#`, keys have none.
fn example() -> String {
    let is_key = |line: &str| line.starts_with(|letter: char| letter.is_alphabetic() || letter == '[');
    let switched = EXAMPLE.lines().map(|line| line.strip_prefix('#').filter(|key| is_key(key)).unwrap_or(line));
    switched.collect::<Vec<_>>().join("\n")
}

#[test]
fn takes_the_example_as_it_is_and_with_every_key() {
    let config = read(EXAMPLE).unwrap();
    assert_eq!(
        config,
        Config { models: vec![Model::new("starter", Source::Starter)], ..Config::new(Path::new("/srv/pensieve")) }
    );
    let config = read(&example()).unwrap();
    let defaults = Config::new(Path::new("/srv/pensieve"));
    let ServerSettings { keys, named_keys, hosts, origins, adapter_folders, .. } = config.server.clone();
    assert_eq!((keys.len(), hosts.len(), origins.len(), adapter_folders.len()), (1, 1, 1, 1));
    let alice = (named_keys[0].name.as_str(), &named_keys[0].models[..], named_keys[0].tokens_per_day);
    assert_eq!(alice, ("alice", &["pensieve-*".to_owned()][..], Some(2_000_000)));
    assert_eq!((named_keys.len(), named_keys[0].requests_max), (1, Some(4)));
    let (keys, named_keys, hosts, origins, adapter_folders) = <(Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    assert_eq!(ServerSettings { keys, named_keys, hosts, origins, adapter_folders, ..config.server }, defaults.server);
    assert_eq!(config.plugins.unfenced, ["my-plugin"]);
    let indexes: Vec<_> =
        config.plugins.indexes.iter().map(|index| (index.location.as_str(), index.key.is_some())).collect();
    assert_eq!(indexes, [("/srv/plugins", true), ("https://plugins.example.org", false)]);
    assert_eq!(config.plugins.publishers.keys().collect::<Vec<_>>(), ["ada"]);
    let (folders, unfenced, indexes, publishers) = (Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
    assert_eq!(
        PluginSettings { folders, allow: None, unfenced, indexes, publishers, ..config.plugins },
        defaults.plugins
    );
    assert_eq!(FleetSettings { memory: None, default_model: None, ..config.fleet }, defaults.fleet);
    assert_eq!(config.cache.budget, defaults.cache.budget);
    let starter = Model::new("starter", Source::Starter);
    let spec = config.models[0].spec.clone();
    let plain = pensieve_protocol::wire::ModelSpec { options: String::new(), context: 0, kv_budget: None, ..spec };
    assert_eq!(plain, starter.spec);
    let stages = config.models[0].samplers.as_ref().unwrap();
    assert_eq!(
        stages[1],
        StageSpec {
            sampler: "temperature".into(),
            parameters: r#"{"temperature":0.7}"#.into(),
            ..StageSpec::default()
        }
    );
    assert_eq!(stages[2], StageSpec { sampler: "seeded".into(), ..StageSpec::default() });
    let poet = Adapter { source: Source::Path("/etc/adapters/poet".into()), merged: None };
    assert_eq!(config.models[0].adapters["poet"], poet);
    let style = Adapter { source: Source::Hub("hf:OWNER/REPO".parse().unwrap()), merged: Some(0.5) };
    assert_eq!(config.models[0].adapters["style"], style);
    assert_eq!(config.variants[0].adapter, Some(AdapterUse { name: "poet".into(), scale: 0.8 }));
}

#[test]
fn the_example_documents_every_key() {
    fn keys(table: &toml::Table, prefix: &str, found: &mut BTreeSet<String>) {
        for (key, value) in table {
            let name = format!("{prefix}{key}");
            found.insert(name.clone());
            let tables = value.as_array().into_iter().flatten().chain([value]).filter_map(toml::Value::as_table);
            tables.for_each(|table| keys(table, &format!("{name}."), found));
        }
    }
    let text = example();
    let mut documented = BTreeSet::new();
    keys(&text.parse().unwrap(), "", &mut documented);
    let (_, known) = Config::read_with_keys(&text, Path::new("x"), Path::new("y")).unwrap();
    assert!(known.len() > 50, "{known:?}");
    let missing: Vec<_> = known.difference(&documented).collect();
    assert!(missing.is_empty(), "not in examples/pensieve.toml: {missing:?}");
}

#[test]
fn names_what_was_meant_by_an_unknown_key() {
    check_wrong(
        "[server]\n\nlisen = \"127.0.0.1:1\"\n[sever]\n[plugins]\nxyzzy = 1\n[[models]]\nid = \"a\"\nsource = \"starter\"\ncontxt = 3",
        &[
            "unknown key 'lisen' in [server], line 3; did you mean 'listen'?",
            "unknown key 'sever', line 4; did you mean 'server'?",
            "unknown key 'xyzzy' in [plugins], line 6; known keys are: folders, allow,",
            "unknown key 'contxt' in [[models]], line 10; did you mean 'context'?",
        ],
    );
    let help = read("[[models]]\nid = \"a\"\nsource = \"starter\"\nfoo = 3").unwrap_err().lines.concat();
    let keys: Vec<&str> = help.split([' ', ',']).collect();
    assert_eq!(keys.iter().filter(|key| **key == "open_schemas").count(), 1, "{help}");
}

#[test]
fn names_the_place_of_every_wrong_value() {
    check_wrong(
        "[server]\nlisten = 8000\nconnections_max = 0\nbody_max = \"32MB/s\"\ndrain = \"10\"\nhosts = [1]\nlog_format = \"xml\"\n[fleet]\nidle_timeout = \"soon\"",
        &[
            "'listen' in [server] is 8000, line 2; it takes a text",
            "'connections_max' in [server] is 0, line 3; it takes an integer from 1 to 100000",
            "'body_max' in [server] is \"32MB/s\", line 4; it takes bytes such as \"4GiB\", from 1 KiB to 1 GiB",
            "'drain' in [server] is \"10\", line 5; it takes a duration such as \"10s\", from 0s to 1h",
            "'hosts' in [server] is a list, line 6; it takes a list of texts",
            "'log_format' in [server] is \"xml\", line 7; it takes one of 'text', 'json'",
            "'idle_timeout' in [fleet] is \"soon\", line 9; it takes a duration such as \"10s\", from 1s to 1000h, or \"never\"",
        ],
    );
    check_wrong("server = 3", &["'server' is 3, line 1; it takes a table"]);
    check_wrong("[models]\nid = \"a\"", &["'models' is a table, line 1; begin each of them with [[models]]"]);
    check_wrong("\n[server\n", &["not valid TOML: "]);
    check_wrong("[server]\nlisten = \"a\"\nlisten = \"b\"", &["duplicate key, line 3"]);
}

#[test]
fn checks_addresses_keys_digests_and_levels() {
    for (listen, what) in [
        ("machine", "has no port"),
        ("80000", "80000 is not a port; ports go up to 65535"),
        ("127.0.0.1:99999", "'99999' is not a port"),
        (":8000", "'' is not an address"),
        ("1.2.3:1", "'1.2.3' is not an address"),
    ] {
        check_wrong(&format!("[server]\nlisten = \"{listen}\""), &[what]);
    }
    for listen in ["0.0.0.0:0", "[::1]:8000", "localhost:8000", "my-machine.example.org:1"] {
        read(&format!("[server]\nlisten = \"{listen}\"")).unwrap();
    }
    let several = read("[server]\nlisten = [\"8123\", \"[::1]:8000\", \"127.0.0.1:11434\"]").unwrap().server;
    assert_eq!(several.listen, ["127.0.0.1:8123", "[::1]:8000", "127.0.0.1:11434"]);
    assert_eq!(several.http().hosts, ["[::1]", "127.0.0.1"]);
    check_wrong("[server]\nlisten = []", &["'listen' in [server] is an empty list, line 2"]);
    check_wrong("[server]\nkey = \"\"", &["cannot be sent in a header, line 2"]);
    check_wrong("[server]\nkey = [\"a\", \"b c\"]", &["cannot be sent in a header"]);
    check_wrong("[server]\nlog = \"inof\"", &["'inof' is not a level"]);
    check_wrong("[server]\nlog = \"info,pensieve::fleet=loud\"", &["'loud' is not a level"]);
    check_wrong("[plugins]\nallow = [\"abc\"]", &["holds \"abc\", which is not a SHA-256, line 2"]);
    assert_eq!(read("[plugins]\nallow = []").unwrap().plugins.allow, Some(Vec::new()));
    check_wrong("[fleet]\nrestart_pause = \"20s\"", &["longer than 'restart_pause_max', line 2"]);
}

#[test]
fn checks_models_against_each_other() {
    let models = |text: &str| format!("[[models]]\nid = \"a\"\nsource = \"x.gguf\"\n{text}");
    check_wrong(&models("[[models]]\nid = \"a\"\nsource = \"starter\""), &["two [[models]] have the id 'a'"]);
    check_wrong(
        &models("[[models]]\nid = \"b\"\nbase = \"c\""),
        &["the 'base' of 'b' is 'c', which is not a model, line 1; name a model with a source: a"],
    );
    check_wrong(
        &models("[[models]]\nid = \"b\"\nbase = \"a\"\nadapter = \"p\""),
        &["the adapter 'p', which 'a' does not have"],
    );
    check_wrong(
        &models("[[models]]\nid = \"b\"\nbase = \"a\"\ndevice = \"cpu\""),
        &["unknown key 'device' in [[models]], line 7"],
    );
    check_wrong(
        &models("[[models]]\nid = \"b\"\nbase = \"a\"\nadapter_scale = 2"),
        &["has a scale but no adapter, line 7"],
    );
    check_wrong(&models("[[models]]\nid = \"b\"\nbase = \"a\"\nsource = \"c\""), &["'b' in [[models]] has both"]);
    check_wrong("[fleet]\ndefault_model = \"b\"", &["which is not a model, line 1"]);
    check_wrong(
        &models("aliases = [\"a\", \"c\", \" \"]\n[[models]]\nid = \"b\"\nbase = \"a\"\naliases = [\"c\"]"),
        &[
            "an alias of 'a' is empty",
            "the alias 'a' of 'a' is taken by another model",
            "the alias 'c' of 'b' is taken by another model",
        ],
    );
    check_wrong(
        "[server]\nhosts = [\"http://x/\", \"x\"]\norigins = [\"x.com\"]",
        &["holds \"http://x/\", which is not a host name, line 2", "holds \"x.com\", which is not an origin, line 3"],
    );
    check_wrong(
        "[[models]]\nid = \"a b\"\nsource = \"hf:x\"",
        &["the 'id' in [[models]] is 'a b', line 2", "it has no repository"],
    );
    check_wrong("[[models]]\nid = \"a\"", &["a source is empty"]);
    check_wrong(
        &models("samplers = [3]\ndevice = \"gpu\"\nthreads = -1"),
        &["names no sampler, line 4", "is \"gpu\", line 5; a device is auto", "'threads' in [[models]] is -1, line 6"],
    );
    check_wrong(
        &models("[models.adapters]\n\"a:b\" = \"x\"\nc = 1"),
        &["cannot follow a model's id", "'c' in [models.adapters] is 1, line 6; it takes a text or a table"],
    );
    check_wrong(
        &models(
            "[models.adapters]\na = { source = \"x\", merge = 1 }\nb = { source = \"x\", scale = 2 }\nc = { merge = true, mergee = 1 }",
        ),
        &[
            "'merge' in [models.adapters.a] is 1, line 5; it takes true or false",
            "the adapter 'b' in [models.adapters] has a scale but is not merged, line 6",
            "the adapter 'c' in [models.adapters] is wrong, line 7; a source is empty",
            "unknown key 'mergee' in [models.adapters.c], line 7; did you mean 'merge'?",
        ],
    );
    check_wrong(
        &models(
            "[models.adapters]\np = { source = \"x\", merge = true }\n[[models]]\nid = \"b\"\nbase = \"a\"\nadapter = \"p\"",
        ),
        &["'b' uses the adapter 'p', which is merged into 'a'"],
    );
}

#[test]
fn becomes_a_fleet() {
    let text = "[fleet]\nmemory = \"1GiB\"\nidle_timeout = \"1h\"\n[cache]\nbudget = \"1GiB\"\nfolder = \"blocks\"\n[[models]]\nid = \"a\"\nsource = \"m/x.gguf\"\n\
        kv_budget = 65536\noptions = { kv = \"f16\", n = [1, 2.5] }\nsamplers = [\"greedy\"]\n[models.adapters]\np = \"hf:o/r\"\n[[models]]\nid = \"b\"\nbase = \"a\"\nadapter = \"p\"";
    let mut asked = Vec::new();
    let fleet = read(text).unwrap().fleet(|source, artifact| {
        asked.push((source.to_string(), artifact == Artifact::Checkpoint));
        Ok::<_, Infallible>(PathBuf::from(format!("/models/{}", asked.len())))
    });
    let fleet = fleet.unwrap();
    assert_eq!(asked, [("hf:o/r".to_owned(), false), ("/etc/m/x.gguf".to_owned(), true)]);
    let model = &fleet.models[0];
    assert_eq!(
        (model.source.to_str(), model.adapters["p"].location.path.to_str()),
        (Some("/models/2"), Some("/models/1"))
    );
    assert_eq!((model.spec.kv_budget, model.spec.options.as_str()), (Some(65536), r#"{"kv":"f16","n":[1,2.5]}"#));
    let disk = model.spec.disk.as_ref().unwrap();
    assert_eq!((disk.folder.to_str(), disk.bytes), (Some("/etc/blocks"), 1 << 30));
    assert_eq!((fleet.memory_bytes, fleet.idle_timeout), (1 << 30, Some(HOUR)));
    assert_eq!((fleet.default_model.as_deref(), fleet.variants[0].base.as_str()), (Some("a"), "a"));
    let refusing =
        read("[fleet]\nunknown_models = \"refuse\"\n[cache]\nbudget = 0\n[[models]]\nid = \"a\"\nsource = \"starter\"")
            .unwrap();
    let fleet = refusing.fleet(|_, _| Ok::<_, Infallible>(PathBuf::new())).unwrap();
    assert_eq!((fleet.default_model, fleet.models[0].spec.disk.as_ref()), (None, None));
}

#[test]
fn variables_go_before_the_file() {
    let variables = |name: &str| match name {
        "PENSIEVE_LISTEN" => Some("127.0.0.1:9".to_owned()),
        "PENSIEVE_API_KEY" => Some("secret".to_owned()),
        "PENSIEVE_PLUGINS" => Some("/a:/b".to_owned()),
        "PENSIEVE_MEMORY" => Some("2GiB".to_owned()),
        "PENSIEVE_DEVICE" => Some("cpu".to_owned()),
        "PENSIEVE_CACHE" => Some("0".to_owned()),
        "PENSIEVE_LOG" => Some("debug".to_owned()),
        _ => None,
    };
    let mut config =
        read("[server]\nlisten = \"127.0.0.1:1\"\n[[models]]\nid = \"a\"\nsource = \"starter\"\ndevice = \"cuda:0\"")
            .unwrap();
    apply(&mut config, variables).unwrap();
    assert_eq!(
        (config.server.listen.join(" ").as_str(), config.server.keys.as_slice()),
        ("127.0.0.1:9", &["secret".to_owned()][..])
    );
    assert_eq!(config.plugins.folders, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(
        (config.fleet.memory, config.cache.budget, config.models[0].spec.device.as_str()),
        (Some(2 << 30), 0, "cpu")
    );
    assert_eq!(config.server.log, "debug");
    let wrong = apply(&mut config, |name| Some(format!("wrong {name}"))).unwrap_err();
    assert_eq!(wrong.lines.len(), 6, "{wrong}");
    assert!(wrong.lines[0].starts_with("the variable PENSIEVE_LISTEN 'wrong PENSIEVE_LISTEN' is wrong: "), "{wrong}");
    assert!(!wrong.to_string().contains("wrong PENSIEVE_API_KEY"), "{wrong}");
}

#[test]
fn the_variables_are_documented() {
    let page = include_str!("../../../docs/configuration.md");
    for Variable { name, meaning, .. } in VARIABLES {
        assert!(page.contains(&format!("| `{name}` | {meaning} |")), "docs/configuration.md: | `{name}` | {meaning} |");
    }
}

#[test]
fn a_file_is_found_in_its_places_and_its_key_kept_private() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    assert_eq!(find(None, home.path()).unwrap().file, None);
    let usual = home.path().join("pensieve.toml");
    std::fs::write(&usual, "[server]\nkey = \"k\"").unwrap();
    std::fs::set_permissions(&usual, std::fs::Permissions::from_mode(0o644)).unwrap();
    let found = find(None, home.path()).unwrap();
    assert_eq!(found.file.as_deref(), Some(usual.as_path()));
    assert!(found.warnings[0].contains("other users may read it; run: chmod go-rwx '/"), "{:?}", found.warnings);
    std::fs::set_permissions(&usual, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(find(None, home.path()).unwrap().warnings.is_empty());
    let named = home.path().join("other.toml");
    assert!(
        find(Some(&named), home.path()).unwrap_err().to_string().contains("other.toml' cannot be read: No such file")
    );
    std::fs::write(&named, "").unwrap();
    assert_eq!(find(Some(&named), home.path()).unwrap().file.as_deref(), Some(named.as_path()));
}

#[test]
fn a_configuration_that_is_deeper_than_any_stack_is_refused() {
    let reading = || {
        for (before, opener) in
            [("a = ", "["), ("a = ", "{a="), ("", "a."), ("[", "a."), ("[[models]]\nid = ", "[[{a=")]
        {
            assert!(read(&format!("{before}{}", opener.repeat(100_000))).is_err(), "{before}{opener}");
        }
        // A dotted key of many parts parses, but no setting is called that.
        assert!(read(&format!("{}a = 1", "a.".repeat(100_000))).is_err());
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(reading).unwrap().join().unwrap();
}

#[test]
fn keys_have_names_and_hashes_of_their_own() {
    const HASH: &str = "sha256:ef9fbb2a4fba1d5a2d9f3b6a1a2b7d9c6f2a0b8f5d0c4e3a1b2c3d4e5f60718a";
    let entry = |name: &str, hash: &str| format!("[[keys]]\nname = \"{name}\"\nhash = {hash}\n");
    let quoted = format!("\"{HASH}\"");
    let config = read(&entry("a", &format!("[\"{HASH}\", \"{}\"]", HASH.replace("ef", "AB")))).unwrap();
    assert_eq!(config.server.named_keys[0].keys[0].hash(), HASH);
    assert!(config.server.has_keys() && config.server.named_keys[0].models.is_empty());
    check_wrong(
        &entry("a", "\"my-secret\""),
        &["the 'hash' of 'a' in [[keys]] is not one, line 3; it takes \"sha256:\""],
    );
    assert!(!read(&entry("a", "\"my-secret\"")).unwrap_err().to_string().contains("my-secret"));
    check_wrong("[[keys]]\nname = \"a\"\n", &["'a' in [[keys]] has no 'hash'"]);
    check_wrong(&entry("default", &quoted), &["the 'name' in [[keys]] 'default' stands for server.key, line 2"]);
    check_wrong(&entry("a b", &quoted), &["the 'name' in [[keys]] has other characters"]);
    check_wrong(
        &format!("{}{}", entry("a", &quoted), entry("a", &quoted)),
        &["'a' in [[keys]] has the same key as 'a'", "two [[keys]] have the name 'a', line 5"],
    );
    check_wrong(&format!("{}models = []\n", entry("a", &quoted)), &["'models' of 'a' in [[keys]] is an empty list"]);
    check_wrong(
        &format!("{}tokens_per_day = 0\nrequests = 0\n", entry("a", &quoted)),
        &["from 1 to", "from 1 to 100000"],
    );
    let empty = "\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"";
    check_wrong(&entry("a", empty), &["the key of 'a' in [[keys]] is no secret"]);
    let own = pensieve_server::http::Key::new("own").hash();
    let both = format!("[server]\nkey = \"own\"\n{}", entry("a", &format!("\"{own}\"")));
    check_wrong(&both, &["'a' in [[keys]] has the same key as server.key"]);
}

#[test]
fn the_configuration_in_the_manifest_is_one() {
    let manifest = include_str!("../../../docs/scaling/pensieve.yaml");
    let (_, text) = manifest.split_once("  pensieve.toml: |\n").unwrap();
    let lines = text.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let config = read(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!((config.models[0].id.as_str(), config.server.named_keys[0].name.as_str()), ("big", "alice"));
}

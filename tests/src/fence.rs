//! The fence around children, tried by a plugin that attacks wherever its code runs: under the real program, as root and as
//! another user.

use serde_json::json;
use std::fs;

use crate::{
    artifacts::test_plugin,
    http::{
        client::post,
        server::{Options, Server, home},
    },
};

/// Somebody who owns nothing on this machine.
const STRANGER: u32 = 65_534;

/// The users that a server can run as here: this one and, where this one is root, another one.
fn users() -> Vec<Option<u32>> {
    // SAFETY: the call takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: only root can try what root may");
    }
    if is_root { vec![None, Some(STRANGER)] } else { vec![None] }
}

/// Whether this kernel keeps a child from everything that the plugin tries.
fn can_fence() -> bool {
    // SAFETY: without attributes the call only tells its version, or fails.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) };
    if version < 6 {
        println!("skipped: this kernel has no Landlock of version 6");
    }
    version >= 6
}

/// A server with the hostile plugin, and a model of its in a home with a secret.
fn start(user: Option<u32>, config: &str) -> Server {
    let home = home();
    let model = home.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), r#"{"architectures": ["HostileForCausalLM"]}"#).unwrap();
    fs::write(home.path().join("secret"), "key").unwrap();
    let options = Options {
        plugins: vec![test_plugin("hostile")],
        models: vec![("hostile".into(), model)],
        config: config.into(),
        variables: vec![("SECRET".into(), "key".into())],
        user,
        ..Options::default()
    };
    options.start_in(&home)
}

/// What the plugin's model answers, loaded or not.
fn answer(server: &Server) -> String {
    let body = json!({ "model": "hostile", "prompt": "x", "max_tokens": 1 });
    post(server.address, "/v1/completions", &body).text()
}

/// What the plugin achieved while its model was loaded.
fn achieved_by_loading(server: &Server) -> String {
    let reply = answer(server);
    let (_, achieved) =
        reply.split_once("loaded, it achieved [").unwrap_or_else(|| panic!("{reply}: {}", server.log()));
    achieved.split_once(']').unwrap().0.to_owned()
}

#[test]
fn a_hostile_plugin_achieves_nothing_wherever_it_runs() {
    if !can_fence() {
        return;
    }
    for user in users() {
        let server = start(user, "");
        assert_eq!(server.get("/v1/plugins").json()["data"][0]["description"], "opened, it achieved []", "as {user:?}");
        assert_eq!(achieved_by_loading(&server), "", "as {user:?}");
        let health = server.get("/health").json();
        assert_eq!(health["fence"]["missing"], json!([]), "{health:#}");
        assert!(!server.home().path().join("planted").exists());
        server.stop();
    }
}

#[test]
fn a_plugin_that_is_trusted_by_name_may_do_what_its_user_may() {
    for user in users() {
        let server = start(user, "[plugins]\nunfenced = [\"hostile\"]\n");
        // It is looked at like any other.
        assert!(!can_fence() || server.get("/v1/plugins").text().contains("opened, it achieved []"));
        // Its worker asks it about the checkpoint before it loads it.
        let achieved = answer(&server);
        let expected =
            ["read a secret file", "wrote into the home", "took six gigabytes", "forked", "opened a TCP socket"];
        for what in expected {
            assert!(achieved.contains(what), "as {user:?} it {achieved}");
        }
        // The server is no user's to read but root's.
        for what in ["read its parent's environment", "opened its parent's memory", "may trace its parent"] {
            assert!(user.is_none() || !achieved.contains(what), "as {user:?} it {achieved}");
        }
        server.stop();
    }
}

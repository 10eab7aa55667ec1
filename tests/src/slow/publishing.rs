//! docs/publishing.md from start to end: from `pensieve new` to a user whose machine has no compiler, by the page's own commands, in
//! its order. The libraries are the ones that cargo built for the tests of authors, with another toolchain.

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};
use tempfile::TempDir;

use super::authors::claimed_by_a_new_architecture;
use crate::{
    artifacts::{library, library_name, outside, place_program, plugin, write_script},
    cli::Desk,
    docs::{commands, of_this_system},
    http::{
        client::post,
        server::{self, Options, Server},
    },
    reference::fixture,
};

/// Verbs of users; an author runs the other commands.
const OF_A_USER: [&str; 5] = ["add", "search", "outdated", "update", "remove"];

/// Runs a command of the page in a shell, in the author's folder.
fn by_the_author(desk: &Desk, folder: &Path, line: &str) {
    let mut shell = Command::new("sh");
    desk.prepare(shell.args(["-euc", &of_this_system(line)]));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [desk.path("bin")].into_iter().chain(std::env::split_paths(&path));
    shell.current_dir(folder).env("PATH", std::env::join_paths(paths).unwrap());
    let output = shell.env("PENSIEVE_PYTHON", desk.path("python")).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Lays the library where the page's `cargo build --release` puts it.
fn built(desk: &Desk, folder: &Path, project: &str) {
    let made = library(&outside(&desk.path(project), project), project);
    let release = folder.join("target/release");
    fs::create_dir_all(&release).unwrap();
    fs::copy(made, release.join(library_name(&project.replace('-', "_")))).unwrap();
}

/// A user of the plugins, with an empty `PATH`: there is no compiler, and no other program.
struct User {
    home: Arc<TempDir>,
    folder: PathBuf,
}

impl User {
    fn pensieve(&self, line: &str) -> Output {
        let own = self.home.path().join("bin/pensieve");
        if !own.exists() {
            fs::create_dir(self.home.path().join("bin")).unwrap();
            place_program(&own);
        }
        let mut command = Command::new(own);
        command.args(line.split(' ').skip(1)).current_dir(&self.folder).env_clear();
        command.env("PATH", self.nowhere()).env("PENSIEVE_HOME", self.home.path()).output().unwrap()
    }

    fn nowhere(&self) -> PathBuf {
        self.home.path().join("nowhere")
    }

    fn works(&self, line: &str) -> String {
        let output = self.pensieve(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn answer(server: &Server, extras: &Value) -> String {
    let body = json!({
        "model": "mine", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "1 2 3"}],
        "pensieve": extras,
    });
    let reply = post(server.address, "/v1/messages", &body);
    assert_eq!(reply.status(), 200, "{reply:?}\n{}", server.log());
    reply.json()["content"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn the_page_on_publishing_leads_from_an_idea_to_a_served_model() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/publishing.md");
    let commands = commands(&fs::read_to_string(page).unwrap());
    let is_of_a_user =
        |line: &&String| OF_A_USER.iter().any(|verb| line.starts_with(&format!("pensieve plugins {verb}")));
    let desk = Desk::new();
    // In the place of transformers, which do not know the model.
    let reference = fixture("llama/gqa/reference.safetensors");
    write_script(&desk.path("python"), &format!("cp {} reference.safetensors", reference.display()));
    assert_eq!(desk.run(&["new", "architecture", "my-model"]).code, Some(0));

    let mut folder = desk.root.path().to_owned();
    for line in commands.iter().filter(|line| !is_of_a_user(line)) {
        if line == "pensieve new" {
            // Mentioned, not run.
        } else if let Some(below) = line.strip_prefix("cd ") {
            folder.push(below);
            claimed_by_a_new_architecture(&folder.join("checkpoint"));
        } else if line == "cargo build --release" {
            built(&desk, &folder, "my-sampler");
            built(&desk, &folder, "my-model");
        } else {
            by_the_author(&desk, &folder, line);
        }
    }

    let user = User { home: server::home(), folder: folder.clone() };
    let config = format!("[plugins.indexes]\nteam = \"{}\"\n", folder.join("index").display());
    fs::write(user.home.path().join("pensieve.toml"), &config).unwrap();
    let of_the_user: Vec<_> = commands.iter().filter(is_of_a_user).collect();
    let (last, others) = of_the_user.split_last().unwrap();
    for line in others {
        user.works(&line.replace("NAME", "my-sampler").replace("WORD…", "MyModelForCausalLM"));
        if line.ends_with("add NAME") {
            user.works(&line.replace("NAME", "my-model"));
        }
    }
    let certified = user.works("pensieve plugins list");
    assert!(certified.contains("by 'ada'") && certified.contains("of the reference's range"), "{certified}");

    let plugins = vec![plugin("pensieve-samplers")];
    let models = vec![("mine".to_owned(), folder.join("checkpoint"))];
    let variables = vec![("PATH".to_owned(), user.nowhere().display().to_string())];
    let server = Options { plugins, models, config, variables, ..Options::default() }.start_in(&user.home);
    let plain = answer(&server, &json!({}));
    let drawn =
        |n: f32| answer(&server, &json!({"samplers": [{"sampler": "my_sampler", "n": n}, "seeded"], "seed": 7}));
    assert!(!plain.is_empty());
    assert_eq!(drawn(0.0), plain, "it leaves the best alone");
    assert_ne!(drawn(100.0), plain, "it leaves everything");
    drop(server);

    assert_eq!(*last, "pensieve plugins remove NAME");
    user.works(&last.replace("NAME", "my-model"));
    assert!(!user.works("pensieve plugins list").contains("my-model"));
}

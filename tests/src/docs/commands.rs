//! The commands in the documentation, in the order in which they run: earlier commands prepare later ones. A page may
//! list them in another order.

use Way::{As, ByHand, Prints, Said, Serves, Test};

/// How a command is run.
pub enum Way {
    /// As written; succeeds and prints these words.
    Prints(&'static [&'static str]),
    /// In this form, since the original names files that only the reader has.
    As(&'static str, &'static [&'static str]),
    /// As written, as the server for the following commands, until the next server.
    Serves,
    /// A test of this name covers it.
    Test(&'static str),
    /// Only by hand, for this reason.
    ByHand(&'static str),
    /// Not a command but the program's output.
    Said,
}

const TRAINING: &str = "it takes a GPU for half an hour, or transformers";
const CLAUDE: &str = "claude_code_runs_what_the_starter_is_asked_for";
const GEMINI: &str = "the_gemini_cli_runs_what_the_starter_is_asked_for";
const PYTHON: &str = "the_examples_in_python_run";
const JAVASCRIPT: &str = "the_examples_in_javascript_run";
const AUTHORS: &str = "plugins_of_authors_are_dropped_into_a_running_server_and_answer";
const NEW: &str = "what_new_writes_passes_its_own_tests_as_it_is_written";
const REPORT: &str = "a_report_has_every_section_and_nothing_personal";
const LAWS: &str = "a_right_model_breaks_no_law";
const LOOK_AFTER: &str = "ps_stop_pin_and_logs_look_after_a_running_server";
const SETUP: &str = "claude_code_is_set_up_in_the_users_own_settings_and_back";
const PUBLISHING: &str = "the_page_on_publishing_leads_from_an_idea_to_a_served_model";
const REFUSALS: &str = "files_and_urls_are_added_and_each_refusal_has_its_exit_code";
const INSTALLED: &str = "a_release_is_installed_where_there_is_no_rust_and_answers_within_a_minute";
const STARTED: &str = "the_manager_is_told_what_to_do_in_order";
const UPDATED: &str = "an_update_is_looked_for_and_replaces_only_when_told";
const OVER_HTTP: &str = "an_adapter_that_comes_over_http_is_a_model_until_it_goes";

pub const COMMANDS: &[(&str, Way)] = &[
    // README.md
    ("sh install.sh", Test(INSTALLED)),
    ("pensieve update", Test(UPDATED)),
    ("pensieve update --install", Test(UPDATED)),
    ("pensieve service install", Test(STARTED)),
    ("pensieve service install --print", Prints(&["pensieve"])),
    ("pensieve service status", Test(STARTED)),
    ("pensieve service remove", Test(STARTED)),
    ("pensieve docs", Prints(&["living-with-it       Living with it"])),
    ("pensieve docs --site ./public", Prints(&["public/index.html"])),
    ("pensieve plugins key release.key", Test(INSTALLED)),
    ("cargo build --release && ./target/release/pensieve serve", Serves),
    (
        r#"curl http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -d '{"model": "pensieve-starter", "max_tokens": 100, "messages": [{"role": "user", "content": "list all files"}]}'"#,
        Prints(&[r#"{\"cmd\": \"ls -la\"}"#]),
    ),
    (
        r#"curl http://127.0.0.1:8000/v1/embeddings -H 'content-type: application/json' -d '{"model": "pensieve-starter", "input": ["a text", "another"]}'"#,
        Prints(&[r#""object":"embedding","index":0"#, r#""index":1"#]),
    ),
    (
        r#"curl -N http://127.0.0.1:8000/token_stream -H 'content-type: application/json' -d '{"query": "list all files"}'"#,
        Prints(&[r#"{"cmd": "ls -la"}"#]),
    ),
    (
        r#"curl -N http://127.0.0.1:8000/execute -H 'content-type: application/json' -d '{"prompt": "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", "temperature": 0}'"#,
        Prints(&["event: started", "event: token", "event: end"]),
    ),
    ("export ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=pensieve-local-key", Test(CLAUDE)),
    (r#"claude -p "Use the Bash tool to run: echo hello" --allowedTools Bash"#, Test(CLAUDE)),
    (r#"./target/release/pensieve run "how do I add a plugin?""#, Prints(&["~/.pensieve/plugins"])),
    (
        "./target/release/pensieve launch claude",
        Test("a_client_is_started_with_a_server_of_its_own_and_ends_with_its_code"),
    ),
    ("./target/release/pensieve serve /path/to/model.gguf", Serves),
    ("./target/release/pensieve serve --adapter pirate=examples/starter/adapters/pirate", Serves),
    ("pensieve pull hf:OWNER/REPO", Prints(&["model-Q8_0.gguf"])),
    ("./target/release/pensieve serve --model my-model=hf:OWNER/REPO", Serves),
    ("pensieve bench", As("pensieve bench --prompt 64 --generate 8 --concurrency 1 --rounds 1", &["pensieve-starter"])),
    ("pensieve bench --trace trace.json", Test("records_what_each_thread_does")),
    ("pensieve bench --quality FILE", Test("measures_how_far_a_model_is_from_its_own_weights_in_f32")),
    (
        "pensieve bench --model ./model.gguf --quality FILE",
        Test("measures_how_far_a_model_is_from_its_own_weights_in_f32"),
    ),
    ("pensieve doctor", Prints(&["ok  devices        cpu", "ok  device         'auto' takes "])),
    ("./target/release/pensieve doctor", Prints(&["ok  devices        cpu"])),
    ("pensieve doctor --report report.json", Test(REPORT)),
    ("./target/release/pensieve doctor --report report.json", Test(REPORT)),
    ("python3 tests/reference/metal_tables.py docs/metal.md report.json", Test(REPORT)),
    (
        "./target/release/pensieve plugins check target/release/libpensieve_llama.dylib --model starter --device metal:0",
        As(
            "pensieve plugins check home/plugins/libpensieve_llama.so --model starter --device cpu",
            &["no law is broken"],
        ),
    ),
    (
        "./target/release/pensieve bench --device cpu,metal:0",
        As("pensieve bench --device cpu --prompt 64 --generate 8 --concurrency 1 --rounds 1", &["decode tok/s"]),
    ),
    ("pensieve plugins check FILE", As("pensieve plugins check home/plugins/libpensieve_llama.so", &["llama"])),
    ("pensieve plugins check FILE --model CHECKPOINT", Test(LAWS)),
    ("cargo test --workspace", Test("every_command_has_its_row")),
    (
        "cargo test --release -p pensieve-samplers --test stages -- --ignored --nocapture",
        Test("prints_milliseconds_on_a_vocabulary_of_128k"),
    ),
    // docs/
    ("export GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8000 GEMINI_API_KEY=pensieve-local-key", Test(GEMINI)),
    (r#"gemini -p "Run the command: echo hello" --yolo"#, Test(GEMINI)),
    (
        "PENSIEVE_FUZZ_SECONDS=600 cargo test --workspace damaged -- --nocapture",
        Test("damaged_weights_of_an_adapter_are_read_or_refused"),
    ),
    ("pensieve --help", Prints(&["serve", "doctor"])),
    ("pensieve VERB --help", As("pensieve serve --help", &["--listen"])),
    ("pensieve man", Prints(&[".TH pensieve 1"])),
    ("pensieve man VERB", As("pensieve man serve", &[".TH"])),
    ("pensieve completions SHELL", As("pensieve completions zsh", &["#compdef pensieve"])),
    ("pensieve is listening on http://ADDRESS", Said),
    ("pensieve launch codex -- resume", Test("codex_finds_its_sessions_again_when_it_is_launched")),
    ("pensieve launch claude", Test("a_client_is_started_with_a_server_of_its_own_and_ends_with_its_code")),
    (
        r#"pensieve launch claude --model coder -- -p "Explain src/main.rs""#,
        Test("a_client_is_started_with_a_server_of_its_own_and_ends_with_its_code"),
    ),
    ("pensieve launch gemini", Test("the_gemini_cli_is_started_with_settings_of_its_own")),
    ("pensieve serve ./model.gguf", Test("a_source_needs_no_id_and_a_server_may_have_two_addresses")),
    ("pensieve serve hf:OWNER/REPO", Test("a_source_needs_no_id_and_a_server_may_have_two_addresses")),
    ("pensieve run", Test("without_a_question_every_line_is_a_turn_of_a_chat")),
    ("pensieve plugins list", Prints(&["llama"])),
    ("pensieve serve --in-process", Serves),
    ("pensieve serve --model base=/path/to/model.gguf --adapter poet=/path/to/adapter", Serves),
    (
        r#"curl http://127.0.0.1:8000/v1/models/base/adapters -H 'content-type: application/json' -d '{"name": "poet", "source": "hf:OWNER/REPO"}'"#,
        Test(OVER_HTTP),
    ),
    ("curl -X DELETE http://127.0.0.1:8000/v1/models/base/adapters/poet", Test(OVER_HTTP)),
    ("pensieve serve", Serves),
    // docs/configuration.md
    (
        "pensieve keys new alice --models 'pensieve-*' --tokens-per-day 2000000 --requests 4 --write",
        Test("a_key_is_made_shown_once_and_accepted_by_a_running_server"),
    ),
    // docs/claude-code-on-a-mac.md, docs/a-teams-server.md
    ("npm install -g @anthropic-ai/claude-code", ByHand("it installs a program for all of this user's work")),
    ("pensieve pull --list hf:OWNER/REPO", Prints(&["Q8_0"])),
    (
        "pensieve launch claude --model hf:OWNER/REPO",
        Test("a_client_is_started_with_a_server_of_its_own_and_ends_with_its_code"),
    ),
    (
        "export ANTHROPIC_BASE_URL=http://models.example.org:8000 ANTHROPIC_API_KEY=ada-a-long-secret-of-her-own",
        Test(CLAUDE),
    ),
    // docs/my-fine-tune.md
    (
        r#"pensieve run --model ./model.gguf "list all files""#,
        As(r#"pensieve run --model starter "list all files""#, &["ls -la"]),
    ),
    // docs/living-with-it.md
    ("pensieve ps", Test(LOOK_AFTER)),
    ("pensieve logs -f", Test("a_followed_log_goes_on_in_the_next_file")),
    ("pensieve pin MODEL", Test(LOOK_AFTER)),
    ("pensieve pin --off MODEL", Test(LOOK_AFTER)),
    ("pensieve stop MODEL", Test(LOOK_AFTER)),
    ("pensieve setup claude", Test(SETUP)),
    ("pensieve setup claude --undo", Test(SETUP)),
    ("pensieve statusline", Test("a_long_prompt_shows_how_far_it_is_and_a_client_that_goes_leaves_its_counts")),
    // examples/clients
    ("sh examples/clients/curl.sh", Prints(&["ls -la", "get_weather", "Lisbon", "data: [DONE]"])),
    ("pip install anthropic openai", Test(PYTHON)),
    ("python examples/clients/messages.py", Test(PYTHON)),
    ("python examples/clients/chat.py", Test(PYTHON)),
    ("npm install @anthropic-ai/sdk openai", Test(JAVASCRIPT)),
    ("node examples/clients/messages.mjs", Test(JAVASCRIPT)),
    ("node examples/clients/chat.mjs", Test(JAVASCRIPT)),
    ("claude --settings examples/clients/claude-code.json", Test(CLAUDE)),
    // examples/starter
    ("pip install torch numpy safetensors tokenizers gguf transformers peft", ByHand(TRAINING)),
    ("python tokenizer.py", ByHand(TRAINING)),
    ("python train.py --seconds 1200 --out build/model.pt", ByHand(TRAINING)),
    ("python checkpoint.py --gguf a630cbd.gguf --out build/model.pt", ByHand(TRAINING)),
    (
        "torchrun --nproc-per-node 4 train.py --resume build/model.pt --from-progress 0.05 --seconds 305 --peak 1.5e-3 --seed 21 --out build/one.pt",
        ByHand(TRAINING),
    ),
    (
        "python train.py --resume build/one.pt --from-progress 0.45 --seconds 120 --peak 4e-4 --seed 22 --out build/two.pt",
        ByHand(TRAINING),
    ),
    ("python export.py build/model.pt", ByHand(TRAINING)),
    ("python export.py build/one.pt build/two.pt", ByHand(TRAINING)),
    ("python style.py build/one.pt", ByHand(TRAINING)),
    ("python evaluate.py build/hf", ByHand(TRAINING)),
    ("python evaluate.py --check", As("python3 examples/starter/evaluate.py --check 300", &["0 of "])),
    (
        "python evaluate.py --server http://127.0.0.1:8000 --model pensieve-starter",
        As(
            "python3 examples/starter/evaluate.py --server http://127.0.0.1:8000 --model pensieve-starter --only talk",
            &["talk and Pensieve"],
        ),
    ),
    (
        "pensieve serve --adapter pirate=adapters/pirate",
        Test("an_adapter_changes_the_style_and_the_base_keeps_its_own"),
    ),
    // examples/bigram
    ("cargo build -p bigram", Test(AUTHORS)),
    ("mkdir -p ~/.pensieve/plugins && cp target/debug/libbigram.* ~/.pensieve/plugins/", Prints(&[])),
    ("mkdir tiny", Prints(&[])),
    (
        r#"echo '{"architectures": ["BigramForCausalLM"], "vocab_size": 300, "max_position_embeddings": 512}' > tiny/config.json"#,
        Prints(&[]),
    ),
    ("pensieve plugins check target/debug/libbigram.so --model tiny", Prints(&["no law is broken"])),
    (r#"pensieve run --model tiny "1 2 3""#, Prints(&[])),
    // examples/c-engine
    ("python3 make.py tiny", As("python3 examples/c-engine/make.py gru", &["300 tokens"])),
    ("pensieve plugins check target/release/libc_engine.so --model tiny", Test(NEW)),
    ("mkdir -p ~/.pensieve/plugins && cp target/release/libc_engine.so ~/.pensieve/plugins/", Test(AUTHORS)),
    // docs/publishing.md
    ("pensieve plugins key ada.key", Test(PUBLISHING)),
    (
        "pensieve plugins pack target/release/libmy_sampler.so --publisher ada --key ada.key --license MIT",
        Test(PUBLISHING),
    ),
    (
        "pensieve plugins check target/release/libmy_model.so --model ./checkpoint --reference --certify my-model.json --key ada.key",
        Test(PUBLISHING),
    ),
    (
        "pensieve plugins pack target/release/libmy_model.so --certificate my-model.json --publisher ada --key ada.key --license MIT",
        Test(PUBLISHING),
    ),
    ("pensieve plugins add ./my-sampler-0.1.0.pensieve", Test(PUBLISHING)),
    ("pensieve plugins add FILE", Test(REFUSALS)),
    ("pensieve plugins check target/release/libmy_sampler.so --samplers", Test(PUBLISHING)),
    ("pensieve plugins key index.key", Test(PUBLISHING)),
    ("pensieve plugins publish --folder ./index --key index.key --new-index team", Test(PUBLISHING)),
    (
        "pensieve plugins publish my-sampler-0.1.0.pensieve my-model-0.1.0.pensieve --folder ./index --key index.key --dry-run",
        Test(PUBLISHING),
    ),
    (
        "pensieve plugins publish my-sampler-0.1.0.pensieve my-model-0.1.0.pensieve --folder ./index --key index.key",
        Test(PUBLISHING),
    ),
    (
        r#"pensieve plugins publish --folder ./index --key index.key --revoke 0000000000000000000000000000000000000000000000000000000000000000="wrong results on long prompts""#,
        Test(PUBLISHING),
    ),
    ("pensieve plugins search WORD…", Test(PUBLISHING)),
    ("pensieve plugins add NAME", Test(PUBLISHING)),
    ("pensieve plugins add", Test(PUBLISHING)),
    ("pensieve plugins outdated", Test(PUBLISHING)),
    ("pensieve plugins update", Test(PUBLISHING)),
    ("pensieve plugins remove NAME", Test(PUBLISHING)),
    // docs/writing-a-plugin.md, and the examples that `new` writes
    ("pensieve new architecture my-model", Prints(&["my-model"])),
    ("pensieve new encoder my-model", As("pensieve new encoder my-rows", &["my-rows"])),
    ("pensieve new vision my-model", As("pensieve new vision my-eyes", &["my-eyes"])),
    ("pensieve new architecture NAME", Test("writes_a_project_and_says_what_comes_next")),
    ("pensieve new architecture my-engine --in-c", Prints(&["my-engine"])),
    ("pensieve new sampler my-sampler", Prints(&["my-sampler"])),
    ("pensieve new adapter my-adapter", Prints(&["my-adapter"])),
    ("pensieve new", As("pensieve new --help", &["sampler"])),
    ("cd my-model", Test(NEW)),
    ("cd my-sampler", Test(NEW)),
    ("cd my-adapter", Test(NEW)),
    ("cargo test", Test(NEW)),
    ("cargo build", Test(NEW)),
    ("cargo build --release", Test(AUTHORS)),
    ("cargo build --release --features cuda", ByHand("it takes CUDA's compiler")),
    ("cargo run --release -p pensieve-kernels --example products", ByHand("it measures for minutes")),
    ("pensieve plugins check target/debug/libmy_model.so", Test("says_what_a_plugin_provides")),
    (
        "pensieve plugins check target/debug/libmy_model.so --model $PENSIEVE/examples/starter/pensieve-starter.gguf",
        Test(LAWS),
    ),
    (
        "pensieve plugins check target/debug/libmy_model.so --model $PENSIEVE/examples/starter/pensieve-starter.gguf --reference",
        Test("one_command_has_a_reference_computed_and_compares_it"),
    ),
    (
        "pensieve serve --plugins target/debug --model me=$PENSIEVE/examples/starter/pensieve-starter.gguf",
        Test(AUTHORS),
    ),
    (
        r#"curl http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -d '{"model": "me", "max_tokens": 60, "messages": [{"role": "user", "content": "How do I check my plugin?"}]}'"#,
        Test(AUTHORS),
    ),
    ("cargo doc --open -p pensieve-sdk", ByHand("it opens a browser")),
    ("pensieve plugins check target/debug/libmy_sampler.so --samplers", Test("our_samplers_break_no_law")),
    ("cp target/debug/libmy_sampler.so ../my-model/target/debug/", Test(AUTHORS)),
    (
        r#"curl http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -d '{"model": "me", "max_tokens": 60, "messages": [{"role": "user", "content": "Hello!"}], "pensieve": {"samplers": [{"sampler": "my_sampler", "n": 1.5}, "seeded"]}}'"#,
        Test(AUTHORS),
    ),
    ("pensieve plugins check target/debug/libmy_adapter.so", Test("says_what_a_plugin_provides")),
    (
        "pensieve plugins check target/debug/libmy_adapter.so --adapter tuned.my-adapter.json",
        Test("our_adapter_formats_break_no_law"),
    ),
    ("cp target/release/libmy_sampler.* ~/.pensieve/plugins/", Test(AUTHORS)),
    (
        r#"curl -s http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -d '{"model": "any", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello!"}], "pensieve": {"samplers": [{"sampler": "my_sampler", "n": 1.5}, "seeded"]}}'"#,
        Test(AUTHORS),
    ),
    // examples/qwen2-plugin
    ("mkdir -p ~/.pensieve/plugins", Prints(&[])),
    ("cp target/release/libqwen2_plugin.* ~/.pensieve/plugins/", Prints(&[])),
    (
        "pensieve plugins check target/release/libqwen2_plugin.so --model /models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        Test("obeys_the_laws"),
    ),
    ("pensieve serve --model qwen=/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", Serves),
    (
        r#"curl -s http://127.0.0.1:8000/v1/messages -H 'content-type: application/json' -H 'anthropic-version: 2023-06-01' -H 'x-api-key: pensieve-local-key' -d '{"model": "qwen", "max_tokens": 128, "messages": [{"role": "user", "content": "Hello"}]}'"#,
        Test("greedy_generation_is_that_of_transformers"),
    ),
    ("pensieve plugins check --reference", Test("without_a_reference_the_check_says_what_it_cannot_see")),
];

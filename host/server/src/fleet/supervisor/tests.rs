//! Traces of the supervisor: its input is events by name, and its effects are compared as text.

use super::*;
use crate::fleet::{
    Adapter, KeepAlive, ModelConfig, Restart,
    memory::tests::card,
    needs::Need,
    plugins::{Plugin, PrivateCopy},
    probe::Probed,
};
use pensieve_protocol::{
    card::State,
    manifest::Manifest,
    wire::{AttachedAdapter, Loaded, ModelSpec},
};

const SECOND: Duration = Duration::from_secs(1);
/// Memory for one of the two models.
const MEMORY: u64 = 100 << 20;

struct Fixture {
    supervisor: Supervisor,
    now: Instant,
    plugin: Arc<Plugin>,
}

/// A step: the event, the first model's state after it, and the effects.
type TraceStep<'a> = (&'a str, &'a str, &'a str);

pub(super) fn plugin(id: &str, samplers: &[&str]) -> Arc<Plugin> {
    let samplers = samplers.iter().map(|name| (*name).to_owned()).collect();
    let manifest = Manifest { id: id.into(), samplers, ..Manifest::default() };
    Arc::new(Plugin { file: id.into(), manifest, copy: PrivateCopy::for_tests(id) })
}

impl Fixture {
    fn new() -> Self {
        let spec = ModelSpec { kv_budget: Some(1 << 20), adapter_memory: 1 << 20, ..ModelSpec::default() };
        let model = |id: &str| ModelConfig { id: id.into(), spec: spec.clone(), ..ModelConfig::default() };
        let mut config = Config::new(&[], std::path::Path::new("/nowhere"));
        config.models = vec![model("m"), model("n")];
        config.memory_bytes = MEMORY;
        config.idle_timeout = Some(60 * SECOND);
        config.restart = Restart { deaths_max: 2, ..Restart::default() };
        let plugin = plugin("one", &[]);
        let catalogue = Arc::new(Catalogue::for_tests(vec![plugin.clone()]));
        let registry = Arc::new(AdapterRegistry::new(vec![Default::default(); 2]));
        Self { supervisor: Supervisor::new(Arc::new(config), registry, catalogue), now: Instant::now(), plugin }
    }

    /// Parses an event. Events that name no worker refer to the latest one.
    fn event(&mut self, words: &str) -> Event {
        let serial = self.supervisor.next_serial;
        let failure = |message: &str| Failure::new(FailureCode::WorkerLost, message);
        let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
        let number = rest.parse().unwrap_or(1);
        match word {
            "submit" => Event::Submitted { model: 0, job: number, client: 0, adapter: None },
            "other" => Event::Submitted { model: 1, job: 9, client: 0, adapter: None },
            "poet" => Event::Submitted { model: 0, job: 5, client: 0, adapter: Some("poet".into()) },
            "cancel" => Event::Cancelled { job: number },
            "probed" => {
                let (plugin, architecture) = (self.plugin.clone(), "a".into());
                let card = Arc::new(card(0, State::PerSequence { bytes: 1 }));
                let model = usize::from(rest == "other");
                Event::Probed {
                    model,
                    result: Ok(Probed { plugin, architecture, card, need: Need::default(), options: String::new() }),
                }
            }
            "unknown" => Event::Probed { model: 0, result: Err(failure("no plugin")) },
            "started" => Event::Started { serial, pid: Some(7) },
            "not-started" => Event::NotStarted { serial, error: "no memory".into() },
            "progress" => Event::Reported { serial, report: Report::Progress { done: 1, total: 2, what: "x".into() } },
            "loaded" => Event::Reported { serial, report: Report::Loaded(Box::default()) },
            "load-failed" => Event::Reported { serial, report: Report::LoadFailed(failure("bad weights")) },
            "ended" => Event::JobsEnded { serial, jobs: vec![number] },
            "exited" => {
                let serial = rest.parse().unwrap_or(serial);
                Event::Exited { serial, failure: failure("crashed") }
            }
            "replaced" => {
                self.plugin = plugin("two", &[]);
                Event::PluginsChanged(Arc::new(Catalogue::for_tests(vec![self.plugin.clone()])))
            }
            "joined" => {
                let plugins = vec![self.plugin.clone(), plugin("more", &["greedy"])];
                Event::PluginsChanged(Arc::new(Catalogue::for_tests(plugins)))
            }
            "release" => Event::Released { model: 0 },
            "pin" => Event::PinRequested { model: 0, pin: true },
            "unpin" => Event::PinRequested { model: 0, pin: false },
            "unload" => Event::UnloadRequested { model: 0 },
            "keep" => {
                let time = number * u64::from(!rest.is_empty());
                Event::KeptAlive { model: 0, keep: Some(KeepAlive::For(Duration::from_secs(time))) }
            }
            "keep-always" => Event::KeptAlive { model: 0, keep: Some(KeepAlive::Always) },
            "measured" => Event::Measured { serial, bytes: number << 20 },
            "on-cpu" => {
                let loaded = Loaded { device: "cpu".into(), ..Loaded::default() };
                Event::Reported { serial, report: Report::Loaded(Box::new(loaded)) }
            }
            "configured" => Event::Reconfigured(self.configured(rest)),
            "stats" => Event::StatsRequested,
            "stats-came" => Event::Reported { serial, report: Report::Stats(Box::default()) },
            "attach" => {
                let pending = PendingAdapter { name: "poet".into(), adapter: Adapter::at("/poet"), ticket: number };
                Event::AttachRequested { model: 0, pending }
            }
            "attached" => {
                let adapter = AttachedAdapter { format: "f".into(), pairs: 1, bytes: 1 };
                Event::Reported { serial, report: Report::Attached { attempt: number, result: Ok(adapter) } }
            }
            "not-attached" => {
                let result = Err(failure("bad adapter"));
                Event::Reported { serial, report: Report::Attached { attempt: number, result } }
            }
            "detach" => Event::DetachRequested { model: 0, name: "poet".into(), ticket: number },
            "shutdown" => Event::ShutdownRequested { drain: 10 * SECOND },
            "after" => {
                self.now += SECOND * u32::try_from(number).unwrap();
                Event::TimePassed
            }
            _ => panic!("{words}"),
        }
    }

    /// The present configuration with a change.
    fn configured(&self, change: &str) -> Arc<Config> {
        let mut config = (*self.supervisor.config).clone();
        let model = &mut config.models[0];
        match change {
            "threads" => model.spec.threads += 1,
            "alias" => model.aliases = vec!["x".into()],
            "removed" => model.removed = true,
            "poet" => drop(model.adapters.insert("poet".into(), Adapter::at("/poet"))),
            "no-poet" => model.adapters.clear(),
            "small" => config.memory_bytes = 10 << 20,
            "third" => config.models.push(ModelConfig { id: "o".into(), ..ModelConfig::default() }),
            _ => panic!("{change}"),
        }
        Arc::new(config)
    }

    fn state(&self) -> &'static str {
        match self.supervisor.models[0].state {
            LoadState::Idle => "idle",
            LoadState::Probing => "probing",
            LoadState::AwaitingMemory { .. } => "awaiting",
            LoadState::Loading(_) => "loading",
            LoadState::Ready(_) => "ready",
            LoadState::Pausing { .. } => "pausing",
            LoadState::Quarantined { .. } => "quarantined",
        }
    }

    /// Plays a list of steps and compares the last ones.
    fn check(steps: &[TraceStep<'_>]) {
        let mut fixture = Self::new();
        for (place, (words, state, effects)) in steps.iter().enumerate() {
            let event = fixture.event(words);
            let done = fixture.supervisor.on(event, fixture.now);
            let done = done.iter().filter(|effect| !matches!(effect, Effect::Note(_)));
            let done: Vec<String> = done.map(text).collect();
            assert_eq!((fixture.state(), done.join(", ").as_str()), (*state, *effects), "{place}: {words}");
        }
    }
}

pub(super) fn text(effect: &Effect) -> String {
    match effect {
        Effect::Probe { model } => format!("probe {model}"),
        Effect::Start { serial, model, .. } => format!("start {serial} for {model}"),
        Effect::Submit { serial, job } => format!("job {job} to {serial}"),
        Effect::Notify { job, .. } => format!("notify {job}"),
        Effect::Fail { job, failure } => format!("fail {job}: {}", failure.message),
        Effect::Send { serial, command } => {
            let command = format!("{command:?}");
            format!("{} {serial}", command.split([' ', '(']).next().unwrap_or_default().to_lowercase())
        }
        Effect::Kill { serial, reason } => format!("kill {serial}: {}", reason.message),
        Effect::Answer { ticket, answer: Ok(_) } => format!("answer {ticket}"),
        Effect::Answer { ticket, answer: Err(error) } => format!("refuse {ticket}: {}", error.failure.message),
        Effect::AnswerStats => "stats".into(),
        Effect::Remember { bytes, .. } => format!("remember {}", bytes >> 20),
        Effect::Note(Note { model, what }) => format!("note of {model}: {what:?}"),
        Effect::End => "end".into(),
    }
}

const PROBING: TraceStep<'_> = ("submit", "probing", "probe 0");
const LOADING: TraceStep<'_> = ("probed", "loading", "start 1 for 0");
const READY: TraceStep<'_> = ("loaded", "ready", "job 1 to 1");
const FREE: TraceStep<'_> = ("ended", "ready", "");
const PAUSING: TraceStep<'_> = ("exited", "pausing", "");
const ANEW: TraceStep<'_> = ("after 1", "probing", "probe 0");
const AGAIN: TraceStep<'_> = ("probed", "loading", "start 2 for 0");
const QUARANTINE: &str = "model 'm' is in quarantine: its worker died 2 times within 60 s, the last time so: crashed";

#[test]
fn every_event_in_every_state_has_its_effects() {
    let idle: &[TraceStep<'_>] = &[];
    let probing = &[PROBING];
    let loading = &[PROBING, LOADING];
    let ready = &[PROBING, LOADING, READY];
    let free = &[PROBING, LOADING, READY, FREE];
    let pausing = &[PROBING, LOADING, READY, PAUSING];
    let failed: TraceStep<'_> = ("exited", "quarantined", "");
    let quarantined = &[PROBING, LOADING, READY, PAUSING, ANEW, AGAIN, failed];
    let closing = &[PROBING, LOADING, READY, ("shutdown", "idle", "drain 1")];
    let refused = format!("fail 2: {QUARANTINE}");
    let table: &[(&[TraceStep<'_>], &[TraceStep<'_>])] = &[
        (idle, &[PROBING, ("probed", "loading", "start 1 for 0")]),
        (idle, &[("cancel", "idle", ""), ("probed", "idle", ""), ("replaced", "idle", ""), ("release", "idle", "")]),
        (idle, &[("exited 4", "idle", ""), ("after 100", "idle", ""), ("shutdown", "idle", "end")]),
        (
            idle,
            &[
                ("stats", "idle", "stats"),
                ("detach 3", "idle", "refuse 3: model 'm' has no adapter 'poet' (it has: none)"),
            ],
        ),
        (
            probing,
            &[
                ("submit 2", "probing", ""),
                ("unknown", "idle", "fail 1: model 'm': no plugin, fail 2: model 'm': no plugin"),
            ],
        ),
        (probing, &[("cancel", "probing", ""), LOADING, ("loaded", "ready", "")]),
        (probing, &[("shutdown", "idle", "fail 1: the server is about to end, end")]),
        (
            loading,
            &[
                ("submit 2", "loading", ""),
                ("progress", "loading", "notify 1, notify 2"),
                ("loaded", "ready", "job 1 to 1, job 2 to 1"),
            ],
        ),
        (
            loading,
            &[
                ("load-failed", "idle", "fail 1: bad weights"),
                ("submit 2", "probing", "probe 0"),
                ("exited 1", "probing", ""),
            ],
        ),
        (
            loading,
            &[
                ("not-started", "idle", "fail 1: model 'm': a worker process does not start: no memory"),
                ("submit 2", "probing", "probe 0"),
            ],
        ),
        (
            loading,
            &[
                ("exited", "pausing", ""),
                ("submit 2", "pausing", ""),
                ANEW,
                AGAIN,
                ("loaded", "ready", "job 1 to 2, job 2 to 2"),
            ],
        ),
        (
            loading,
            &[
                ("replaced", "probing", "drain 1, kill 1: was loading a plugin that is gone, probe 0"),
                ("exited 1", "probing", ""),
                AGAIN,
            ],
        ),
        (
            loading,
            &[
                ("after 299", "loading", ""),
                ("progress", "loading", "notify 1"),
                ("after 299", "loading", ""),
                ("after 1", "loading", "kill 1: made no progress with its load"),
            ],
        ),
        (ready, &[("submit 2", "ready", "job 2 to 1"), ("cancel 2", "ready", "cancel 1"), ("ended 2", "ready", "")]),
        (
            ready,
            &[
                ("stats", "ready", "stats 1"),
                ("stats-came", "ready", "stats"),
                ("stats", "ready", "stats 1"),
                ("after 1", "ready", "stats"),
            ],
        ),
        (
            ready,
            &[
                ("replaced", "idle", "drain 1"),
                ("submit 2", "probing", "probe 0"),
                ("probed", "awaiting", ""),
                ("exited 1", "loading", "start 2 for 0"),
                ("loaded", "ready", "job 2 to 2"),
            ],
        ),
        (ready, &[("joined", "ready", ""), ("ended", "idle", "drain 1"), ("exited", "idle", "")]),
        (
            ready,
            &[
                ("after 100", "ready", ""),
                ("ended", "ready", ""),
                ("after 59", "ready", ""),
                ("after 1", "idle", "drain 1"),
            ],
        ),
        (
            free,
            &[
                ("after 60", "idle", "drain 1"),
                ("after 9", "idle", ""),
                ("after 1", "idle", "kill 1: did not end when it was asked to"),
            ],
        ),
        (pausing, &[("release", "idle", ""), ("after 9", "idle", "")]),
        (pausing, &[("replaced", "idle", ""), ("shutdown", "idle", "end")]),
        (
            quarantined,
            &[
                ("submit 2", "quarantined", &refused),
                ("attach 3", "quarantined", &refused.replace("fail 2", "refuse 3")),
            ],
        ),
        (quarantined, &[("after 299", "quarantined", ""), ("after 1", "idle", ""), ("submit", "probing", "probe 0")]),
        (quarantined, &[("release", "idle", ""), ("submit", "probing", "probe 0")]),
        (quarantined, &[("replaced", "idle", ""), ("submit", "probing", "probe 0")]),
        (
            closing,
            &[
                ("submit 2", "idle", "fail 2: the server is about to end"),
                ("attach", "idle", "refuse 1: the server is about to end"),
                ("exited", "idle", "end"),
            ],
        ),
        (
            closing,
            &[("after 10", "idle", "kill 1: had not finished when the server ended"), ("after 3", "idle", "end")],
        ),
    ];
    for (before, then) in table {
        Fixture::check(&[*before, *then].concat());
    }
}

#[test]
fn the_second_death_within_a_minute_is_one_too_many() {
    let waits = format!("fail 2: {QUARANTINE}");
    let again: TraceStep<'_> = ("exited", "quarantined", &waits);
    Fixture::check(&[PROBING, LOADING, READY, PAUSING, ("submit 2", "pausing", ""), ANEW, AGAIN, again]);
    let second: &[TraceStep<'_>] = &[PROBING, LOADING, READY, PAUSING, ANEW, AGAIN, ("loaded", "ready", "")];
    Fixture::check(&[second, &[("after 58", "ready", ""), ("exited", "quarantined", "")]].concat());
    Fixture::check(&[second, &[("after 59", "ready", ""), ("exited", "pausing", "")]].concat());
}

#[test]
fn an_idle_model_makes_room_for_another_and_a_busy_one_does_not() {
    let other = &[("other", "ready", "probe 1"), ("probed other", "ready", "")];
    let busy = [&[PROBING, LOADING, READY][..], other].concat();
    let given_up = ("after 120", "ready", "fail 9: model 'n' finds no memory: other models are busy");
    Fixture::check(&[&busy[..], &[given_up]].concat());
    let evicted: &[TraceStep<'_>] =
        &[("ended", "idle", "drain 1"), ("exited 1", "idle", "start 2 for 1"), ("loaded", "idle", "job 9 to 2")];
    Fixture::check(&[&busy[..], evicted].concat());
}

#[test]
fn an_adapter_is_known_once_the_worker_has_it() {
    let coming: TraceStep<'_> = ("attach 7", "ready", "attach 1");
    let there: TraceStep<'_> = ("attached 1", "ready", "answer 7");
    let table: &[(&[TraceStep<'_>], &[TraceStep<'_>])] = &[
        (&[], &[("attach 7", "probing", "probe 0"), LOADING, ("loaded", "ready", "attach 1"), there]),
        (
            &[PROBING],
            &[
                ("attach 7", "probing", ""),
                ("detach 8", "probing", "refuse 7: adapter 'poet' was taken away while it was read, answer 8"),
            ],
        ),
        (
            &[PROBING, LOADING, READY],
            &[coming, ("attach 8", "ready", "refuse 8: model 'm' is taking in an adapter 'poet' already"), there],
        ),
        (
            &[PROBING, LOADING, READY],
            &[
                coming,
                there,
                ("poet", "ready", "job 5 to 1"),
                ("attach 8", "ready", "refuse 8: model 'm' has an adapter 'poet' already"),
            ],
        ),
        (
            &[PROBING, LOADING, READY],
            &[coming, there, ("detach 9", "ready", "detach 1, answer 9"), ("attach 8", "ready", "attach 1")],
        ),
        (&[PROBING, LOADING, READY], &[coming, ("not-attached 1", "ready", "refuse 7: bad adapter")]),
        (
            &[PROBING, LOADING, READY],
            &[
                coming,
                ("detach 9", "ready", "refuse 7: adapter 'poet' was taken away while it was read, detach 1, answer 9"),
                ("attached 1", "ready", ""),
            ],
        ),
        (&[PROBING, LOADING, READY], &[coming, ("exited", "pausing", "refuse 7: crashed")]),
        (
            &[PROBING, LOADING, READY],
            &[
                coming,
                (
                    "after 300",
                    "ready",
                    "detach 1, refuse 7: adapter 'poet': its format did not come back from reading it",
                ),
            ],
        ),
        (&[PROBING, LOADING, READY], &[coming, ("replaced", "probing", "drain 1, probe 0"), ("exited", "probing", "")]),
    ];
    for (before, then) in table {
        Fixture::check(&[*before, *then].concat());
    }
}

#[test]
fn what_belongs_in_the_log_comes_back_as_notes_in_order() {
    let mut fixture = Fixture::new();
    let mut notes = Vec::new();
    for words in ["submit", "probed", "loaded", "attach 7", "attached 1", "detach 8", "exited"] {
        let event = fixture.event(words);
        for effect in fixture.supervisor.on(event, fixture.now) {
            if let Effect::Note(Note { model, what }) = effect {
                assert_eq!(model, 0, "{what:?}");
                notes.push(match what {
                    Happening::Loading { memory } => format!("loading with {} words", memory.split(' ').count().min(2)),
                    Happening::NoChatTemplate => "no template".into(),
                    Happening::Loaded(_) => "loaded".into(),
                    Happening::AdapterAttached { name, .. } => format!("attached {name}"),
                    Happening::AdapterDetached { name } => format!("detached {name}"),
                    Happening::AdapterRefused { name, .. } => format!("refused {name}"),
                    Happening::WorkerDied(failure) => format!("died: {}", failure.message),
                });
            }
        }
    }
    let expect = ["loading with 2 words", "no template", "loaded", "attached poet", "detached poet", "died: crashed"];
    assert_eq!(notes, expect);
}

#[test]
fn pinned_models_stay_and_others_go_when_they_are_told_to() {
    let free = &[PROBING, LOADING, READY, FREE];
    let table: &[(&[TraceStep<'_>], &[TraceStep<'_>])] = &[
        // Loaded without a request, once; a failure is not tried again by itself.
        (&[], &[("pin", "probing", "probe 0"), LOADING, ("loaded", "ready", ""), ("after 3600", "ready", "")]),
        (&[], &[("pin", "probing", "probe 0"), ("unknown", "idle", ""), ("after 100", "idle", "")]),
        (
            free,
            &[
                ("pin", "ready", ""),
                ("after 100", "ready", ""),
                ("other", "ready", "probe 1"),
                ("probed other", "ready", ""),
                ("after 119", "ready", ""),
                // No longer pinned, it makes room.
                ("unpin", "idle", "drain 1"),
                ("exited 1", "idle", "start 2 for 1"),
            ],
        ),
        (free, &[("pin", "ready", ""), ("replaced", "probing", "drain 1, probe 0"), ("probed", "awaiting", "")]),
        (free, &[("unload", "idle", "drain 1"), ("exited 1", "idle", ""), ("submit 2", "probing", "probe 0")]),
        (free, &[("pin", "ready", ""), ("unload", "idle", "drain 1"), ("exited 1", "idle", "")]),
        (&[PROBING, LOADING, READY], &[("unload", "idle", "drain 1"), ("ended", "idle", ""), ("exited 1", "idle", "")]),
        (
            &[PROBING, LOADING],
            &[
                ("unload", "probing", "drain 1, kill 1: was unloaded before it was ready, probe 0"),
                ("exited 1", "probing", ""),
            ],
        ),
        (free, &[("keep 5", "ready", ""), ("after 4", "ready", ""), ("after 1", "idle", "drain 1")]),
        (free, &[("keep-always", "ready", ""), ("after 3600", "ready", "")]),
        (
            free,
            &[
                ("keep-always", "ready", ""),
                // It is the configured time again once the model was unloaded.
                ("unload", "idle", "drain 1"),
                ("exited 1", "idle", ""),
                ("submit 2", "probing", "probe 0"),
                AGAIN,
                ("loaded", "ready", "job 2 to 2"),
                ("ended 2", "ready", ""),
                ("after 60", "idle", "drain 2"),
            ],
        ),
        (&[PROBING, LOADING, READY], &[("keep", "ready", ""), ("ended", "idle", "drain 1")]),
    ];
    for (before, then) in table {
        Fixture::check(&[*before, *then].concat());
    }
}

#[test]
fn a_new_configuration_drops_nothing_that_runs() {
    let running = &[PROBING, LOADING, READY];
    let table: &[(&[TraceStep<'_>], &[TraceStep<'_>])] = &[
        (running, &[("configured alias", "ready", ""), ("configured third", "ready", "")]),
        (
            running,
            &[
                ("configured threads", "idle", "drain 1"),
                ("submit 2", "probing", "probe 0"),
                ("ended", "probing", ""),
                ("exited 1", "probing", ""),
                AGAIN,
            ],
        ),
        (&[PROBING], &[("configured threads", "probing", ""), ("probed", "probing", "probe 0"), LOADING]),
        (
            &[PROBING, LOADING],
            &[(
                "configured threads",
                "probing",
                "drain 1, kill 1: was loading with settings that have changed, probe 0",
            )],
        ),
        (
            running,
            &[
                ("configured removed", "idle", "drain 1"),
                ("submit 2", "idle", "fail 2: model 'm' was removed from the configuration"),
                ("ended", "idle", ""),
                ("exited 1", "idle", ""),
            ],
        ),
        (
            &[PROBING],
            &[
                ("configured removed", "probing", "fail 1: model 'm' was removed from the configuration"),
                ("probed", "idle", ""),
            ],
        ),
        (
            running,
            &[
                ("configured poet", "ready", "attach 1"),
                ("attached", "ready", ""),
                ("configured no-poet", "ready", "detach 1"),
            ],
        ),
        (running, &[PAUSING, ("configured threads", "idle", ""), ("submit 2", "probing", "probe 0")]),
    ];
    for (before, then) in table {
        Fixture::check(&[*before, *then].concat());
    }
}

#[test]
fn a_claim_follows_what_was_measured_and_idle_models_go_when_others_grow() {
    // The plan is 65 MiB of the fleet's 100.
    let used = |fixture: &Fixture| fixture.supervisor.stats(fixture.now).memory_used >> 20;
    let mut fixture = Fixture::new();
    let play = |fixture: &mut Fixture, words: &str| {
        let event = fixture.event(words);
        let done = fixture.supervisor.on(event, fixture.now);
        let done = done.iter().filter(|effect| !matches!(effect, Effect::Note(_)));
        done.map(text).collect::<Vec<_>>().join(", ")
    };
    for words in ["submit", "probed", "on-cpu"] {
        play(&mut fixture, words);
    }
    assert_eq!((play(&mut fixture, "measured 10"), used(&fixture)), (String::new(), 65), "it has answered nothing yet");
    assert_eq!((play(&mut fixture, "ended"), used(&fixture)), ("remember 10".into(), 42));
    assert_eq!((play(&mut fixture, "measured 15"), used(&fixture)), ("remember 15".into(), 47));
    // The other model is planned with 65, so the idle one makes room for it, and its worker grows.
    play(&mut fixture, "other");
    assert_eq!((play(&mut fixture, "probed other"), used(&fixture)), ("drain 1".into(), 47));
    assert_eq!(play(&mut fixture, "exited 1"), "start 2 for 1");
    assert_eq!(play(&mut fixture, "on-cpu"), "job 9 to 2");
    assert_eq!(
        (play(&mut fixture, "ended 9"), play(&mut fixture, "measured 20"), used(&fixture)),
        (String::new(), "remember 20".into(), 52)
    );
    assert_eq!(used(&fixture), 52);
    // A claim never exceeds the plan, which the fence holds the worker to.
    assert_eq!((play(&mut fixture, "measured 90"), used(&fixture)), ("remember 90".into(), 65));
}

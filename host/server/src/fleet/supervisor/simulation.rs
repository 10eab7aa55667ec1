//! A fleet without processes: random clients, operators and plugins, and workers that obey, dawdle, hang and die, on a
//! clock that the test advances. In any order of events, every request ends exactly once, every process is accounted
//! for, memory stays within its budget, and no model is started sooner or more often than its limits allow. Each run
//! has a seed, which a failing run prints; `PENSIEVE_SIMULATION_SEED` repeats that run alone, with a trace of its
//! events.

mod world;

use std::env;

use super::*;
use crate::fleet::{ModelConfig, Restart};
use pensieve_protocol::wire::ModelSpec;
use world::{Parts, Totals, World};

const SEEDS: u64 = 10_000;
const STEPS: u32 = 150;
const MODELS: [&str; 3] = ["a", "b", "c"];
/// Minimum time that the control loop sleeps.
const INSTANT: Duration = Duration::from_millis(1);

/// Fleets with memory for one model, for two, and for all of them, whose idle workers stay or exit.
fn fleets() -> Vec<Arc<Config>> {
    let limits = Limits { sequences_max: 3, waiting_max: 5, ..Limits::default() };
    let spec = ModelSpec { kv_budget: Some(1 << 20), adapter_memory: 1 << 20, limits, ..ModelSpec::default() };
    let model = |id: &str| ModelConfig { id: id.into(), spec: spec.clone(), ..ModelConfig::default() };
    let fleet = |(memory_mib, idle): (u64, Option<Duration>)| {
        let mut config = Config::new(&[], std::path::Path::new("/nowhere"));
        config.models = MODELS.map(model).into();
        (config.memory_bytes, config.idle_timeout) = (memory_mib << 20, idle);
        config.restart = Restart { pause: Duration::from_secs(1), pause_max: Duration::from_secs(3), ..config.restart };
        Arc::new(config)
    };
    let idle = [None, Some(Duration::from_secs(5)), Some(Duration::from_secs(60))];
    [100, 140, 1000].into_iter().flat_map(|mib| idle.map(|idle| (mib, idle))).map(fleet).collect()
}

/// Prints the seed of a failed run.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("PENSIEVE_SIMULATION_SEED={}", self.0);
        }
    }
}

fn run(seed: u64, parts: &Parts, totals: &mut Totals, tells: bool) {
    let _seed = Seed(seed);
    let mut world = World::new(seed, parts, totals, tells);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    world.shut_down();
}

#[test]
fn a_fleet_loses_nothing_whatever_happens_in_whatever_order() {
    let (parts, mut totals) = (Parts::new(fleets()), Totals::default());
    if let Ok(seed) = env::var("PENSIEVE_SIMULATION_SEED") {
        return run(seed.parse().unwrap(), &parts, &mut totals, true);
    }
    (0..SEEDS).for_each(|seed| run(seed, &parts, &mut totals, false));
    println!("{totals:?}");
    // Every kind of event has occurred, and often.
    let Totals { finished, failed, cancelled, loads, drains, deaths, quarantines, kills, .. } = totals;
    assert!(finished > 100_000 && failed > 50_000 && cancelled > 10_000, "{totals:?}");
    assert!(loads > 20_000 && drains > 10_000 && deaths > 10_000 && quarantines > 100 && kills > 5_000, "{totals:?}");
    assert!(totals.attached > 10_000 && totals.refused > 10_000 && totals.swaps > 10_000, "{totals:?}");
}

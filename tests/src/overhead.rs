//! The worker's overhead: the time of a step over the socket compared with the same batches run directly through the
//! plugin. The bound is loose, as machines that run tests are busy; the figures are printed.

use pensieve_plugin_api::Want;
use pensieve_protocol::wire::{Load, Provider};
use std::time::Instant;

use crate::{
    artifacts::plugin,
    checkpoints,
    driver::{Driver, Options},
    worker::{Worker, faults, job, with},
};

const VOCABULARY: u32 = 32_000;
const STEPS: u32 = 300;

fn tokens(stream: u32) -> Vec<u32> {
    (0..16).map(|place| 1 + stream * 100 + place).collect()
}

/// Microseconds per decode of this many streams, without a worker.
fn direct(checkpoint: &std::path::Path, streams: u32) -> f64 {
    let mut driver = Driver::load(&plugin("bigram"), checkpoint, &Options::default()).unwrap();
    let mut sequences: Vec<_> = (0..streams).map(|_| driver.begin()).collect();
    for (sequence, stream) in sequences.iter_mut().zip(0..) {
        driver.feed(sequence, &tokens(stream), Want::LAST).unwrap();
    }
    let began = Instant::now();
    for _ in 0..STEPS {
        for sequence in &mut sequences {
            driver.feed(sequence, &[7], Want::LAST).unwrap();
        }
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS)
}

#[test]
fn a_step_over_the_socket_costs_little_more_than_the_model() {
    let folder = checkpoints::bigram(VOCABULARY, 16_384);
    for streams in [1, 8] {
        let architecture = Provider { plugin: plugin("bigram"), name: "bigram".into() };
        let source = folder.path().to_owned();
        let mut worker =
            Worker::start(with(Load { architecture, source, ..faults() }, |spec| spec.device = "cpu".into()));
        for stream in 0..streams {
            worker.submit(&job(stream.into(), tokens(stream), STEPS));
        }
        let began = Instant::now();
        for stream in 0..streams {
            assert_eq!(worker.outcome(stream.into()).ids.len(), STEPS as usize);
        }
        let wall = began.elapsed().as_secs_f64() * 1e6;
        let stats = worker.stats();
        let each = |total: u64| total as f64 / stats.steps as f64;
        let (forward, overhead) = (each(stats.forward_us), each(stats.overhead_us));
        println!(
            "{streams} streams: {:.0} us a step over the socket, {forward:.0} in forward, {overhead:.0} around it; {:.0} without a worker",
            wall / stats.steps as f64,
            direct(folder.path(), streams)
        );
        assert!(overhead < 5_000.0, "{overhead} us a step");
    }
}

//! A real architecture in a real worker: what holds for the test plugins holds for Llama, too, up to rounding; with our
//! kernels, an f32 model's rounding does not depend on the rest of the batch.

use pensieve_protocol::{
    job::Job,
    wire::{Load, Provider},
};

use crate::{
    artifacts::plugin,
    reference::fixture,
    worker::{Worker, faults, job, with, with_disk},
};

const VOCABULARY: u32 = 256;

fn llama() -> Load {
    let architecture = Provider { plugin: plugin("pensieve-llama"), name: "llama".into() };
    let source = fixture("llama/gqa").join("f32.gguf");
    let load = Load { architecture, source, ..faults() };
    with(load, |spec| (spec.device, spec.kv_budget) = ("cpu".into(), Some(8 << 20)))
}

fn tokens(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|place| (seed.wrapping_mul(7919).wrapping_add(place * place * 31 + place)) % VOCABULARY).collect()
}

#[test]
fn twenty_streams_of_a_llama_say_what_each_says_alone() {
    let mut worker = Worker::start(llama());
    let jobs: Vec<Job> = (0..20).map(|n| job(u64::from(n), tokens(n, 10 + 3 * n), 40)).collect();
    jobs.iter().for_each(|job| worker.submit(job));
    let together: Vec<_> = jobs.iter().map(|job| worker.outcome(job.id)).collect();
    for (job, together) in jobs.iter().zip(together) {
        let alone = Job { id: job.id + 100, salt: b"alone".to_vec(), ..job.clone() };
        assert_eq!(together.ids, worker.run(&alone).ids, "stream {}", job.id);
        assert_eq!(together.ids.len(), 40);
    }
}

#[test]
fn a_llama_goes_on_from_its_blocks_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(with_disk(llama(), folder.path()));
    let first = worker.run(&job(1, tokens(5, 100), 20));
    worker.drain();
    let next = [tokens(5, 100), first.ids].concat();
    let mut worker = Worker::start(with_disk(llama(), folder.path()));
    let again = worker.run(&job(1, next.clone(), 20));
    assert_eq!(again.usage().reused, 112);
    assert_eq!(again.ids, worker.run(&Job { salt: b"other".to_vec(), ..job(2, next, 20) }).ids);
}

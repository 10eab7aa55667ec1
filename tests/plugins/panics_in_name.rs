//! A plugin whose sampler cannot even say its name.

use pensieve_sdk::{
    Plugin, Result,
    sampler::{Sampler, Stage},
};

pensieve_sdk::export!({
    std::panic::set_hook(Box::new(|_| ()));
    Plugin::new("panics-in-name", "panics when asked for a name").sampler(Nameless)
});

struct Nameless;

impl Sampler for Nameless {
    fn name(&self) -> &'static str {
        panic!("I have no name")
    }

    fn create(&self, _parameters: &str, _vocabulary: u32, _seed: u64) -> Result<Box<dyn Stage>> {
        panic!("nobody can ask for me")
    }
}

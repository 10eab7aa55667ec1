//! Options and extensions of an author's own.

use pensieve_sdk::{
    Architecture, Result, Services,
    extension::{
        self, Extension, PluginError,
        abi_stable::{StableAbi, sabi_types::RMut, std_types::RResult},
    },
    nn::{Decoder, KvShape, Linear, Loader, ModelOptions, Paged, Shape, Step, Tensor},
    testing::exported,
    weights::Checkpoint,
};

use crate::lab::{self, HEAD_DIM, KV_HEADS, VOCABULARY, WIDTH};

const ID: &str = "example-temperature/1";

/// An extension that the author's host and plugin have agreed on.
#[repr(C)]
#[derive(StableAbi)]
struct Temperature {
    get: unsafe extern "C" fn(model: RMut<'_, ()>) -> RResult<f32, PluginError>,
    set: unsafe extern "C" fn(model: RMut<'_, ()>, value: f32) -> RResult<(), PluginError>,
}

static TEMPERATURE: Temperature = Temperature { get, set };

unsafe extern "C" fn get(model: RMut<'_, ()>) -> RResult<f32, PluginError> {
    // SAFETY: `Bent` alone offers this table.
    unsafe { extension::decoder(model, |bent: &mut Bent| Ok(bent.temperature)) }
}

unsafe extern "C" fn set(model: RMut<'_, ()>, value: f32) -> RResult<(), PluginError> {
    let checked = move |bent: &mut Bent| {
        assert!(value > 0.0, "a temperature of {value}");
        bent.temperature = value;
        Ok(())
    };
    // SAFETY: as above.
    unsafe { extension::decoder(model, checked) }
}

/// A model with a temperature, from an option, that an extension changes.
struct Bent {
    lm_head: Linear,
    temperature: f32,
}

impl Decoder for Bent {
    const NAME: &'static str = "bent";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["Lab"];
    const OPTIONS: &'static [&'static str] = &["temperature"];
    type Config = f32;

    fn config(_: &Checkpoint) -> Result<f32> {
        Ok(1.0)
    }

    fn config_with(_: &Checkpoint, options: &ModelOptions) -> Result<f32> {
        Ok(options.get("temperature")?.unwrap_or(1.0))
    }

    fn shape(_: &f32) -> Shape {
        let kv = KvShape::uniform(1, KV_HEADS, HEAD_DIM);
        Shape { vocabulary: VOCABULARY, context: 64, widest: WIDTH, kv }
    }

    fn load(loader: &Loader<'_>, temperature: &f32) -> Result<Self> {
        Ok(Self { lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?, temperature: *temperature })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        step.ops().activation_of(vec![1.0; step.tokens().len() * WIDTH], (step.tokens().len(), WIDTH))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok((self.lm_head.forward(hidden, step)? / f64::from(self.temperature))?)
    }

    fn extension(&self, id: &str) -> Option<Extension> {
        (id == ID).then(|| Extension::offer(&TEMPERATURE))
    }
}

fn load(options: &str) -> Result<Box<dyn pensieve_sdk::Model>> {
    let folder = tempfile::tempdir().unwrap();
    lab::checkpoint(folder.path());
    Paged::<Bent>::architecture().load(&lab::request(folder.path(), options.into()), &Services::silent())
}

#[test]
fn an_option_of_the_author_s_own_reaches_the_model_and_a_misspelled_one_is_named() {
    assert!(load(r#"{"temperature": 2.5, "kv": "f32"}"#).is_ok());
    let refused = |options: &str| load(options).err().unwrap();
    let error = refused(r#"{"temprature": 2.5}"#);
    assert_eq!(error.message, "the model's options: unknown option 'temprature'");
    assert!(error.help.ends_with("mmproj (a file with a GGUF model's vision tower), temperature"), "{}", error.help);
    assert!(refused(r#"{"temperature": "hot"}"#).message.starts_with("option temperature: invalid type: string"));
    assert!(refused(r#"{"n_cpu_moe": -1}"#).message.starts_with("option n_cpu_moe: "));
    assert!(refused("[1]").message.starts_with("the model's options: invalid type: sequence"));
}

#[test]
fn a_host_calls_an_author_s_extension_on_the_model_that_offers_it() {
    let mut model = exported(load(r#"{"temperature": 2.5}"#).unwrap()).unwrap();
    assert!(model.extension("example-temperature/2".into()).is_none());
    assert!(model.extension("kv-transfer/1".into()).is_some(), "the contract's own are offered beside it");
    let table = model.extension(ID.into()).into_option().unwrap().table::<Temperature>(ID).unwrap();
    let mut object = model.obj.sabi_as_rmut();
    // SAFETY: `model` offered the table.
    let (before, changed, after) = unsafe {
        let before = (table.get)(object.reborrow()).unwrap();
        let changed = (table.set)(object.reborrow(), 0.5).into_result();
        (before, changed, (table.get)(object.reborrow()).unwrap())
    };
    assert_eq!((before, after), (2.5, 0.5));
    assert!(changed.is_ok());
    // SAFETY: as above.
    let panicked = unsafe { (table.set)(object, -1.0) }.into_result().unwrap_err();
    assert!(panicked.message.contains("extension panicked: a temperature of -1"), "{}", panicked.message);
}

//! The memory of a loaded model by place and purpose, for the log: shows what fills a card, and why weights are held
//! twice.

use std::{collections::BTreeMap, fmt};

use crate::nn::{
    adapters::registry::Part,
    backend::{Form, Matrix},
    memory::kv::KvCache,
    spec::KvType,
};

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::nn) enum Class {
    Linear,
    Embedding,
    /// Tables that are read row by row.
    Table,
    /// Norms, biases and other small tensors.
    Small,
    Cache,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// One of the model's devices.
    Device(usize),
    /// Host memory, for a model on a device.
    Host,
    /// The mapped files of the checkpoint.
    Mapped,
}

/// Bytes by place and class.
#[derive(Debug, Default)]
pub(in crate::nn) struct Resident {
    bytes: BTreeMap<(Place, Class), u64>,
}

impl Resident {
    /// Adds a weight; `on_host` if it stays in host memory although the model is on a device.
    pub(in crate::nn) fn add_matrix(&mut self, matrix: &Matrix, part: Part, on_host: bool) {
        let class = if part == Part::Table { Class::Embedding } else { Class::Linear };
        let device = Place::Device(matrix.place);
        let (place, bytes) = match &matrix.form {
            // Weights with a merged adapter, or assembled from parts, are not in the file.
            Form::InPlace(raw) if raw.data.is_in_file() => (Place::Mapped, raw.data.len()),
            Form::InPlace(raw) => (device, raw.data.len()),
            Form::Dense(tensor) => (device, tensor.elem_count() * tensor.dtype().size_in_bytes()),
            Form::Quantized(tensor, _) => (device, tensor.storage_size_in_bytes()),
            #[cfg(any(test, target_os = "macos"))]
            Form::Metal(weight) => match weight.bytes() {
                (bytes, true) => (Place::Mapped, bytes as usize),
                (bytes, false) => (device, bytes as usize),
            },
            #[cfg(feature = "cuda")]
            Form::Cuda(weight) => (device, weight.bytes()),
        };
        let place = if on_host && place == device { Place::Host } else { place };
        self.add(place, class, bytes as u64);
    }

    /// Adds a table that stays in its file.
    pub(in crate::nn) fn add_table(&mut self, bytes: usize) {
        self.add(Place::Mapped, Class::Table, bytes as u64);
    }

    /// Adds a small `f32` tensor on one of the model's devices.
    pub(in crate::nn) fn add_small(&mut self, values: usize, place: usize) {
        self.add(Place::Device(place), Class::Small, 4 * values as u64);
    }

    /// Adds a cache on all of its devices.
    pub(in crate::nn) fn add_cache(&mut self, kv: &KvCache) {
        for (place, bytes) in kv.bytes_by_place() {
            self.add(Place::Device(place), Class::Cache, bytes);
        }
    }

    fn add(&mut self, place: Place, class: Class, bytes: u64) {
        let sum = self.bytes.entry((place, class)).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Formats the log line for a model on `devices` with a cache of type `kind`.
    pub(in crate::nn) fn describe(&self, devices: &[&str], kind: KvType) -> String {
        let list = |place: Place| -> Option<String> {
            let parts = self.bytes.iter().filter(|((at, _), bytes)| *at == place && **bytes > 0);
            let parts: Vec<_> =
                parts.map(|((_, class), bytes)| format!("{} {}", class.name(kind), Size(*bytes))).collect();
            (!parts.is_empty()).then(|| parts.join(", "))
        };
        let devices = devices.iter().enumerate().map(|(place, name)| (Place::Device(place), format!("on {name}")));
        let others =
            [(Place::Host, "in the host's memory".into()), (Place::Mapped, "mapped from the checkpoint".into())];
        let places = devices.chain(others).filter_map(|(place, name)| Some(format!("{name}: {}", list(place)?)));
        places.collect::<Vec<_>>().join("; ")
    }
}

impl Class {
    fn name(self, kind: KvType) -> String {
        match self {
            Self::Linear => "linear layers".into(),
            Self::Embedding => "embeddings".into(),
            Self::Table => "tables".into(),
            Self::Small => "norms and biases".into(),
            Self::Cache => format!("cache in {}", kind.name()),
        }
    }
}

/// Bytes, shown in a readable unit.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0 as f64, "B");
        for larger in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, larger);
        }
        let digits = usize::from(value < 100.0 && unit != "B");
        write!(f, "{value:.digits$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::Size;
    use crate::{
        Architecture, LoadRequest, Result, Source,
        nn::{Decoder, Embedding, KvShape, Linear, Loader, Paged, RmsNorm, Shape, Step, Tensor},
        services::heard,
        testing::random_checkpoint,
        weights::Checkpoint,
    };

    const WIDTH: usize = 32;
    const VOCABULARY: usize = 96;

    struct Table {
        embed_tokens: Embedding,
        norm: RmsNorm,
        lm_head: Linear,
    }

    impl Decoder for Table {
        const NAME: &'static str = "table";
        const GGUF: &'static [&'static str] = &[];
        const CLASSES: &'static [&'static str] = &["Table"];
        type Config = ();

        fn config(_: &Checkpoint) -> Result<()> {
            Ok(())
        }

        fn shape((): &()) -> Shape {
            Shape { vocabulary: VOCABULARY, context: 64, widest: WIDTH, kv: KvShape::uniform(1, 1, 16) }
        }

        fn load(loader: &Loader<'_>, (): &()) -> Result<Self> {
            Ok(Self {
                embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
                norm: RmsNorm::load(loader, "norm", WIDTH, 1e-5)?,
                lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
            })
        }

        fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
            self.embed_tokens.forward(step)
        }

        fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
            self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
        }
    }

    fn logged(options: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [
            ("embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
            ("norm.weight".to_owned(), vec![WIDTH]),
            ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ];
        random_checkpoint(folder.path(), r#"{"architectures": ["Table"]}"#, &tensors).unwrap();
        let source = Source { path: folder.path().to_owned(), options: options.into() };
        let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 1 << 16, threads: 1 };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let services = heard::by(move |line| heard.lock().unwrap().push(line.to_owned()));
        Paged::<Table>::architecture().load(&request, &services).unwrap();
        let line = lines.lock().unwrap().iter().find(|line| line.starts_with("memory")).cloned();
        line.unwrap()
    }

    #[test]
    fn a_model_that_has_loaded_says_what_it_takes_where() {
        // Our kernels read weights from the mapped file; the formulas use candle's copies.
        let mapped = "memory on cpu: norms and biases 128 B, cache in f32 64.0 KiB; mapped from the checkpoint: linear layers \
                      12.0 KiB, embeddings 12.0 KiB";
        let copied =
            "memory on cpu: linear layers 12.0 KiB, embeddings 12.0 KiB, norms and biases 128 B, cache in f32 64.0 KiB";
        let is_forced = std::env::var("PENSIEVE_KERNELS").is_ok_and(|kernels| kernels == "generic");
        assert_eq!(logged(r#"{"kernels": "auto"}"#), if is_forced { copied } else { mapped });
        assert_eq!(logged(r#"{"kernels": "generic"}"#), copied);
    }

    #[test]
    fn sizes_are_rounded_to_what_a_person_reads() {
        let sizes = [0, 1023, 1024, 1536, 200 << 20, (5 << 30) + (1 << 29)].map(|bytes| Size(bytes).to_string());
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "200 MiB", "5.5 GiB"]);
    }
}

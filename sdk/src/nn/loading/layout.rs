//! Assigns a model's layers to its devices.
//!
//! Layers are assigned in order, so that activations cross each boundary once per step, and by size, so that all
//! devices are filled to the same fraction. A layer is identified by the number in its weights' names, as in
//! `model.layers.7.mlp.up_proj`. Weights without a number belong to the first layer, except the final norm and the
//! head, which belong to the last.

use std::ops::RangeInclusive;

use crate::{Error, Result};

/// Reserved on each device for activations, kernels and the driver; at most a tenth of what is free.
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Names of the modules after the last layer.
const LAST: [&str; 6] = ["lm_head", "norm", "norm_f", "final_norm", "final_layernorm", "embedding_norm"];

/// A device that takes a share of the layers.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Share {
    pub(in crate::nn) name: String,
    /// `None` if the device does not report its free memory.
    pub(in crate::nn) free_bytes: Option<u64>,
}

/// The device of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::nn) struct Layout {
    /// For each layer the index of its device, in ascending order.
    places: Vec<usize>,
    /// Number of devices.
    devices: usize,
}

/// The unit by which weights are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    First,
    Layer(usize),
    Last,
}

impl Part {
    fn of(path: &str) -> Self {
        let mut parts = path.split('.').filter(|part| !["weight", "bias"].contains(part));
        match parts.clone().find_map(|part| part.parse().ok()) {
            // Rows of images come before the first layer.
            _ if is_beside_text(path) => Self::First,
            Some(layer) => Self::Layer(layer),
            None if parts.next_back().is_some_and(|name| LAST.contains(&name)) => Self::Last,
            None => Self::First,
        }
    }
}

impl Layout {
    /// Puts everything on one device.
    pub(in crate::nn) fn one() -> Self {
        Self { places: Vec::new(), devices: 1 }
    }

    /// Assigns layers to devices by the sizes of `weights`, with names, and of `caches`, one for each layer that has
    /// one.
    pub(in crate::nn) fn plan<'a>(
        shares: &[Share],
        weights: impl Iterator<Item = (&'a str, u64)>,
        caches: &[u64],
    ) -> Result<Self> {
        let (mut first, mut last, mut layers) = (0_u64, 0_u64, Vec::<u64>::new());
        for (name, bytes) in weights {
            let sum = match Part::of(name) {
                Part::First => &mut first,
                Part::Last => &mut last,
                Part::Layer(layer) if layer < LAYERS_MAX => {
                    layers.resize(layers.len().max(layer + 1), 0);
                    &mut layers[layer]
                }
                Part::Layer(layer) => return Err(Error::corrupt(format!("'{name}' is of a layer {layer}"))),
            };
            *sum = sum.saturating_add(bytes);
        }
        if layers.is_empty() && shares.len() == 1 {
            return Ok(Self::one());
        }
        if layers.len() < shares.len() {
            let (layers, devices) = (layers.len(), shares.len());
            let message = format!("a model of {layers} layers cannot be spread over {devices} devices");
            return Err(Error::invalid(message).help("name fewer devices"));
        }
        let count = layers.len();
        for (cache, bytes) in caches.iter().enumerate() {
            let layer = &mut layers[cache * count / caches.len()];
            *layer = layer.saturating_add(*bytes);
        }
        layers[0] = layers[0].saturating_add(first);
        layers[count - 1] = layers[count - 1].saturating_add(last);
        let layout = Self { places: deal(&layers, shares), devices: shares.len() };
        for (place, share) in shares.iter().enumerate() {
            let taken = layers.iter().zip(&layout.places).filter(|(_, at)| **at == place);
            let taken = taken.fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
            if let Some(free) = share.free_bytes
                && let reserve = RESERVE_BYTES_MAX.min(free / 10)
                && taken.saturating_add(reserve) > free
            {
                let range = layout.layers_of(place).map_or_else(String::new, |range| in_words(&range));
                return Err(Error::out_of_memory(format!(
                    "{} has {} MB free, and {range} of the model take {} MB there beside {} MB for computing",
                    share.name,
                    free >> 20,
                    taken >> 20,
                    reserve >> 20
                ))
                .help(
                    "name more devices, lower kv_budget or context, or take a smaller or more quantized checkpoint",
                ));
            }
        }
        Ok(layout)
    }

    /// Device of the weights at this path of the checkpoint.
    pub(in crate::nn) fn of_path(&self, path: &str) -> usize {
        match Part::of(path) {
            _ if self.devices == 1 => 0,
            Part::First => 0,
            Part::Layer(layer) => self.places.get(layer).copied().unwrap_or(self.devices - 1),
            Part::Last => self.devices - 1,
        }
    }

    /// Device of one of `count` caches.
    pub(in crate::nn) fn of_cache(&self, cache: usize, count: usize) -> usize {
        let layer = cache * self.places.len() / count.max(1);
        self.places.get(layer).copied().unwrap_or(self.devices - 1)
    }

    fn layers_of(&self, place: usize) -> Option<RangeInclusive<usize>> {
        let first = self.places.iter().position(|at| *at == place)?;
        Some(first..=self.places.iter().rposition(|at| *at == place)?)
    }

    /// Describes the layers of each device for the log.
    pub(in crate::nn) fn describe(&self, names: &[&str]) -> String {
        let of = |(place, name): (usize, &&str)| {
            let range = self.layers_of(place)?;
            Some(format!("{} on {name}", in_words(&range)))
        };
        names.iter().enumerate().filter_map(of).collect::<Vec<_>>().join(", ")
    }
}

/// Returns whether a weight belongs to experts that stay in host memory: those of the first `layers` layers.
pub(in crate::nn) fn is_on_host(path: &str, layers: usize) -> bool {
    matches!(Part::of(path), Part::Layer(layer) if layer < layers) && path.split('.').any(|part| part == "experts")
}

/// Returns whether a weight belongs to the vision or audio part of a multimodal checkpoint.
pub(in crate::nn) fn is_beside_text(path: &str) -> bool {
    path.split('.').any(|part| BESIDE_TEXT.iter().any(|name| part.starts_with(name)))
}

/// Prefixes of the module names of vision and audio parts.
const BESIDE_TEXT: [&str; 8] =
    ["vision", "visual", "audio", "multi_modal_projector", "connector", "embed_vision", "embed_audio", "mm_projector"];

/// A larger layer number is a sign of a corrupt file.
const LAYERS_MAX: usize = 4096;

/// Assigns each device a contiguous run of at least one layer, so that all devices are filled to the same fraction.
fn deal(layers: &[u64], shares: &[Share]) -> Vec<usize> {
    // If any device does not report its memory, all count equally.
    let free: Option<Vec<u64>> = shares.iter().map(|share| share.free_bytes).collect();
    let room = free.map_or(vec![1.0; shares.len()], |free| free.into_iter().map(|free| free.max(1) as f64).collect());
    let (all, total): (f64, f64) = (room.iter().sum(), layers.iter().map(|bytes| *bytes as f64).sum());
    let ends: Vec<f64> = room
        .iter()
        .scan(0.0, |sum, room| {
            *sum += room / all;
            Some(*sum)
        })
        .collect();
    let mut places = Vec::with_capacity(layers.len());
    let (mut sum, mut place) = (0.0, 0);
    for (layer, bytes) in layers.iter().enumerate() {
        let middle = (sum + *bytes as f64 / 2.0) / total.max(1.0);
        sum += *bytes as f64;
        let is_first_of_place = places.last() != Some(&place);
        // If no more layers are left than further devices, each of those needs one.
        let is_urgent = layers.len() - layer < shares.len() - place;
        if place + 1 < shares.len() && !is_first_of_place && (middle > ends[place] || is_urgent) {
            place += 1;
        }
        places.push(place);
    }
    places
}

fn in_words(range: &RangeInclusive<usize>) -> String {
    if range.start() == range.end() {
        return format!("layer {}", range.start());
    }
    format!("layers {} to {}", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(free: &[u64]) -> Vec<Share> {
        let share = |(at, free): (usize, &u64)| Share { name: format!("cuda:{at}"), free_bytes: Some(free << 30) };
        free.iter().enumerate().map(share).collect()
    }

    fn names(layers: usize) -> Vec<(String, u64)> {
        let mut names = vec![("model.embed_tokens.weight".to_owned(), 1 << 30), ("lm_head.weight".to_owned(), 1 << 30)];
        names.extend((0..layers).map(|layer| (format!("model.layers.{layer}.mlp.up_proj.weight"), 1 << 30)));
        names
    }

    fn plan(free: &[u64], layers: usize, caches: &[u64]) -> Result<Layout> {
        Layout::plan(&shares(free), names(layers).iter().map(|(name, bytes)| (name.as_str(), *bytes)), caches)
    }

    #[test]
    fn layers_are_dealt_out_by_what_each_device_has_free() {
        let layout = plan(&[40, 40], 8, &[0; 8]).unwrap();
        assert_eq!(layout.places, [0, 0, 0, 0, 1, 1, 1, 1]);
        let layout = plan(&[60, 20], 8, &[0; 8]).unwrap();
        assert_eq!(layout.places.iter().filter(|place| **place == 0).count(), 7, "{layout:?}");
        let layout = plan(&[40, 40, 40], 9, &[0; 9]).unwrap();
        assert_eq!(layout.describe(&["a", "b", "c"]), "layers 0 to 2 on a, layers 3 to 5 on b, layers 6 to 8 on c");
        // Caches count like weights.
        let layout = plan(&[40, 40], 8, &[0, 0, 0, 0, 0, 0, 0, 8 << 30]).unwrap();
        assert_eq!(layout.places.iter().filter(|place| **place == 1).count(), 1, "{layout:?}");
    }

    #[test]
    fn every_device_has_a_layer_and_too_many_devices_are_refused() {
        assert_eq!(plan(&[400, 30, 30], 3, &[0; 3]).unwrap().places, [0, 1, 2]);
        assert!(plan(&[40, 40, 40], 2, &[0; 2]).unwrap_err().message.contains("2 layers"));
    }

    #[test]
    fn a_device_that_has_too_little_is_named_before_anything_is_loaded() {
        let error = plan(&[6, 6], 20, &[0; 20]).unwrap_err();
        assert!(error.message.starts_with("cuda:0 has 6144 MB free, and layers 0 to 9"), "{error}");
    }

    #[test]
    fn what_has_no_number_belongs_to_the_first_layer_or_to_the_last() {
        let layout = plan(&[40, 40], 4, &[0; 2]).unwrap();
        let places = ["model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.3.mlp.experts.1.up_proj"];
        assert_eq!(places.map(|path| layout.of_path(path)), [0, 0, 1]);
        let places = ["model.norm.weight", "lm_head", "backbone.norm_f", "model.per_layer_projection_norm"];
        assert_eq!(places.map(|path| layout.of_path(path)), [1, 1, 1, 0]);
        assert_eq!([0, 1].map(|cache| layout.of_cache(cache, 2)), [0, 1]);
        assert_eq!(Layout::one().of_path("model.layers.3.mlp"), 0);
        let experts = ["model.layers.1.mlp.experts.7.up_proj.weight", "model.layers.2.mlp.experts.gate_up_proj"];
        assert_eq!(experts.map(|path| is_on_host(path, 2)), [true, false]);
        assert!(!is_on_host("model.layers.1.mlp.shared_experts.up_proj.weight", 2));
    }
}

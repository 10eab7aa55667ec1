//! Models that read images: what their plugins make of pictures and prompts, against transformers' processors, and the
//! logits of texts with several pictures against its models.

mod rows;

use pensieve_plugin_api::{
    ArchitectureBox, Source, Want,
    ext::media::{Encode, Measured, MediaItem, MediaKind, MediaSize, NO_HANDLE, Placement, Prepare},
};
use pensieve_prompt::Model;
use pensieve_protocol::prompt::Tokenizer;
use pensieve_worker::plugin::{LoadedPlugin, card};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options, Sequence},
    reference::{EXACT, Reference, distance, fixture},
};

/// A fixture of `vision/` and the plugin that serves it.
struct Case {
    name: &'static str,
    plugin: &'static str,
    /// Options of the model.
    options: &'static str,
    /// The GGUF file of the text model, if there is one beside that of the tower.
    gguf: Option<&'static str>,
}

const CASES: &[Case] = &[
    Case { name: "gemma3", plugin: "pensieve-gemma", options: "", gguf: Some("text.gguf") },
    Case { name: "gemma3_pan_and_scan", plugin: "pensieve-gemma", options: r#""do_pan_and_scan": true,"#, gguf: None },
    Case { name: "gemma4", plugin: "pensieve-gemma", options: "", gguf: Some("text.gguf") },
    Case { name: "gemma4_large", plugin: "pensieve-gemma", options: "", gguf: Some("text.gguf") },
    Case { name: "glm4v", plugin: "pensieve-glm", options: "", gguf: Some("text.gguf") },
    Case { name: "glm4v_moe", plugin: "pensieve-glm", options: "", gguf: Some("text.gguf") },
    Case { name: "glm_ocr", plugin: "pensieve-glm", options: "", gguf: Some("text.gguf") },
    Case { name: "idefics3", plugin: "pensieve-llama", options: "", gguf: Some("text.gguf") },
    Case { name: "smolvlm", plugin: "pensieve-llama", options: "", gguf: None },
    Case { name: "mistral3", plugin: "pensieve-mistral", options: "", gguf: Some("text.gguf") },
    Case { name: "pixtral", plugin: "pensieve-mistral", options: "", gguf: Some("text.gguf") },
    Case { name: "qwen2_5_vl", plugin: "pensieve-qwen", options: "", gguf: Some("text.gguf") },
    Case { name: "qwen3_vl", plugin: "pensieve-qwen", options: "", gguf: Some("text.gguf") },
    Case { name: "qwen3_5", plugin: "pensieve-qwen", options: "", gguf: Some("text.gguf") },
    Case { name: "lfm2_vl", plugin: "pensieve-lfm2", options: "", gguf: None },
    Case { name: "lfm2_vl_usual", plugin: "pensieve-lfm2", options: "", gguf: Some("text.gguf") },
];

/// A picture of a fixture.
struct Picture {
    size: MediaSize,
    pixels: Vec<u8>,
}

/// A prompt of a fixture.
struct Prompt {
    text: String,
    /// The pictures that it shows.
    images: Vec<usize>,
}

/// The tokens of one picture in a prompt.
struct Place {
    image: usize,
    start: usize,
    len: usize,
}

/// A checkpoint's description of pictures, and those of its fixture, measured and prepared.
struct Eyes {
    description: Value,
    slot: u32,
    measured: Vec<Measured>,
    prepared: Vec<Vec<u8>>,
}

impl Case {
    fn fixture(&self) -> String {
        format!("vision/{}", self.name)
    }

    /// The folder, and the GGUF file with the options that name its tower.
    fn checkpoints(&self) -> Vec<(PathBuf, String)> {
        let folder = fixture(&self.fixture());
        let settings =
            |kernels: &str, tower: &str| format!(r#"{{{} {tower} "kernels": "{kernels}", "kv": "f32"}}"#, self.options);
        let mut found: Vec<_> = ["auto", "generic"].map(|kernels| (folder.clone(), settings(kernels, ""))).into();
        found.extend(self.gguf.map(|file| (folder.join(file), settings("auto", r#""mmproj": ["mmproj.gguf"],"#))));
        found
    }

    fn pictures(&self) -> Vec<Picture> {
        let reference = Reference::of(&self.fixture());
        let names = (0..).map(|index| format!("image.{index}"));
        let pictures = names.map_while(|name| reference.pixels(&name)).map(|([height, width], pixels)| Picture {
            size: MediaSize { kind: MediaKind::IMAGE, width: width as u32, height: height as u32 },
            pixels,
        });
        pictures.collect()
    }

    fn prompts(&self) -> Vec<Prompt> {
        let file = fs::read(fixture(&self.fixture()).join("prompts.json")).unwrap();
        let file: Value = serde_json::from_slice(&file).unwrap();
        let prompt = |prompt: &Value| Prompt {
            text: prompt["text"].as_str().unwrap().to_owned(),
            images: prompt["images"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap() as usize).collect(),
        };
        file["prompts"].as_array().unwrap().iter().map(prompt).collect()
    }

    /// The architecture that takes a checkpoint.
    fn architecture(&self, plugin: &LoadedPlugin, checkpoint: &Path, options: &str) -> ArchitectureBox {
        let source = Source { path: checkpoint.to_str().unwrap().into(), options: options.into() };
        let architectures = plugin.manifest().architectures.iter();
        let mut architectures = architectures.map(|claim| plugin.architecture(&claim.architecture).unwrap());
        architectures
            .find(|architecture| architecture.describe(&source).into_result().is_ok())
            .unwrap_or_else(|| panic!("{}: no architecture takes it", self.name))
    }

    fn eyes(&self, checkpoint: &Path, options: &str) -> Eyes {
        let plugin = LoadedPlugin::open(&plugin(self.plugin)).unwrap();
        let source = Source { path: checkpoint.to_str().unwrap().into(), options: options.into() };
        let architecture = self.architecture(&plugin, checkpoint, options);
        let prepare = Prepare::of(&architecture).expect("an architecture that reads images").unwrap();
        let description: Value = serde_json::from_str(&prepare.describe(&source).unwrap()).unwrap();
        let processor = description["image"]["processor"].to_string();
        let measure = |picture: &Picture| prepare.measure(&processor, picture.size).unwrap();
        let make = |picture: &Picture| {
            let item = MediaItem { size: picture.size, data: picture.pixels[..].into() };
            prepare.prepare(&processor, &item).unwrap().to_vec()
        };
        let pictures = self.pictures();
        Eyes {
            slot: description["image"]["slot"].as_u64().unwrap() as u32,
            measured: pictures.iter().map(measure).collect(),
            prepared: pictures.iter().map(make).collect(),
            description,
        }
    }
}

impl Eyes {
    /// The text with that of each picture in place of its placeholder.
    fn text(&self, prompt: &Prompt) -> String {
        let mut parts = prompt.text.split(self.description["image"]["placeholder"].as_str().unwrap());
        let mut text = parts.next().unwrap().to_owned();
        for (image, part) in prompt.images.iter().zip(parts) {
            text += self.measured[*image].text.as_str();
            text += part;
        }
        text
    }

    /// The tokens of each picture, from its first row to its last.
    fn places(&self, prompt: &Prompt, tokens: &[u32]) -> Vec<Place> {
        let slots: Vec<usize> = (0..tokens.len()).filter(|index| tokens[*index] == self.slot).collect();
        let mut slots = &slots[..];
        let place = |image: &usize| {
            let (own, rest) = slots.split_at(self.measured[*image].rows as usize);
            slots = rest;
            Place { image: *image, start: own[0], len: own[own.len() - 1] - own[0] + 1 }
        };
        let places = prompt.images.iter().map(place).collect();
        assert!(slots.is_empty(), "{} slots too many", slots.len());
        places
    }

    fn open(&self, driver: &mut Driver, pictures: &[Picture]) {
        let mut encode = Encode::of(&mut driver.model).expect("a model that reads images").unwrap();
        for (index, (measured, prepared)) in self.measured.iter().zip(&self.prepared).enumerate() {
            encode.open(handle(index), pictures[index].size, &measured.layout, prepared).unwrap();
        }
    }

    /// Places a prompt's pictures in a sequence, those that begin before `from` without their rows.
    fn place(&self, driver: &mut Driver, sequence: &Sequence, case: (&[Picture], &[Place], &[u32]), from: usize) {
        let (pictures, places, tokens) = case;
        let placements: Vec<Placement<'_>> = places
            .iter()
            .map(|place| Placement {
                start: place.start as u32,
                tokens: tokens[place.start..place.start + place.len].into(),
                size: pictures[place.image].size,
                layout: self.measured[place.image].layout[..].into(),
                handle: if place.start + place.len <= from { NO_HANDLE } else { handle(place.image) },
            })
            .collect();
        Encode::of(&mut driver.model).unwrap().unwrap().place(sequence.id, &placements).unwrap();
    }
}

fn handle(index: usize) -> u64 {
    index as u64 + 1
}

fn encode_all(driver: &mut Driver, handles: &[u64], budget: u32) -> usize {
    let mut encode = Encode::of(&mut driver.model).unwrap().unwrap();
    let mut calls = 1;
    while encode.encode(handles, budget).unwrap() > 0 {
        calls += 1;
    }
    calls
}

#[test]
fn processors_make_the_tokens_of_transformers() {
    for case in CASES {
        for (checkpoint, options) in case.checkpoints() {
            let eyes = case.eyes(&checkpoint, &options);
            let driver = Driver::load(&plugin(case.plugin), &checkpoint, &Options::with_settings(options)).unwrap();
            let card = card::read(&driver.card, Ok(None), Ok(None)).unwrap();
            let model = Model::new(&Tokenizer::of(&card)).unwrap();
            for (index, prompt) in case.prompts().iter().enumerate() {
                let expected = Reference::of(&case.fixture()).tokens(&format!("tokens.{index}"));
                let mut found = model.text(&eyes.text(prompt), &[]).unwrap();
                // LFM2-VL's processor leaves the beginning of a text to the template.
                if found.len() > expected.len() && Some(found[0]) == card.bos {
                    found.remove(0);
                }
                assert_eq!(found, expected, "{} {}: prompt {index}", case.name, checkpoint.display());
                let rows: u32 = prompt.images.iter().map(|image| eyes.measured[*image].rows).sum();
                assert!(
                    u64::from(rows)
                        <= prompt.images.len() as u64 * eyes.description["image"]["rows_max"].as_u64().unwrap()
                );
            }
        }
    }
}

#[test]
fn texts_with_pictures_have_the_logits_of_transformers() {
    for case in CASES {
        let (pictures, prompts) = (case.pictures(), case.prompts());
        let reference = Reference::of(&case.fixture());
        for (checkpoint, options) in case.checkpoints() {
            let what = format!("{} with {options}", checkpoint.display());
            let eyes = case.eyes(&checkpoint, &options);
            let mut driver = Driver::load(&plugin(case.plugin), &checkpoint, &Options::with_settings(options.as_str()))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            eyes.open(&mut driver, &pictures);
            encode_all(&mut driver, &(0..pictures.len()).map(handle).collect::<Vec<_>>(), 0);
            let is_whole = eyes.description["image"]["whole"] == true;
            for (index, prompt) in prompts.iter().enumerate() {
                let tokens = reference.tokens(&format!("tokens.{index}"));
                let expected = reference.logits(&format!("logits.{index}"));
                let places = eyes.places(prompt, &tokens);
                let shown = (&pictures[..], &places[..], &tokens[..]);
                let mut sequence = driver.begin();
                eyes.place(&mut driver, &sequence, shown, 0);
                let at_once = driver.feed(&mut sequence, &tokens, Want::ALL).unwrap();
                driver.release(sequence);
                let worst = distance(&at_once, &expected);
                println!("{what}: prompt {index}: {worst:.2e}");
                assert!(worst <= EXACT, "{what}: prompt {index}: off by {worst}");
                // In steps that end inside of pictures, or between them if their rows see each other.
                let mut ends: Vec<usize> = match is_whole {
                    true => places.iter().flat_map(|place| [place.start, place.start + place.len]).collect(),
                    false => (11..tokens.len()).step_by(11).collect(),
                };
                ends.push(tokens.len());
                let (mut sequence, mut logits, mut start) = (driver.begin(), Vec::new(), 0);
                for end in ends {
                    eyes.place(&mut driver, &sequence, shown, start);
                    logits.extend(driver.feed(&mut sequence, &tokens[start..end], Want::ALL).unwrap());
                    start = end;
                }
                driver.release(sequence);
                let worst = distance(&logits, &expected);
                assert!(worst <= EXACT, "{what}: prompt {index} in steps: off by {worst}");
            }
        }
    }
}

#[test]
fn the_rows_of_a_picture_do_not_depend_on_its_company() {
    for case in CASES {
        let (pictures, prompts) = (case.pictures(), case.prompts());
        let (prompt, tokens) = (&prompts[1], Reference::of(&case.fixture()).tokens("tokens.1"));
        let (checkpoint, options) = case.checkpoints().swap_remove(0);
        let eyes = case.eyes(&checkpoint, &options);
        let places = eyes.places(prompt, &tokens);
        let load =
            || Driver::load(&plugin(case.plugin), &checkpoint, &Options::with_settings(options.as_str())).unwrap();
        let of = |groups: &[&[u64]], budget: u32| {
            let mut driver = load();
            eyes.open(&mut driver, &pictures);
            let calls: usize = groups.iter().map(|handles| encode_all(&mut driver, handles, budget)).sum();
            let mut sequence = driver.begin();
            eyes.place(&mut driver, &sequence, (&pictures, &places, &tokens), 0);
            (calls, driver.feed(&mut sequence, &tokens, Want::ALL).unwrap())
        };
        let (calls, in_pieces) = of(&[&[1, 2, 3]], 0);
        assert!(calls > 2, "{}: {calls} pieces", case.name);
        for (groups, budget) in [(&[&[1, 2, 3][..]][..], 10_000_000), (&[&[3], &[2], &[1]], 10_000_000)] {
            assert_eq!(of(groups, budget).1, in_pieces, "{} in {groups:?}", case.name);
        }
    }
}

#[test]
fn damaged_pictures_are_refused() {
    for case in CASES {
        let (checkpoint, options) = case.checkpoints().swap_remove(0);
        let (eyes, pictures) = (case.eyes(&checkpoint, &options), case.pictures());
        let mut driver = Driver::load(&plugin(case.plugin), &checkpoint, &Options::with_settings(options)).unwrap();
        let mut encode = Encode::of(&mut driver.model).unwrap().unwrap();
        let (size, layout, prepared) = (pictures[0].size, &eyes.measured[0].layout[..], &eyes.prepared[0][..]);
        let larger = [&layout[..layout.len() - 1], &[layout[layout.len() - 1] + 1]].concat();
        for (layout, prepared) in [
            (layout, &prepared[1..]),
            (layout, &[]),
            (&layout[1..], prepared),
            (&[][..], prepared),
            (&[0; 4], &[]),
            (&[255; 4], prepared),
            (&larger, prepared),
        ] {
            encode.open(1, size, layout, prepared).expect_err(case.name);
        }
        encode.open(1, size, layout, prepared).unwrap();
        encode.open(1, size, layout, prepared).unwrap_err();
        encode.close(1);
        encode.encode(&[1], 0).unwrap_err();
        // The layout of a cached picture is not opened. Of 65,535 by 65,535 patches no model makes positions.
        let tokens = [eyes.slot];
        let (tokens, layout) = (tokens[..].into(), [255; 4][..].into());
        let placed = encode.place(7, &[Placement { start: 0, tokens, size, layout, handle: NO_HANDLE }]);
        assert!(
            placed.is_err() || !["qwen", "glm"].iter().any(|family| case.name.starts_with(family)),
            "{}",
            case.name
        );
    }
}

#[test]
fn images_of_every_size_become_as_many_rows_as_published_processors_make() {
    let file: Value = serde_json::from_slice(&fs::read(fixture("vision/sizes.json")).unwrap()).unwrap();
    for (name, expected) in file.as_object().unwrap() {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let (checkpoint, options) = case.checkpoints().swap_remove(0);
        let mut processor = case.eyes(&checkpoint, &options).description["image"]["processor"].clone();
        let settings = expected["settings"].as_object().unwrap().clone();
        processor.as_object_mut().unwrap().extend(settings);
        let plugin = LoadedPlugin::open(&plugin(case.plugin)).unwrap();
        let architecture = case.architecture(&plugin, &checkpoint, &options);
        let prepare = Prepare::of(&architecture).unwrap().unwrap();
        for size in expected["sizes"].as_array().unwrap() {
            let [width, height, rows] = [0, 1, 2].map(|index| size[index].as_u64().unwrap() as u32);
            let size = MediaSize { kind: MediaKind::IMAGE, width, height };
            let measured = prepare.measure(&processor.to_string(), size).unwrap();
            assert_eq!(measured.rows, rows, "{name}: {width} by {height}");
        }
    }
}

#[test]
fn a_tower_of_a_file_that_states_no_sizes_of_tiles_has_the_published_ones() {
    let file: Value = serde_json::from_slice(&fs::read(fixture("vision/sizes.json")).unwrap()).unwrap();
    let case = CASES.iter().find(|case| case.name == "lfm2_vl_usual").unwrap();
    let (checkpoint, options) = case.checkpoints().pop().unwrap();
    let found = &case.eyes(&checkpoint, &options).description["image"]["processor"];
    for (key, value) in file["lfm2_vl"]["settings"].as_object().unwrap() {
        assert!(key == "patch_size" || &found[key] == value, "{key} is {}, not {value}", found[key]);
    }
}

//! Sections of a report about a machine: what its device is, whether our kernels and candle's ops compute there what the
//! formulas do on the CPU, and how long products and attention take by shape.
//!
//! A host asks for one section at a time (`draft/diagnostics/1`), in a process of its own. All but the three about Metal
//! itself go through the [`Backend`] that a model would get, so that they run on every machine.

mod attention;
mod kernels;
mod layer;
mod layers;
mod ops;
mod products;
mod timing;

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use super::{backend::Backend, device, ops::backend_of};
use crate::{Error, Result, Services};

type Measure = fn(&Bench<'_>) -> Result<Value>;

const SECTIONS: [(&str, Measure); 7] = [
    ("device", |bench| about_device(bench)),
    ("compiler", |bench| compiler(bench)),
    ("guards", |bench| guards(bench)),
    ("kernels", kernels::measure),
    ("ops", ops::measure),
    ("products", products::measure),
    ("attention", attention::measure),
];

/// How a section is measured.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    device: String,
    /// Small sizes and few repetitions, for tests.
    quick: bool,
}

/// The device of a section, and whom to tell how far it is.
struct Bench<'a> {
    device: Device,
    name: String,
    quick: bool,
    services: &'a Services,
}

/// The names of the sections, in the order of a report.
pub(crate) fn sections() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(name, _)| *name)
}

/// Measures a section, and returns a JSON object.
pub(crate) fn measure(section: &str, settings: &str, services: &Services) -> Result<String> {
    let Some((_, measure)) = SECTIONS.iter().find(|(name, _)| *name == section) else {
        return Err(Error::not_found(format!("there is no section '{section}'")));
    };
    let settings: Settings = serde_json::from_str(settings)
        .map_err(|error| Error::invalid(format!("these are no settings of a section: {error}")))?;
    let device::Chosen { device, name, .. } = device::choose(&settings.device)?.alone()?;
    let result = measure(&Bench { device, name, quick: settings.quick, services })?;
    Ok(result.to_string())
}

impl Bench<'_> {
    /// The backend that a model on this device gets.
    fn backend(&self) -> Arc<dyn Backend> {
        backend_of(self.device.clone())
    }

    fn progress(&self, done: usize, total: usize, what: &str) {
        self.services.progress(done as u64, total as u64, what);
    }

    #[cfg_attr(target_os = "macos", allow(dead_code))]
    fn no_metal(&self) -> Error {
        Error::unsupported(format!("this is about Metal, and the device is {}", self.name))
    }
}

fn about_device(bench: &Bench<'_>) -> Result<Value> {
    #[cfg(target_os = "macos")]
    if let Ok(metal) = bench.device.as_metal_device() {
        return Ok(super::backend::metal_report::device(metal));
    }
    Ok(json!({ "device": bench.name, "kernels": bench.backend().note() }))
}

fn compiler(bench: &Bench<'_>) -> Result<Value> {
    #[cfg(target_os = "macos")]
    if let Ok(metal) = bench.device.as_metal_device() {
        return Ok(super::backend::metal_report::compiler(metal));
    }
    Err(bench.no_metal())
}

fn guards(bench: &Bench<'_>) -> Result<Value> {
    #[cfg(target_os = "macos")]
    if let Ok(metal) = bench.device.as_metal_device() {
        return super::backend::metal_report::guards(metal);
    }
    Err(bench.no_metal())
}

/// The largest difference between two results, and the largest value of the second. Neither is a number if a result has
/// values that are none.
fn difference(ours: &Tensor, reference: &Tensor) -> Result<[f32; 2]> {
    let values = |tensor: &Tensor| -> Result<Vec<f32>> {
        Ok(tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    };
    let (ours, reference) = (values(ours)?, values(reference)?);
    if ours.len() != reference.len() {
        return Err(Error::invalid(format!("{} values instead of {}", ours.len(), reference.len())));
    }
    // `f32::max` would pass a NaN by.
    let larger = |a: f32, b: f32| if b.is_nan() || b > a { b } else { a };
    let differences = ours.iter().zip(&reference).map(|(ours, reference)| (ours - reference).abs());
    Ok([differences.fold(0.0, larger), reference.iter().map(|value| value.abs()).fold(0.0, larger)])
}

/// A figure for JSON, which has no NaN and no infinity: these become text.
fn figure(value: impl Into<f64>) -> Value {
    let value = value.into();
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::backend::cases::CASES;

    fn section(name: &str) -> Value {
        let result = measure(name, r#"{"device": "cpu", "quick": true}"#, &Services::silent()).unwrap();
        serde_json::from_str(&result).unwrap()
    }

    #[test]
    fn sections_about_metal_are_unsupported_elsewhere() {
        for name in ["compiler", "guards"] {
            let error = measure(name, r#"{"device": "cpu"}"#, &Services::silent()).unwrap_err();
            assert_eq!(error.code, crate::Code::Unsupported, "{error:?}");
        }
        let error = measure("weather", "{}", &Services::silent()).unwrap_err();
        assert_eq!(error.code, crate::Code::NotFound);
    }

    /// The kernels, by the code that drives Apple's driver, on one that computes with the same kernels compiled as C++.
    #[test]
    fn every_case_of_the_kernels_is_close_to_its_formula_through_the_metal_backend() {
        let driver = crate::nn::backend::Double::default();
        let cases = kernels::cases(&*driver.untried(), |_, _, _| ());
        all_are_close(&cases);
        let launched = driver.record().command_buffers.concat();
        let launches = |start: &str| launched.iter().filter(|name| name.starts_with(start)).count();
        // Two steps of each shape, and a norm of each size; a case that fell back to formulas would be missing.
        assert!(launches("store") >= 2 * CASES.len() && launches("rms_norm") >= 4, "{launched:?}");
        for kernel in crate::nn::backend::kernels_beside_attention() {
            assert!(launched.contains(&kernel), "no case launches {kernel}");
        }
    }

    #[test]
    fn every_case_of_the_kernels_is_close_to_its_formula_on_the_cpu() {
        all_are_close(section("kernels")["cases"].as_array().unwrap());
    }

    fn all_are_close(cases: &[Value]) {
        assert!(cases.len() > 20, "{cases:?}");
        for case in cases {
            let error = case["largest_error"].as_f64().unwrap_or_else(|| panic!("{case}"));
            assert!(error <= case["tolerance"].as_f64().unwrap(), "{case}");
        }
    }

    #[test]
    fn every_line_of_the_table_of_ops_is_run() {
        let result = section("ops");
        let lines = result["lines"].as_array().unwrap();
        let table = include_str!("../backend/metal/ops.txt").lines().filter(|line| line.contains(": "));
        assert_eq!(lines.len(), table.filter(|line| !line.starts_with('#')).count());
        for line in lines {
            assert!(line["error"].is_null() && line["largest_error"].as_f64() == Some(0.0), "{line}");
        }
    }

    #[test]
    fn products_and_attention_have_a_time_for_each_shape() {
        for (name, list) in [("products", "products"), ("attention", "steps")] {
            let result = section(name);
            let rows = result[list].as_array().unwrap();
            assert!(rows.len() >= 3, "{result}");
            assert!(rows.iter().all(|row| row["ms"].as_f64().is_some_and(|ms| ms > 0.0)), "{result}");
        }
        let products = section("products");
        let is_close =
            |row: &Value| row["largest_error"].as_f64() < row["largest_value"].as_f64().map(|value| value * 0.03);
        assert!(products["products"].as_array().unwrap().iter().all(is_close), "{products}");
    }

    #[test]
    fn what_is_no_number_is_not_close_to_anything() {
        let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
        let [error, _] = difference(&tensor(&[1.0, f32::NAN, 2.0]), &tensor(&[1.0, 1.0, 1.0])).unwrap();
        assert!(error.is_nan());
        assert_eq!(figure(error), json!("NaN"));
        let [error, size] = difference(&tensor(&[1.0, -4.0]), &tensor(&[1.0, -4.5])).unwrap();
        assert_eq!((error, size), (0.5, 4.5));
    }
}

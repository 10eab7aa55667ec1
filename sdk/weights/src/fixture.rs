//! Writes small model files for tests, including invalid ones.
//!
//! Real writers refuse to write what a reader must reject, so tests need one that does as it is told. It shares no code
//! with the readers, so it cannot hide their mistakes.

use super::{Bytes, Dtype};

/// A GGUF file under construction.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub version: u32,
    pub alignment: usize,
    /// The header's counts of tensors and entries, if they should be wrong.
    pub tensors_claimed: Option<u64>,
    pub entries_claimed: Option<u64>,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

/// A tensor of a [`Gguf`]; `dimensions` is in the file's order, the row length first.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub type_id: u32,
    pub dimensions: Vec<u64>,
    pub data: Vec<u8>,
    /// The offset in the header, if not the end of the previous tensor.
    pub offset: Option<u64>,
}

impl Gguf {
    pub(crate) fn new(architecture: &str) -> Self {
        let empty = Self {
            version: 3,
            alignment: 32,
            tensors_claimed: None,
            entries_claimed: None,
            entries: vec![],
            tensors: vec![],
        };
        empty.text("general.architecture", architecture)
    }

    /// Adds an entry of any type; `value` is already encoded.
    pub(crate) fn entry(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.entries.push([&text(key)[..], &type_id.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &text(value))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.entry(key, 7, &[u8::from(value)])
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<_> = values.iter().map(|value| text(value)).collect();
        self.array(key, 8, &items)
    }

    pub(crate) fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, &values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, &values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn array(self, key: &str, type_id: u32, items: &[impl AsRef<[u8]>]) -> Self {
        let mut value = type_id.to_le_bytes().to_vec();
        value.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| value.extend(item.as_ref()));
        self.entry(key, 9, &value)
    }

    pub(crate) fn tensor(mut self, tensor: Tensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    /// Adds a dense tensor; `shape` has the row length last.
    pub(crate) fn f32_tensor(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dimensions = shape.iter().rev().map(|dimension| *dimension as u64).collect();
        self.tensor(Tensor { name: name.to_owned(), type_id: 0, dimensions, data, offset: None })
    }

    /// Adds a tensor of zeros.
    pub(crate) fn zeros(self, name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        let data = vec![0; dtype.tensor_bytes(shape).expect("a shape that the type can store")];
        let dimensions = shape.iter().rev().map(|dimension| *dimension as u64).collect();
        self.tensor(Tensor { name: name.to_owned(), type_id: type_id(dtype), dimensions, data, offset: None })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensors_claimed.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.entries_claimed.unwrap_or(self.entries.len() as u64).to_le_bytes());
        file.extend(self.entries.concat());
        let mut end = 0u64;
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|dimension| file.extend(dimension.to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(end).to_le_bytes());
            end += (tensor.data.len() as u64).next_multiple_of(self.alignment as u64);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(&tensor.data);
        }
        file
    }

    /// The file, in memory.
    pub(crate) fn map(&self) -> Bytes {
        Bytes::copy_of(&self.bytes()).expect("memory for a small file")
    }
}

/// Encodes a string.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn type_id(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Q4_0 => 2,
        Dtype::Q4_1 => 3,
        Dtype::Q5_0 => 6,
        Dtype::Q5_1 => 7,
        Dtype::Q8_0 => 8,
        Dtype::Q2K => 10,
        Dtype::Q3K => 11,
        Dtype::Q4K => 12,
        Dtype::Q5K => 13,
        Dtype::Q6K => 14,
        Dtype::BF16 => 30,
        Dtype::MXFP4 => 39,
        Dtype::IQ4NL => 20,
        Dtype::IQ4XS => 23,
        Dtype::IQ3XXS => 18,
        Dtype::IQ3S => 21,
        Dtype::IQ2XXS => 16,
        Dtype::IQ2XS => 17,
        Dtype::IQ2S => 22,
        Dtype::IQ1S => 19,
        Dtype::IQ1M => 29,
        Dtype::TQ1_0 => 34,
        Dtype::TQ2_0 => 35,
        Dtype::Int4 | Dtype::Int8 | Dtype::Fp8 => panic!("no file has {dtype}"),
    }
}

/// Writes a safetensors file: the header as given, then the data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Writes a safetensors file of F32 tensors.
pub(crate) fn f32_safetensors(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let info = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert((*name).to_owned(), info);
    }
    safetensors(&serde_json::Value::Object(header).to_string(), &data)
}

/// Creates a checkpoint folder with these files.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("a file in the folder");
    }
    folder
}

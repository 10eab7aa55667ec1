//! Metadata conversions shared by several families, for [`GgufFamily::complete`](crate::GgufFamily::complete).

use serde_json::{Value, json};

use super::{GgufConfig, LIST_LEN_MAX};
use crate::{Error, Result, quote};

impl GgufConfig<'_> {
    /// Sets `layer_types` for layers with and without a window: the file's own list, or windows in all but every
    /// `period`th layer.
    pub fn windows(&mut self, period: u64) -> Result<()> {
        let layers = self.size("num_hidden_layers").unwrap_or_default().min(LIST_LEN_MAX as u64);
        let key = self.key("attention.sliding_window_pattern");
        let is_list = self.metadata.get(&key).is_some_and(|value| value.len().is_some());
        let is_windowed: Vec<bool> = if is_list {
            let mut list = self.metadata.bools(&key)?.unwrap_or_default();
            // The list includes multi-token prediction (`nextn`) layers.
            let heads = self.integers("nextn_predict_layers")?.and_then(|heads| heads.as_u64()).unwrap_or_default();
            if list.len() as u64 == layers.saturating_add(heads) {
                list.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
            }
            list
        } else {
            let period = self.metadata.u64(&key)?.unwrap_or(period).max(1);
            (0..layers).map(|layer| layer % period != period - 1).collect()
        };
        if is_windowed.len() as u64 != layers {
            let message = format!("metadata {} has {} items for {layers} layers", quote(&key), is_windowed.len());
            return Err(Error::corrupt(message));
        }
        let name = |windowed: &bool| if *windowed { "sliding_attention" } else { "full_attention" };
        self.set("layer_types", is_windowed.iter().map(name).collect::<Vec<_>>());
        Ok(())
    }

    /// Sets `layer_types` where layers without key-value heads do not attend but do `other`.
    pub fn attends_where_heads_are(&mut self, other: &str) {
        if let Some(Value::Array(heads)) = self.get("num_key_value_heads").cloned() {
            let of = |heads: &Value| if heads.as_u64() == Some(0) { other } else { "full_attention" };
            let types: Vec<&str> = heads.iter().map(of).collect();
            let most = heads.iter().filter_map(Value::as_u64).max().unwrap_or_default();
            self.set("layer_types", types);
            self.set("num_key_value_heads", most);
        }
    }

    /// The output width of a projection in the first layer's MLP (`up_proj`), from its tensor.
    pub fn mlp_width(&self, name: &str) -> Option<usize> {
        self.weights.find(&format!("model.layers.0.mlp.{name}.weight"))?.shape.first().copied()
    }

    /// Sets the sizes of Mamba-2 layers, under Granite 4's names (`mamba_d_state`).
    pub fn mamba2(&mut self) -> Result<()> {
        self.attends_where_heads_are("linear_attention");
        self.rename(&[
            ("ssm.conv_kernel", "mamba_d_conv"),
            ("ssm.state_size", "mamba_d_state"),
            ("ssm.group_count", "mamba_n_groups"),
            ("ssm.time_step_rank", "mamba_n_heads"),
        ])?;
        self.head_width("mamba_n_heads", "mamba_d_head")?;
        let rotates = self.metadata.bool(&self.key("rope.scaling.finetuned"))?.unwrap_or(true);
        self.set("position_embedding_type", if rotates { "rope" } else { "nope" });
        // A list if some layers have no MLP, whose width is then zero.
        if let Some(Value::Array(widths)) = self.get("intermediate_size") {
            let widest = widths.iter().filter_map(Value::as_u64).max().unwrap_or_default();
            self.set("intermediate_size", widest);
        }
        // Some files say zero for all layers although they have MLPs.
        if self.get("intermediate_size") == Some(&json!(0)) {
            let mut blocks = self.weights.names().filter(|name| name.ends_with(".mixer.up_proj.weight"));
            let width = blocks.next().and_then(|name| self.weights.find(name)?.shape.first().copied());
            match width {
                Some(width) => self.set("intermediate_size", width),
                None => drop(self.remove("intermediate_size")),
            }
        }
        // Without experts, the shared MLP is the only one.
        if let Some(shared) = self.mlp_width("shared_expert.up_proj").or_else(|| self.mlp_width("up_proj")) {
            self.set("shared_intermediate_size", shared);
        }
        Ok(())
    }

    /// Sets the head width of a recurrent layer; files give the width of all heads together (`ssm.inner_size`).
    pub fn head_width(&mut self, heads: &str, name: &str) -> Result<()> {
        let inner = self.integers("ssm.inner_size")?.and_then(|inner| inner.as_u64());
        if let Some(width) = inner.zip(self.size(heads)).and_then(|(inner, heads)| inner.checked_div(heads)) {
            self.set(name, width);
        }
        Ok(())
    }
}

//! Launches the kernels that write the cache and attend over it.

use candle_core::{DType, Tensor};

use super::{
    attention::{Attend, Combine, Layer, StoreShape},
    driver::{Arg, Driver},
    kernels::{MetalKernels, failed},
};
use crate::{
    Result,
    nn::{
        memory::pass::Pass,
        spec::{Attention, KvType, Rotation},
    },
    weights::RopeStyle,
};

impl<D: Driver> MetalKernels<D> {
    /// Writes the cache and attends, rotating first if there is a rotation. `None` if the step's inputs are not on the device.
    pub(super) fn attend_step(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: Option<&Rotation>,
        pass: &mut Pass<'_>,
    ) -> Result<Option<Tensor>> {
        // The kernels are causal; images that are seen as a whole are not.
        if !self.usable.attention || pass.seen(spec).is_some() {
            return Ok(None);
        }
        let Some(inputs) = self.inputs_of(pass.kv.group(spec.layer)?) else { return Ok(None) };
        let [keys, values] = pass.kv.layer(spec.layer)?;
        let (keys, values) = (keys.tensor()?, values.tensor()?);
        let kind = match keys.dtype() {
            DType::F16 => KvType::F16,
            DType::F32 => KvType::F32,
            _ => return Ok(None),
        };
        let (tokens, slots) = (q.dim(0)?, keys.dim(1)?);
        let narrow = |value: usize| u32::try_from(value).map_err(|_| failed(format!("{value} is too much")));
        let shape = StoreShape {
            heads: if rotation.is_some() { narrow(spec.heads)? } else { 0 },
            kv_heads: narrow(spec.kv_heads)?,
            head_dim: narrow(spec.head_dim)?,
            half_dim: rotation.map_or(Ok(0), |rotation| narrow(rotation.cos.dim(1)?))?,
            is_interleaved: u32::from(rotation.is_some_and(|rotation| rotation.style == RopeStyle::Interleaved)),
            rotates: u32::from(rotation.is_some()),
            tokens: narrow(tokens)?,
            slots: narrow(slots)?,
        };
        let layer = Layer {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            slots,
            window: spec.window,
            has_sinks: spec.sinks.is_some(),
            scale: spec.scale,
            softcap: spec.softcap,
            kind,
        };
        // The proof at load has not seen heads of each size, whose kernels may want more registers than a GPU has.
        let takes = |dispatches: &Vec<Attend>| {
            dispatches.iter().flat_map(Attend::launches).all(|launch| self.driver.takes(launch))
        };
        let scalar = || layer.scalar(&inputs.host).map(|scalar| vec![scalar]).filter(takes);
        let dispatches = layer.attend(&inputs.host, self.driver.cores()).filter(takes).or_else(scalar);
        let Some(dispatches) = dispatches.filter(|_| self.driver.takes(&shape.launch(kind))) else { return Ok(None) };
        let rotated = if rotation.is_some() { self.room(tokens, q.dim(1)?)? } else { q.clone() };
        let (cos, sin) = rotation.map_or((q, q), |rotation| (&rotation.cos, &rotation.sin));
        self.launch(
            &shape.launch(kind),
            &[
                Arg::Read(q),
                Arg::Read(k),
                Arg::Read(v),
                Arg::Read(cos),
                Arg::Read(sin),
                Arg::Read(&inputs.slots),
                Arg::Bytes(bytemuck::bytes_of(&shape)),
                if rotation.is_some() { Arg::Written(&rotated) } else { Arg::Read(&rotated) },
                Arg::Written(keys),
                Arg::Written(values),
            ],
        )?;
        let out = self.room(tokens, q.dim(1)?)?;
        let sinks = spec.sinks.as_ref().unwrap_or(q);
        for Attend { launch, shape, prefix, combine } in dispatches {
            let parts = combine.map(|combine| self.room(1, combine.part_values)).transpose()?;
            for (launch, shape) in prefix.into_iter().chain([(launch, shape)]) {
                self.launch(
                    &launch,
                    &[
                        Arg::Read(&rotated),
                        Arg::Read(keys),
                        Arg::Read(values),
                        Arg::Read(&inputs.tiles),
                        Arg::Read(&inputs.tables),
                        Arg::Read(sinks),
                        Arg::Bytes(shape.bytes()),
                        Arg::Written(parts.as_ref().unwrap_or(&out)),
                    ],
                )?;
            }
            if let Some((Combine { launch, shape, .. }, parts)) = combine.zip(parts) {
                let shape = Arg::Bytes(bytemuck::bytes_of(&shape));
                let args = [Arg::Read(&parts), Arg::Read(&inputs.tiles), Arg::Read(sinks), shape, Arg::Written(&out)];
                self.launch(&launch, &args)?;
            }
        }
        Ok(Some(out))
    }
}

//! Launches the kernels that write the cache and attend over it.

use candle_core::{DType, Tensor};

use super::{
    driver::{Arg, Driver},
    inputs::{AttendShape, StoreShape},
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
        let shape = AttendShape {
            heads: narrow(spec.heads)?,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            slots: shape.slots,
            tiles: narrow(inputs.tile_count)?,
            window: narrow(spec.window.unwrap_or(0))?,
            has_sinks: u32::from(spec.sinks.is_some()),
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
        };
        let out = self.room(tokens, q.dim(1)?)?;
        self.launch(
            &shape.launch(kind, inputs.longest),
            &[
                Arg::Read(&rotated),
                Arg::Read(keys),
                Arg::Read(values),
                Arg::Read(&inputs.tiles),
                Arg::Read(&inputs.tables),
                Arg::Read(spec.sinks.as_ref().unwrap_or(q)),
                Arg::Bytes(bytemuck::bytes_of(&shape)),
                Arg::Written(&out),
            ],
        )?;
        Ok(Some(out))
    }
}

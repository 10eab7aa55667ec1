//! Images and sounds of a decoder: a [`Processor`](crate::nn::vision::Processor) and a [`Tower`](crate::nn::vision::Tower)
//! as the contract's `Prepare` and `Encode`.

use std::time::Duration;

use super::{Decoder, Paged, PagedModel};
use crate::{
    Encode, Error, Measured, MediaItem, MediaSize, Placement, Prepare, Result, Source,
    nn::{
        ModelOptions,
        items::{ItemTokens, Placed},
        vision::{Processor, Tower, to_json},
    },
    weights::Config,
};

impl<D: Decoder> Paged<D> {
    fn processor() -> Result<&'static dyn Processor> {
        D::PROCESSOR.ok_or_else(|| Error::unsupported(format!("{} reads text alone", D::NAME)))
    }
}

impl<D: Decoder> Prepare for Paged<D> {
    fn describe(&self, source: &Source) -> Result<String> {
        let options = ModelOptions::read(source, D::OPTIONS)?;
        if !options.vision {
            return Ok(String::new());
        }
        let checkpoint = options.open(source, D::gguf_family)?;
        Ok(to_json(&Self::processor()?.describe_with(&checkpoint, &options)?))
    }

    fn measure(&self, processor: &str, size: MediaSize) -> Result<Measured> {
        Self::processor()?.measure(&Config::from_json(processor)?, size)
    }

    fn prepare(&self, processor: &str, item: &MediaItem<'_>) -> Result<Vec<u8>> {
        Self::processor()?.prepare(&Config::from_json(processor)?, item)
    }
}

impl<D: Decoder> PagedModel<D> {
    fn tower(&self) -> Result<&dyn Tower> {
        self.decoder.tower().ok_or_else(|| Error::unsupported(format!("{} was loaded without its eyes", D::NAME)))
    }
}

impl<D: Decoder> Encode for PagedModel<D> {
    fn open(&mut self, handle: u64, size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<()> {
        if self.queue.has(handle) || self.runtime.items.encoded(handle).is_some() {
            return Err(Error::invalid(format!("handle {handle} is in use")));
        }
        let patches = self.tower()?.open(size, layout, prepared)?;
        if patches.patches() == 0 || patches.rows == 0 {
            return Err(Error::invalid(format!("an image of {} by {} without rows", size.width, size.height)));
        }
        self.queue.open(handle, patches);
        Ok(())
    }

    fn encode(&mut self, handles: &[u64], budget: u32) -> Result<u32> {
        let (queue, items) = (&self.queue, &self.runtime.items);
        if let Some(handle) = handles.iter().find(|&&handle| !queue.has(handle) && items.encoded(handle).is_none()) {
            return Err(Error::not_found(format!("no item {handle} is open")));
        }
        let Some(tower) = self.decoder.tower() else { return Ok(0) };
        let budget = Duration::from_micros(budget.into());
        let (encoded, left) = self.queue.encode(handles, budget, tower, &mut self.runtime)?;
        encoded.into_iter().for_each(|(handle, encoded)| self.runtime.items.keep(handle, encoded));
        Ok(u32::try_from(left).unwrap_or(u32::MAX))
    }

    fn place(&mut self, sequence: u64, placements: &[Placement<'_>]) -> Result<()> {
        let tower = self.tower()?;
        let item = |placement: &Placement<'_>| {
            let Placement { start, layout, handle, .. } = *placement;
            Ok((start, tower.positions(layout, placement.tokens.len())?, handle))
        };
        let items = placements.iter().map(item).collect::<Result<Vec<_>>>()?;
        let items = items.into_iter().zip(placements).map(|((start, grid, handle), placement)| ItemTokens {
            start,
            tokens: placement.tokens,
            grid,
            handle,
        });
        let placed = Placed::all(tower.slot(), &items.collect::<Vec<_>>())?;
        for (placed, placement) in placed.iter().zip(placements) {
            let Some(handle) = placement.handle else { continue };
            let Some(encoded) = self.runtime.items.encoded(handle) else {
                return Err(Error::invalid(format!("sequence {sequence}: item {handle} is not encoded")));
            };
            let rows = encoded.rows.dim(0)?;
            if rows != placed.rows() {
                let message = format!("sequence {sequence}: {} slots for item {handle}", placed.rows());
                return Err(Error::invalid(format!("{message}, which has {rows} rows")));
            }
        }
        self.runtime.items.place(sequence, placed);
        Ok(())
    }

    fn close(&mut self, handle: u64) {
        self.queue.close(handle);
        self.runtime.items.close(handle);
    }
}

//! Learned positions of a square of patches, interpolated for grids of other sizes.

use candle_core::Tensor;

use super::Grid;
use crate::{
    Error, Result,
    nn::{Loader, Step},
};

/// A table of `side` rows of `side` positions, on the model's device.
#[derive(Clone, Debug)]
pub struct PositionTable {
    table: Tensor,
    side: usize,
}

impl PositionTable {
    /// Loads a table `[side · side, width]`.
    pub fn load(loader: &Loader<'_>, name: &str, side: usize, width: usize) -> Result<Self> {
        Ok(Self { table: loader.dense(name, &[side * side, width])?, side })
    }

    /// Adds to each row of `x` the position of its patch, of which `places` has the grid, the row and the column.
    /// `interpolation(table's side, grid's side)` has for each index along the grid those of the table that it is blended from,
    /// with their weights.
    pub fn add_to<T: AsRef<[(usize, f32)]>>(
        &self,
        x: &Tensor,
        places: &[(Grid, [usize; 2])],
        interpolation: impl Fn(usize, usize) -> Vec<T>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        // Sums of one grid have equally many terms whatever is embedded beside it.
        let grids = places.chunk_by(|(grid, _), (next, _)| grid == next).map(|places| {
            let (indices, weights, terms) = self.terms_of(places, &interpolation)?;
            step.ops().combine(&self.table, &indices, &weights, terms)
        });
        let positions = grids.collect::<Result<Vec<_>>>()?;
        let positions = match &positions[..] {
            [of_one] => of_one.clone(),
            of_several => Tensor::cat(of_several, 0)?.force_contiguous()?,
        };
        step.ops().add(x, &positions)
    }

    /// The rows of the table that each place of a grid is the sum of, with their weights, and the number of them for each.
    fn terms_of<T: AsRef<[(usize, f32)]>>(
        &self,
        places: &[(Grid, [usize; 2])],
        interpolation: impl Fn(usize, usize) -> Vec<T>,
    ) -> Result<(Vec<u32>, Vec<f32>, usize)> {
        let Some(&(Grid { height, width }, _)) = places.first() else { return Ok((Vec::new(), Vec::new(), 1)) };
        let along = |side: usize| -> Vec<Vec<(usize, f32)>> {
            let weighted = |taps: &T| taps.as_ref().iter().copied().filter(|(_, weight)| *weight != 0.0).collect();
            interpolation(self.side, side).iter().map(weighted).collect()
        };
        let (down, across) = (along(height), along(width));
        let [rows, columns] = [&down, &across].map(|taps| taps.iter().map(Vec::len).max().unwrap_or_default());
        let terms = (rows * columns).max(1);
        let mut indices = Vec::with_capacity(places.len() * terms);
        let mut weights = Vec::with_capacity(places.len() * terms);
        for (number, (_, [row, column])) in places.iter().enumerate() {
            let (Some(down), Some(across)) = (down.get(*row), across.get(*column)) else {
                return Err(Error::invalid(format!("patch {row}, {column} of a grid of {height} by {width}")));
            };
            for (row, row_weight) in down {
                for (column, column_weight) in across {
                    if *row >= self.side || *column >= self.side {
                        let message = format!("position {row}, {column} of a table of {0} by {0}", self.side);
                        return Err(Error::invalid(message));
                    }
                    indices.push((row * self.side + column) as u32);
                    weights.push(row_weight * column_weight);
                }
            }
            // At a border there may be fewer; what has no weight adds nothing.
            indices.resize((number + 1) * terms, 0);
            weights.resize((number + 1) * terms, 0.0);
        }
        Ok((indices, weights, terms))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Halfway between neighbours, but as it is at the end.
    fn halves(_: usize, side: usize) -> Vec<Vec<(usize, f32)>> {
        let of = |at: usize| if at + 1 < side { vec![(at, 0.5), (at + 1, 0.5)] } else { vec![(at, 1.0), (0, 0.0)] };
        (0..side).map(of).collect()
    }

    fn table() -> PositionTable {
        PositionTable { table: Tensor::zeros((9, 1), candle_core::DType::F32, &Device::Cpu).unwrap(), side: 3 }
    }

    #[test]
    fn terms_are_padded_to_those_of_the_grid() {
        let grid = Grid { height: 2, width: 2 };
        let (indices, weights, terms) = table().terms_of(&[(grid, [0, 1]), (grid, [0, 0])], halves).unwrap();
        assert_eq!(terms, 4);
        assert_eq!(indices, [1, 4, 0, 0, 0, 1, 3, 4]);
        assert_eq!(weights, [0.5, 0.5, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25]);
        let (_, weights, terms) = table().terms_of(&[(grid, [1, 1])], halves).unwrap();
        assert_eq!((weights, terms), (vec![1.0, 0.0, 0.0, 0.0], 4), "whatever else is embedded");
    }

    #[test]
    fn places_outside_of_grid_or_table_are_errors() {
        let grid = |height, width| Grid { height, width };
        for (grid, place) in [(grid(2, 2), [2, 0]), (grid(2, 2), [0, 2]), (grid(4, 1), [3, 0])] {
            assert!(table().terms_of(&[(grid, place)], halves).is_err(), "{place:?} of {grid:?}");
        }
    }
}

//! MPNet's biases of scores, by buckets of distances as in T5 (arXiv 1910.10683).

use pensieve_sdk::{
    Result,
    nn::{Loader, Tensor},
};

/// Buckets, half of them for tokens behind the one that attends.
const BUCKETS: usize = 32;
/// Tokens at this distance and beyond share the last bucket of their side.
const FAR: usize = 128;

/// The biases of the heads by distance, `[heads, 2 · FAR + 1]`; `None` in families without them.
pub fn load(loader: &Loader<'_>, heads: usize) -> Result<Option<Tensor>> {
    let here = loader.at("relative_attention_bias");
    if !here.has("weight") {
        return Ok(None);
    }
    let table = here.dense("weight", &[BUCKETS, heads])?.to_vec2::<f32>()?;
    let distances = 0..2 * FAR + 1;
    let values = (0..heads).flat_map(|head| distances.clone().map(move |place| (head, bucket(place))));
    let values: Vec<f32> = values.map(|(head, bucket)| table[bucket][head]).collect();
    Ok(Some(Tensor::from_vec(values, (heads, 2 * FAR + 1), loader.device())?))
}

/// The bucket of the distance `place − FAR`: one for each of the nearest tokens, then wider by powers.
fn bucket(place: usize) -> usize {
    let (each, distance) = (BUCKETS / 2, place.abs_diff(FAR));
    let side = if place > FAR { each } else { 0 };
    let exact = each / 2;
    if distance < exact {
        return side + distance;
    }
    let wider = (distance as f32 / exact as f32).ln() / (FAR as f32 / exact as f32).ln() * (each - exact) as f32;
    side + (exact + wider as usize).min(each - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_tokens_have_buckets_of_their_own_and_far_ones_share_them() {
        let of = |distance: isize| bucket((FAR.cast_signed() + distance).cast_unsigned());
        assert_eq!([0, -1, -7, -8, -11, -12, -127, -128].map(of), [0, 1, 7, 8, 8, 9, 15, 15]);
        assert_eq!([1, 7, 8, 64, 128].map(of), [17, 23, 24, 30, 31]);
    }
}

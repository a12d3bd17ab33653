//! A Zipf distribution of addresses: few are accessed often. They are scattered over the region.

use rand_distr::{Distribution, Zipf};

use crate::random::Random;

/// The range of exponents in hundredths. Above the maximum, one position gets nearly all requests.
pub const EXPONENT_PERCENT: std::ops::RangeInclusive<u16> = 10..=500;

/// Chooses positions with a Zipf distribution.
#[derive(Debug, Clone)]
pub(crate) struct ZipfPlaces {
    places: u64,
    ranks: Zipf<f64>,
}

impl ZipfPlaces {
    /// Positions `0..places`; `None` for no positions, or an exponent out of [`EXPONENT_PERCENT`].
    pub(crate) fn new(places: u64, exponent_percent: u16) -> Option<Self> {
        if !EXPONENT_PERCENT.contains(&exponent_percent) {
            return None;
        }
        let ranks = Zipf::new(places as f64, f64::from(exponent_percent) / 100.0).ok()?;
        Some(Self { places, ranks })
    }

    /// The next position. Popular positions are anywhere in the region, not at its start; a few
    /// coincide because of the scattering.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let rank = self.ranks.sample(random) as u64;
        reactors::sim::mix(rank) % self.places
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn zipf_favors_few_places_within_bounds() {
        let places = ZipfPlaces::new(10_000, 120).expect("in range");
        let mut random = Random::new(3);
        let mut hits: HashMap<u64, u32> = HashMap::new();
        for _ in 0..100_000 {
            let place = places.draw(&mut random);
            assert!(place < 10_000);
            *hits.entry(place).or_default() += 1;
        }
        let mut counts: Vec<u32> = hits.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts.iter().take(100).sum();
        assert!(top > 65_000, "the 1 % most popular places got {top}");
        assert!(counts.len() > 1000, "{} places were hit", counts.len());
    }

    #[test]
    fn invalid_zipf_parameters_are_refused() {
        assert!(ZipfPlaces::new(100, 0).is_none());
        assert!(ZipfPlaces::new(100, 501).is_none());
        assert!(ZipfPlaces::new(0, 100).is_none());
        assert!(ZipfPlaces::new(1, 100).is_some());
    }
}

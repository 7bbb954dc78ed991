//! Where a run that is planned would be: on a device of this machine, or on a card that need not be at hand.

use bellows_device::{CARDS, Card, Selected};
use bellows_learner::memory::Place;

use crate::Usage;

/// Where a run would be.
pub struct Target {
    /// For people.
    pub name: String,
    /// Whose memory it would take.
    pub place: Place,
    /// Bytes there are, where known.
    pub memory: Option<f64>,
    /// Multiplications and additions a second that training reaches, and how that is known.
    pub rate: Option<(f64, String)>,
}

impl Target {
    /// A card that need not be at hand, of whose published rate training reaches this share.
    ///
    /// # Errors
    /// A name that is no card's.
    pub fn card(name: &str, share: f64) -> Result<Self, Usage> {
        let known = || CARDS.map(|card| card.name).join(", ");
        let card = Card::named(name).ok_or_else(|| Usage(format!("--card {name:?} is not known; there are {}", known())))?;
        let name = format!("{} ({} GiB)", card.name, card.memory_gib);
        Ok(Self { name, place: Place::Card, memory: Some(card.memory() as f64), rate: Some(published(&card, share)) })
    }

    /// A device of this machine: a card as above, if it is a known one, or the processor, whose rate is `measured`.
    pub fn here(device: &Selected, share: f64, measured: impl FnOnce() -> (f64, String)) -> Self {
        let place = Place::of(&device.device);
        let rate = match place {
            Place::Processor => Some(measured()),
            Place::Card => Card::named(&device.name).map(|card| published(&card, share)),
        };
        Self { name: format!("{} ({})", device.backend, device.name), place, memory: place.room(device.memory), rate }
    }

    /// Bytes that a run with this limit in GB may take. On a processor the limit stands for what there is: how much is free changes.
    pub fn room(&self, limit: Option<f64>) -> Option<f64> {
        let limit = limit.map(|gb| gb * 1e9);
        match self.place {
            Place::Processor => limit.or(self.memory),
            Place::Card => limit.into_iter().chain(self.memory).reduce(f64::min),
        }
    }
}

/// That of f32, for a run in f16 too: kernels of ours widen what they multiply (decision 15).
fn published(card: &Card, share: f64) -> (f64, String) {
    let said = format!("{:.0} % of the {} TFLOP/s published of the {}", 100.0 * share, card.flops / 1e12, card.name);
    (share * card.flops, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_no_more_than_its_own_memory_and_a_limit_stands_for_a_processors() {
        let card = Target::card("rx-6700-xt", 0.5).unwrap();
        assert_eq!([None, Some(8.0), Some(16.0)].map(|limit| card.room(limit)), [card.memory, Some(8e9), card.memory]);
        assert_eq!(card.rate.as_ref().map(|(rate, _)| *rate), Some(0.5 * (13.21 * 1e12)));
        let processor = Target { place: Place::Processor, ..card };
        assert_eq!([None, Some(8.0), Some(16.0)].map(|limit| processor.room(limit)), [processor.memory, Some(8e9), Some(16e9)]);
        let refused = Target::card("Voodoo 2", 0.5).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("Voodoo 2") && text.contains("MI50")));
    }
}

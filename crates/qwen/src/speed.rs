//! The work of a training step, and how long it takes at a given rate.

pub use bellows_kernels::{processor_choices, processor_level, processor_peak, product_rate};

use crate::checkpointing::Checkpointing;
use crate::memory::Footprint;

/// The rate of attention as a share of that of large products: its own are small, and between them are exponentials (measured).
const ATTENTION: f64 = 0.4;
/// The share of a processor's step that is products and attention (measured: 0.72 of one in f32, 0.66 in bf16).
pub const PRODUCTS: f64 = 0.7;

impl Footprint {
    /// Multiplications and additions a token, each counted: those of products, and those of attention, in rows of `seq` tokens.
    ///
    /// A map takes two for each weight in the forward pass, two for the gradient of its input, two for that of its weight where that is learnt; a
    /// branch of rank r is maps of r rows and columns, whose inner side is computed once more for their gradients. Of queries and keys half the
    /// pairs see each other: two products forward, five backward (Dao et al. 2022). What DPO compares with is one more forward pass, without branches.
    pub fn work(&self, seq: usize, checkpointing: Checkpointing) -> [f64; 2] {
        let (lowest, rerun) = (self.lowest(), checkpointing.of(self.layers()));
        let reference = f64::from(u8::from(self.reference));
        let (mut products, mut attention) = (0.0, 0.0);
        for (layer, (ranks, whole)) in self.ranks.iter().zip(&self.whole).enumerate() {
            let (deep, again) = (layer >= lowest, layer >= lowest && layer - lowest < rerun);
            let passes = 1.0 + f64::from(u8::from(deep)) + f64::from(u8::from(again));
            for ((rank, whole), (_, [out, input])) in ranks.iter().zip(whole).zip(&self.maps) {
                let (weights, branch) = ((out * input) as f64, (rank * (out + input)) as f64);
                let gradients = if *whole { weights } else { 2.0 * branch };
                products += 2.0 * (passes * (weights + branch) + gradients + reference * weights);
            }
            let [_, q, ..] = self.widths;
            let forward = 2.0 * q * seq as f64;
            attention += forward * (1.0 + reference + f64::from(u8::from(again)) + if deep { 2.5 } else { 0.0 });
        }
        let head = (self.vocabulary[0] * self.vocabulary[1]) as f64;
        [products + 2.0 * head * (reference + if self.head_trained { 3.0 } else { 2.0 }), attention]
    }

    /// Tokens a second where all of a step runs as if large products took it at `rate` multiplications and additions a second.
    pub fn tokens_per_s(&self, seq: usize, checkpointing: Checkpointing, rate: f64) -> f64 {
        let [products, attention] = self.work(seq, checkpointing);
        rate / (products + attention / ATTENTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Size;
    use crate::config::{Method, SftConfig};
    use crate::memory::Place;
    use crate::preference::Objective;
    use crate::storage::Storage;

    #[test]
    fn the_work_is_what_is_counted_by_hand() {
        let shape = Size::named("0.5B").unwrap().shape();
        let run = |config: SftConfig| Footprint::new(&shape, &config, Storage::Half, Place::Processor).unwrap();
        // Per layer 14,909,440 weights and 366,592 values of adapters; 24 layers; 136,134,656 in the head.
        let (weights, adapters, head) = (24.0 * 14_909_440.0, 24.0 * 366_592.0, 136_134_656.0);
        let lora = run(SftConfig::default());
        let kept = 2.0 * (2.0 * (weights + adapters) + 2.0 * adapters) + 4.0 * head;
        assert_eq!(lora.work(512, Checkpointing::OFF)[0], kept);
        // Against a reference every product of the model itself is made once more, and attention's two forward.
        let dpo = run(SftConfig { objective: Objective::Dpo, ..SftConfig::default() });
        let [products, attention] = lora.work(512, Checkpointing::OFF);
        assert_eq!(dpo.work(512, Checkpointing::OFF), [products + 2.0 * (weights + head), attention + 24.0 * 2.0 * 896.0 * 512.0]);
        let again = 2.0 * 23.0 / 24.0 * (weights + adapters);
        assert!((lora.work(512, Checkpointing::ALL)[0] - kept - again).abs() < 1.0);
        assert_eq!(
            run(SftConfig { method: Method::Full, ..SftConfig::default() }).work(512, Checkpointing::OFF)[0],
            6.0 * (weights + head)
        );
        // A map that is saved has its gradient, and no adapter.
        let (saved, adapters) = (24.0 * 896.0 * 4864.0, adapters - 24.0 * 16.0 * (896.0 + 4864.0));
        let down = run(SftConfig { modules_to_save: vec!["down_proj".into()], ..SftConfig::default() });
        let kept = 2.0 * (2.0 * (weights + adapters) + 2.0 * adapters + saved) + 4.0 * head;
        assert_eq!(down.work(512, Checkpointing::OFF)[0], kept);
        assert_eq!(lora.work(512, Checkpointing::OFF)[1], 24.0 * 3.5 * 2.0 * 896.0 * 512.0);
        assert!(lora.tokens_per_s(512, Checkpointing::OFF, 1e11) > lora.tokens_per_s(512, Checkpointing::ALL, 1e11));
    }
}

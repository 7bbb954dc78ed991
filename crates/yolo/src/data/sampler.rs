//! Which images an epoch is made of, as a pure function of (weights, seed, epoch).
//!
//! Every image has a weight, and an epoch of n images takes each about n times its share of all weights: systematic sampling, n points a step apart
//! on the line of all weights, from a start that is drawn for the epoch. So counts differ from their expectation by less than one, and of a clip whose
//! frames stand side by side in the order of paths, as those of a folder do, the points take frames spread evenly over its time, in each epoch others.
//! An image that an epoch takes again is another sample: its takes are told apart by their numbers, and draws follow these. As the same sample to the bit
//! it would teach nothing but to remember it.
//! What mosaic, mixup and cutmix put beside an image is drawn by the same weights: of four images in a mosaic three would be of the whole set otherwise.

use bellows_learner::rng::Rng;

use super::rng::Draw;
use super::scan::Scan;
use crate::config::Sampler;

/// The weight of each image of `scan` with `nc` classes.
///
/// `classes` weighs an image by the rarest of its classes, as repeat-factor sampling does (Gupta, Dollár, Girshick 2019, LVIS): the root of the
/// images with the commonest class over those with this one. `clips` divides by the number of images of the clip. Then images without objects get
/// the share `empty` of all weight, if there are both kinds.
pub(crate) fn weights(scan: &Scan, sampler: &Sampler, nc: usize) -> Vec<f64> {
    let mut with_class = vec![0u64; nc];
    let classes: Vec<Vec<usize>> = (0..scan.len())
        .map(|i| {
            let mut classes: Vec<usize> = scan.labels(i).iter().map(|l| l.class as usize).filter(|&c| c < nc).collect();
            classes.sort_unstable();
            classes.dedup();
            classes.iter().for_each(|&c| with_class[c] += 1);
            classes
        })
        .collect();
    let most = with_class.iter().copied().max().unwrap_or(0) as f64;
    let repeat = |classes: &Vec<usize>| classes.iter().map(|&c| (most / with_class[c] as f64).sqrt()).fold(1.0, f64::max);
    let mut frames = vec![0u32; scan.meta.clips()];
    scan.meta.clip_of().iter().for_each(|&clip| frames[clip as usize] += 1);
    let weight = |(i, classes): (usize, &Vec<usize>)| {
        let repeat = if sampler.classes { repeat(classes) } else { 1.0 };
        if sampler.clips { repeat / f64::from(frames[scan.meta.clip_of()[i] as usize]) } else { repeat }
    };
    let mut weights: Vec<f64> = classes.iter().enumerate().map(weight).collect();
    if let Some(share) = sampler.empty {
        let sum = |empty: bool| weights.iter().zip(&classes).filter(|(_, c)| c.is_empty() == empty).map(|(w, _)| w).sum::<f64>();
        let (empty, full) = (sum(true), sum(false));
        if empty > 0.0 && full > 0.0 {
            let scale = |c: &Vec<usize>| if c.is_empty() { share / empty } else { (1.0 - share) / full };
            weights.iter_mut().zip(&classes).for_each(|(w, c)| *w *= scale(c));
        }
    }
    weights
}

/// Why the share of images without objects that `sampler` asks for changes nothing of `scan`, where it does not.
pub(crate) fn no_choice(scan: &Scan, sampler: &Sampler) -> Option<String> {
    let share = sampler.empty?;
    let empty = (0..scan.len()).filter(|&i| scan.labels(i).is_empty()).count();
    let what = match empty {
        0 if share > 0.0 => "have objects",
        n if n == scan.len() && share < 1.0 => "are without objects",
        _ => return None,
    };
    Some(format!("warning: sampler: empty={share} changes nothing, for all images of train {what}"))
}

/// How many images an epoch has.
pub(crate) fn epoch_length(images: usize, sampler: &Sampler) -> usize {
    ((images as f64 * sampler.epoch.unwrap_or(1.0)).round() as usize).max(1)
}

/// Where each image ends on the line of all weights.
pub(crate) fn ends(weights: &[f64]) -> Vec<f64> {
    let mut end = 0.0;
    let add = |weight: &f64| {
        end += weight;
        end
    };
    weights.iter().map(add).collect()
}

/// The image at a point of the line, before its end.
fn image_at(ends: &[f64], point: f64) -> usize {
    ends.partition_point(|&end| end <= point)
}

/// The samples of an epoch of `count`, in the order they are trained on: an image's number, and for each take of it that was counted before, the number of all
/// images more ([`super::augment()`] makes a sample of that).
pub(crate) fn epoch_samples(ends: &[f64], count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let total = ends.last().copied().unwrap_or_default();
    let step = total / count as f64;
    let start = Rng::new(seed, "sampler", epoch, 0).unit() * step;
    // Rounding may leave the last point beyond the end of the line.
    let last = ends.partition_point(|&end| end < total);
    // Points of one image follow each other.
    let (mut before, mut takes) = (None, 0_usize);
    let sample = |i: usize| {
        let image = image_at(ends, start + step * i as f64).min(last);
        takes = if before == Some(image) { takes + 1 } else { 0 };
        before = Some(image);
        image + takes * ends.len()
    };
    let mut samples: Vec<usize> = (0..count).map(sample).collect();
    let mut order = Rng::new(seed, "sampled order", epoch, 0);
    for i in (1..samples.len()).rev() {
        samples.swap(i, order.below(i as u64 + 1) as usize);
    }
    samples
}

/// An image to go into a sample beside its own: by the weights, or any of `images` where there are none.
pub(crate) fn partner(ends: &[f64], images: usize, draw: &mut Draw) -> usize {
    match ends.last() {
        None => draw.below(images),
        Some(total) => image_at(ends, draw.unit() * total).min(ends.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::image::tests::jpeg;
    use crate::data::{DataConfig, ScanOptions, Split, scan};

    fn counts(weights: &[f64], count: usize, epoch: u64) -> Vec<usize> {
        let mut counts = vec![0; weights.len()];
        epoch_samples(&ends(weights), count, 7, epoch).iter().for_each(|&i| counts[i % weights.len()] += 1);
        counts
    }

    #[test]
    fn an_image_is_taken_by_its_share_and_the_epoch_decides_which() {
        let weights = [1.0, 0.0, 2.5, 0.5, 1.0];
        for epoch in 0..20 {
            let taken = counts(&weights, 50, epoch);
            assert_eq!(taken.iter().sum::<usize>(), 50);
            for (n, w) in taken.iter().zip(weights) {
                assert!((*n as f64 - 10.0 * w).abs() < 1.0, "{taken:?}");
            }
        }
        assert_eq!(counts(&[1.0; 9], 9, 3), [1; 9], "equal weights are every image once");
        let of = |epoch| epoch_samples(&ends(&[1.0; 100]), 10, 7, epoch);
        assert_eq!(of(4), of(4));
        assert_ne!(of(4), of(5));
        // A tenth of a clip is a frame of each tenth of its time.
        let sorted = |epoch| {
            let mut samples = of(epoch);
            samples.sort_unstable();
            samples
        };
        assert!((0..8).any(|epoch| sorted(epoch) != sorted(8)), "other frames in other epochs");
        let sorted = sorted(6);
        assert!(sorted.windows(2).all(|w| w[1] - w[0] == 10), "{sorted:?}");
    }

    #[test]
    fn takes_of_an_image_are_told_apart() {
        for epoch in 0..20 {
            let mut samples = epoch_samples(&ends(&[1.0, 0.0, 3.0]), 8, 7, epoch);
            samples.sort_unstable();
            assert_eq!(samples, [0, 2, 3, 5, 8, 11, 14, 17], "two of the first and six of the last");
        }
        let once = epoch_samples(&ends(&[1.0; 100]), 50, 7, 3);
        assert!(once.iter().all(|&i| i < 100), "what is taken once goes by its own number: {once:?}");
    }

    #[test]
    fn partners_are_drawn_by_the_weights_and_without_any_from_all_alike() {
        let ends = ends(&[0.0, 3.0, 0.0, 1.0, 0.0]);
        let mut counts = [0_i32; 5];
        (0..4000).for_each(|i| counts[partner(&ends, 5, &mut Draw::new(7, "p", 0, i))] += 1);
        assert!(counts[0] + counts[2] + counts[4] == 0 && counts[1].abs_diff(3000) < 100, "{counts:?}");
        let draw = || Draw::new(7, "p", 0, 3);
        assert_eq!(partner(&[], 50, &mut draw()), draw().below(50));
    }

    #[test]
    fn clips_classes_and_empty_images_get_their_shares() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, label: &str| {
            let image = dir.path().join("images").join(name);
            std::fs::create_dir_all(image.parent().unwrap()).unwrap();
            std::fs::write(&image, jpeg(64, 48)).unwrap();
            let text = dir.path().join("labels").join(name).with_extension("txt");
            std::fs::create_dir_all(text.parent().unwrap()).unwrap();
            std::fs::write(text, label).unwrap();
        };
        // A long clip of people with empty frames, a short one with the only motorcycle.
        (0..16).for_each(|i| write(&format!("a/{i:02}.jpg"), if i < 8 { "0 .5 .5 .1 .1\n" } else { "" }));
        (0..4).for_each(|i| write(&format!("b/{i:02}.jpg"), if i == 0 { "1 .5 .5 .1 .1\n" } else { "0 .5 .5 .1 .1\n" }));
        let config = DataConfig::parse("train: images\nval: images\nnames: [a, b]\n", &dir.path().join("d.yaml")).unwrap();
        let found = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        assert_eq!(found.meta.clips(), 2);
        let share = |sampler: Sampler, of: &dyn Fn(usize) -> bool| {
            let weights = weights(&found, &sampler, 2);
            let total: f64 = weights.iter().sum();
            weights.iter().enumerate().filter(|(i, _)| of(*i)).map(|(_, w)| w).sum::<f64>() / total
        };
        let plain = Sampler::default();
        assert!((share(Sampler { clips: true, ..plain }, &|i| i >= 16) - 0.5).abs() < 1e-12);
        assert!((share(Sampler { empty: Some(0.1), ..plain }, &|i| (8..16).contains(&i)) - 0.1).abs() < 1e-12);
        assert_eq!(share(Sampler { empty: Some(0.0), ..plain }, &|i| (8..16).contains(&i)), 0.0);
        // Eleven images with people, one with a motorcycle: it is taken as often as the root of eleven others.
        let motorcycle = share(Sampler { classes: true, ..plain }, &|i| i == 16);
        assert!((motorcycle - 11f64.sqrt() / (19.0 + 11f64.sqrt())).abs() < 1e-12, "{motorcycle}");
        let all = Sampler { clips: true, classes: true, empty: Some(0.25), epoch: Some(0.5) };
        assert!((share(all, &|i| (8..16).contains(&i)) - 0.25).abs() < 1e-12);
        assert_eq!(epoch_length(20, &all), 10);
        // Where all are of one kind, there is no share to be had, and that is said.
        assert_eq!(no_choice(&found, &all), None);
        let config = DataConfig::parse("train: images/b\nval: images\nnames: [a, b]\n", &dir.path().join("d.yaml")).unwrap();
        let full = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        assert!(
            no_choice(&full, &all).is_some_and(|line| line.contains("empty=0.25 changes nothing, for all images of train have objects"))
        );
        assert_eq!(no_choice(&full, &plain), None, "nobody asked");
    }
}

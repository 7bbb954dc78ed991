//! Boxes must follow the pixels they belong to, and nothing may depend on who computes a sample.

use super::*;
use crate::data::DataError;
use crate::data::batch::{Batch, collate, val_batch};
use crate::data::frame::{FILL, NO_DIFFERENCE};
use crate::data::sensor::SensorConfig;
use crate::data::stack::{Ring, Stack};
use crate::data::tile::TileConfig;
use burn::data::dataset::InMemDataset;
use rayon::prelude::*;

/// Dark frames with one white rectangle each, labelled.
fn marked(count: usize, channels: usize) -> InMemDataset<Item> {
    let items = (0..count).map(|i| {
        let (w, h) = (96, 72);
        let mut frame = Frame::filled(channels, w, h, 20);
        let (x, y, bw, bh) = (20 + i % 30, 15 + i % 20, 24, 20);
        for c in 0..channels {
            for row in y..y + bh {
                frame.plane_mut(c)[row * w + x..row * w + x + bw].fill(250);
            }
        }
        let xywh = [(x as f32 + 12.0) / 96.0, (y as f32 + 10.0) / 72.0, 24.0 / 96.0, 20.0 / 72.0];
        Item::new(frame, vec![Label { class: i as u32 % 3, xywh }], format!("{i}.jpg"))
    });
    InMemDataset::new(items.collect())
}

/// The augmented training batch of `indices`.
fn train_batch(dataset: &dyn Dataset<Item>, indices: &[usize], view: &TrainView) -> Result<Batch, DataError> {
    collate(indices.iter().map(|&i| augment(dataset, i, view)).collect::<Result<_, _>>()?)
}

fn view(config: &AugmentConfig, imgsz: u32) -> TrainView<'_> {
    TrainView { seed: 5, epoch: 1, imgsz, shape: Size::square(imgsz), config, weight_sums: &[], order: None }
}

/// The hull of bright pixels.
fn bright(frame: &Frame) -> [f32; 4] {
    let mut hull = [f32::MAX, f32::MAX, 0.0f32, 0.0f32];
    for (i, &p) in frame.plane(0).iter().enumerate() {
        if p > 135 {
            let (x, y) = ((i % frame.width) as f32, (i / frame.width) as f32);
            hull = [hull[0].min(x), hull[1].min(y), hull[2].max(x + 1.0), hull[3].max(y + 1.0)];
        }
    }
    hull
}

#[test]
fn a_box_follows_its_pixels_through_every_single_image_step() {
    let dataset = marked(40, 1);
    let still = AugmentConfig { hsv_v: 0.0, mosaic: 0.0, translate: 0.0, scale: 0.0, fliplr: 0.0, ..AugmentConfig::default() };
    let cases = [
        ("letterbox", still.clone(), 0.6),
        ("scale and shift", AugmentConfig { scale: 0.5, translate: 0.1, ..still.clone() }, 1.1),
        ("flips", AugmentConfig { fliplr: 0.5, flipud: 0.5, ..still.clone() }, 0.6),
        ("perspective", AugmentConfig { perspective: 0.0005, ..still.clone() }, 1.6),
        ("shear", AugmentConfig { shear: 10.0, ..still.clone() }, 1.6),
        ("rotation", AugmentConfig { degrees: 20.0, ..still.clone() }, 2.0),
    ];
    for (what, config, tolerance) in cases {
        for index in 0..40 {
            let sample = augment(&dataset, index, &view(&config, 160)).unwrap();
            let [label] = sample.labels[..] else { panic!("{what} {index}: {:?}", sample.labels) };
            let [x1, y1, x2, y2] = xywh_to_xyxy(label.xywh).map(|v| v * 160.0);
            for (side, expected) in bright(&sample.frame).into_iter().zip([x1, y1, x2, y2]) {
                assert!((side - expected).abs() <= tolerance, "{what} {index}: {side} for {expected}");
            }
        }
    }
}

#[test]
fn every_mosaic_box_lies_on_its_own_pixels() {
    let dataset = marked(50, 1);
    let config = AugmentConfig { hsv_v: 0.0, ..AugmentConfig::default() };
    let mut boxes = 0;
    for index in 0..50 {
        let sample = augment(&dataset, index, &view(&config, 128)).unwrap();
        assert_eq!((sample.frame.width, sample.frame.height, sample.frame.channels), (128, 128, 1));
        let mut inside = vec![false; 128 * 128];
        for label in &sample.labels {
            boxes += 1;
            let [x1, y1, x2, y2] = xywh_to_xyxy(label.xywh).map(|v| (v * 128.0).round() as usize);
            for y in y1..y2 {
                inside[y * 128 + x1..y * 128 + x2].fill(true);
            }
            let (cx, cy) = ((x1 + x2) / 2, (y1 + y2) / 2);
            assert!(sample.frame.pixels[cy * 128 + cx] > 200, "{index}: an empty box {label:?}");
        }
        // Bright pixels without a box: only slivers that the box filter drops, each below a tenth of an object of at most 48 x 40 pixels.
        let loose = sample.frame.pixels.iter().zip(&inside).filter(|(p, i)| **p > 200 && !**i).count();
        assert!(loose < 400, "{index}: {loose} bright pixels in no box");
    }
    assert!(boxes > 50, "{boxes}");
}

#[test]
fn batches_are_the_same_bits_in_any_order_on_any_thread() {
    for channels in [1, 3] {
        let dataset = marked(30, channels);
        let config = AugmentConfig { mixup: 0.3, cutmix: 0.3, degrees: 5.0, bgr: 0.2, ..AugmentConfig::default() };
        let view = view(&config, 96);
        let indices: Vec<usize> = (0..30).map(|i| i * 7 % 30).collect();
        let groups: Vec<&[usize]> = indices.chunks(4).collect();
        let one: Vec<_> = groups.iter().map(|g| train_batch(&dataset, g, &view).unwrap()).collect();
        let backwards: Vec<_> = groups.iter().rev().map(|g| train_batch(&dataset, g, &view).unwrap()).collect();
        assert!(one.iter().eq(backwards.iter().rev()));
        for threads in [2, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let many: Vec<_> = pool.install(|| groups.par_iter().map(|g| train_batch(&dataset, g, &view).unwrap()).collect());
            assert!(one == many, "{threads} threads");
        }
        let other_epoch = train_batch(&dataset, groups[0], &TrainView { epoch: 2, ..view }).unwrap();
        let other_seed = train_batch(&dataset, groups[0], &TrainView { seed: 6, ..view }).unwrap();
        assert!(one[0] != other_epoch && one[0] != other_seed);
        assert_eq!(one[0].shape, [4, channels, 96, 96]);
    }
}

#[test]
fn a_memory_cache_changes_no_bit() {
    let dataset = marked(12, 1);
    let cached = crate::data::RamCache::new(&dataset, 96, &|_, _| {}).unwrap();
    let config = AugmentConfig::default();
    let indices: Vec<usize> = (0..12).collect();
    assert_eq!(train_batch(&dataset, &indices, &view(&config, 96)).unwrap(), train_batch(&cached, &indices, &view(&config, 96)).unwrap());
    let dataset = marked(12, 1);
    let shape = Size { width: 160, height: 128 };
    let cached = crate::data::RamCache::new(&dataset, 128, &|_, _| {}).unwrap();
    let whole = |data: &dyn Dataset<Item>| val_batch(data, &indices, 128, shape).unwrap().0.unwrap();
    assert_eq!(whole(&dataset), whole(&cached));
}

#[test]
fn closing_the_mosaic_leaves_one_image() {
    let dataset = marked(8, 1);
    let config = AugmentConfig { mosaic_open: false, mixup: 1.0, cutmix: 1.0, ..AugmentConfig::default() };
    for index in 0..8 {
        assert!(augment(&dataset, index, &view(&config, 96)).unwrap().labels.len() <= 1);
    }
}

#[test]
fn gray_and_colour_mix_to_colour() {
    let gray = Item::new(Frame::filled(1, 40, 30, 60), vec![], "g".into());
    let colour = Item::new(Frame::filled(3, 40, 30, 90), vec![], "c".into());
    let dataset = InMemDataset::new(vec![gray, colour]);
    let batch = val_batch(&dataset, &[0, 1], 32, Size::square(32)).unwrap().0.unwrap();
    assert_eq!((batch.shape, batch.images.len()), ([2, 3, 32, 32], 2 * 3 * 32 * 32));
    let config = AugmentConfig::default();
    assert!((0..8).all(|e| augment(&dataset, 0, &TrainView { epoch: e, ..view(&config, 32) }).is_ok()));
}

#[test]
fn validation_labels_stand_where_the_letterbox_puts_them() {
    let dataset = marked(1, 1);
    let batch = val_batch(&dataset, &[0], 192, Size { width: 224, height: 192 }).unwrap().0.unwrap();
    let [x1, y1, ..] = xywh_to_xyxy(batch.targets[0].label.xywh);
    assert!((x1 * 224.0 - (20.0 * 2.0 + 16.0)).abs() < 1e-3 && (y1 * 192.0 - (15.0 * 2.0 + 24.0)).abs() < 1e-3);
    assert_eq!(batch.letterboxes[0].original, Size { width: 96, height: 72 });
    let back = batch.letterboxes[0].to_original([x1 * 224.0, y1 * 192.0, 200.0, 150.0]);
    assert!((back[0] - 20.0).abs() < 1e-3 && (back[1] - 15.0).abs() < 1e-3);
}

#[test]
fn mosaic_in_a_rectangle_is_refused() {
    let config = AugmentConfig::default();
    let view = TrainView { shape: Size { width: 96, height: 64 }, ..view(&config, 96) };
    assert!(augment(&marked(4, 1), 0, &view).is_err());
    let config = AugmentConfig { mosaic: 0.0, ..config };
    let sample = augment(&marked(4, 1), 0, &TrainView { config: &config, ..view }).unwrap();
    assert_eq!((sample.frame.width, sample.frame.height), (96, 64));
}

/// The same with white diamonds, labelled by their outline.
fn diamonds(count: usize) -> InMemDataset<Item> {
    let items = (0..count).map(|i| {
        let (w, h, cx, cy, r) = (96, 72, 40 + i % 20, 34 + i % 7, 22);
        let mut frame = Frame::filled(1, w, h, 20);
        for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
            if x.abs_diff(cx) + y.abs_diff(cy) <= r {
                frame.pixels[y * w + x] = 250;
            }
        }
        let (x, y, r) = (cx as f32 + 0.5, cy as f32 + 0.5, r as f32 + 0.5);
        let outline = [[x - r, y], [x, y - r], [x + r, y], [x, y + r]].map(|[x, y]| [x / 96.0, y / 72.0]).to_vec();
        let label = Label { class: 0, xywh: [x / 96.0, y / 72.0, 2.0 * r / 96.0, 2.0 * r / 72.0] };
        Item { outlines: vec![outline], ..Item::new(frame, vec![label], format!("{i}.jpg")) }
    });
    InMemDataset::new(items.collect())
}

#[test]
fn a_polygon_follows_its_pixels_where_the_corners_of_its_box_do_not() {
    let dataset = diamonds(12);
    let boxes_only = {
        let items = (0..12).map(|i| Item { outlines: Vec::new(), ..dataset.get(i).unwrap() });
        InMemDataset::new(items.collect())
    };
    let turning = AugmentConfig { hsv_v: 0.0, scale: 0.2, degrees: 45.0, ..AugmentConfig::default() };
    let mut excess = 0.0f32;
    for (mosaic, index) in [0.0, 1.0].into_iter().flat_map(|mosaic| (0..12).map(move |i| (mosaic, i))) {
        let config = AugmentConfig { mosaic, ..turning.clone() };
        let hull = |data: &InMemDataset<Item>| {
            let sample = augment(data, index, &view(&config, 160)).unwrap();
            let boxes = sample.labels.iter().map(|l| xywh_to_xyxy(l.xywh).map(|v| v * 160.0));
            let all =
                boxes.fold([f32::MAX, f32::MAX, 0.0f32, 0.0f32], |a, b| [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])]);
            (all, bright(&sample.frame))
        };
        let (outlined, pixels) = hull(&dataset);
        // Of a mosaic, what is cut to a sliver is dropped: its pixels stay.
        let looser = [pixels[0] - outlined[0], pixels[1] - outlined[1], outlined[2] - pixels[2], outlined[3] - pixels[3]];
        for side in looser {
            assert!(side <= 3.0 && (side >= -3.0 || mosaic > 0.0), "mosaic {mosaic}, {index}: {pixels:?} {outlined:?}");
        }
        let (boxed, pixels) = hull(&boxes_only);
        excess = boxed.into_iter().zip(pixels).fold(excess, |most, (a, b)| most.max((a - b).abs()));
    }
    assert!(excess > 8.0, "boxes alone would be as good: {excess}");
}

/// Wherever a stack is padded, nothing differs from the background there.
#[test]
fn outside_of_a_difference_there_is_none() {
    let outside = [NO_DIFFERENCE, FILL];
    let planes = Stack { frames: 1, stride: 1, background: 3 };
    let stack = Ring::new(planes).push(&Frame::filled(1, 40, 24, 60));
    let corner = |frame: &Frame| [0, 1].map(|c: usize| frame.plane(c)[0]);
    let (boxed, _) = letterbox(&stack, stack.size(), Size::square(32), true).unwrap();
    assert_eq!((corner(&boxed), boxed.difference), (outside, true));
    let config = AugmentConfig { mosaic: 1.0, translate: 0.0, scale: 0.0, stack: planes, ..AugmentConfig::default() };
    let set = InMemDataset::new(vec![Item::new(stack.clone(), Vec::new(), "a".into()); 4]);
    for config in [AugmentConfig { degrees: 40.0, ..config.clone() }, AugmentConfig { perspective: 0.001, mosaic: 0.0, ..config }] {
        for index in 0..4 {
            let frame = augment(&set, index, &TrainView { epoch: 0, ..view(&config, 32) }).unwrap().frame;
            let [difference, now] = [0, 1].map(|c: usize| frame.plane(c));
            assert!(difference.iter().all(|&p| p == NO_DIFFERENCE), "{index}");
            assert!(now.iter().any(|&p| p > 60), "something is outside");
        }
    }
    let tile = tile::cut(set.get(0).unwrap(), TileConfig { side: 16, whole: 0.0 }, &mut Draw::new(1, "t", 0, 0));
    assert!(tile.frame.difference && tile.frame.plane(0).iter().all(|&p| p == NO_DIFFERENCE));
}

/// Frames of a stack are moments of one camera: what is drawn is drawn once for all of them.
#[test]
fn what_is_equal_in_a_stack_stays_equal() {
    let dataset = marked(24, 3);
    let sensor = SensorConfig { gain: 0.3, offset: 0.1, gamma: 0.3, invert: 0.5, drift: 0.1, pattern: 0.05, blur: 1.0, dead: 0.01 };
    let tile = TileConfig { side: 60, whole: 0.5 };
    let stack = Stack { frames: 3, ..Stack::default() };
    let turned = AugmentConfig { degrees: 20.0, shear: 5.0, perspective: 0.0005, flipud: 0.5, bgr: 0.5, ..AugmentConfig::default() };
    let mixed = AugmentConfig { mosaic: 0.5, mixup: 0.5, cutmix: 0.5, sensor, tile, stack, ..turned };
    let mut most = 0;
    for index in 0..24 {
        let sample = augment(&dataset, index, &view(&mixed, 96)).unwrap();
        let [a, b, c] = [0, 1, 2].map(|plane| sample.frame.plane(plane));
        assert!(a == b && b == c, "{index}");
        most = most.max(sample.labels.len());
    }
    assert!(most > 4, "{most}: several images are in one");
}

/// As a sampler takes it that weighs the image more than others: the same sample again would be learnt by heart.
#[test]
fn an_image_taken_again_is_another_sample() {
    let dataset = marked(8, 1);
    for mosaic in [0.0, 1.0] {
        let config = AugmentConfig { mosaic, ..AugmentConfig::default() };
        let take = |sample| augment(&dataset, sample, &view(&config, 96)).unwrap();
        for index in 0..8 {
            let takes = [index, index + 8, index + 16].map(take);
            assert!(takes.iter().all(|sample| (sample.index, sample.name.as_str()) == (index, format!("{index}.jpg").as_str())));
            let [first, second, third] = takes.map(|sample| sample.frame.pixels);
            assert!(first != second && second != third && third != first, "{index}");
            assert_eq!(second, take(index + 8).frame.pixels, "a function of its number");
        }
    }
}

#[test]
fn a_sampler_decides_what_stands_beside_an_image() {
    // Half of the images are black; by its weights none of them comes into another's sample.
    let items = (0..6).map(|i| Item::new(Frame::filled(1, 64, 64, if i < 3 { 200 } else { 0 }), Vec::new(), i.to_string()));
    let set = InMemDataset::new(items.collect());
    let config = AugmentConfig { hsv_v: 0.0, mixup: 1.0, ..AugmentConfig::default() };
    let black = |weight_sums: &[f64]| {
        let sample = |i| augment(&set, i, &TrainView { weight_sums, ..view(&config, 64) }).unwrap();
        (0..3).map(|i| sample(i).frame.pixels.iter().filter(|&&p| p < 100).count()).sum::<usize>()
    };
    assert_eq!(black(&[1.0, 2.0, 3.0, 3.0, 3.0, 3.0]), 0);
    assert!(black(&[]) > 0 && black(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) > 0);
}

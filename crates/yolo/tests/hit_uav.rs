//! The data path on real thermal frames. Set BELLOWS_HIT_UAV to the hit-uav.yaml of a copy; without it the test says that it was skipped.
//! Times are printed (`--nocapture`), never asserted.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use bellows_yolo::data::{
    AugmentConfig, DataConfig, Normalisation, RamCache, ScanOptions, Size, Split, TrainView, YoloDataset, augment, scan, val_batch,
};
use burn::data::dataset::Dataset;

#[test]
fn real_frames_scan_and_augment() {
    let Some(yaml) = std::env::var_os("BELLOWS_HIT_UAV") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_HIT_UAV is not set").unwrap();
        return;
    };
    let config = DataConfig::load(Path::new(&yaml), &[]).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = ScanOptions { cache_dir: Some(cache.path().into()), ..ScanOptions::default() };
    let start = Instant::now();
    let first = scan(&config, Split::Train, &options, &|_, _| {}).unwrap();
    let cold = start.elapsed();
    let start = Instant::now();
    assert_eq!(scan(&config, Split::Train, &options, &|_, _| {}).unwrap(), first);
    println!("scan of {} images: {cold:?}, remembered: {:?}", first.len(), start.elapsed());
    assert_eq!((first.len(), first.bad.len(), config.nc()), (2029, 0, 4));
    assert!(first.images.iter().all(|i| i.gray && i.size == Size { width: 384, height: 307 }));
    println!("objects {:?}, background {} + {}", first.class_counts(4), first.missing, first.empty);

    let dataset = YoloDataset::new(first, config.channels, Normalisation::Frame { low: 0.0, high: 100.0 });
    let settings = AugmentConfig::default();
    let measure = |what: &str, data: &dyn Dataset<bellows_yolo::data::Item>, imgsz: u32| {
        let view = TrainView { seed: 0, epoch: 0, imgsz, shape: Size::square(imgsz), config: &settings, weight_sums: &[], order: None };
        let start = Instant::now();
        let boxes: usize = (0..100).map(|i| augment(data, i * 20, &view).unwrap().labels.len()).sum();
        println!("{what} {imgsz}: {:.2} ms a mosaic sample, {boxes} boxes in 100", start.elapsed().as_secs_f64() * 10.0);
        assert!(boxes > 100);
    };
    for imgsz in [192, 320, 640] {
        measure("from files", &dataset, imgsz);
        measure("from memory", &RamCache::new(&dataset, imgsz, &|_, _| {}).unwrap(), imgsz);
    }
    let batch = val_batch(&dataset, &[0, 1], 320, Size { width: 352, height: 288 }).unwrap().0.unwrap();
    assert_eq!(batch.shape, [2, 1, 288, 352]);
}

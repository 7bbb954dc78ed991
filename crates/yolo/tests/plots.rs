//! Every picture of a run directory, drawn from plausible data: right size, decodable, and not blank.
//!
//! The pictures stay in the test's temporary directory (`target/tmp/plots`), to be looked at.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking, in its helpers too")]

use bellows_yolo::boxes::{Detection, GroundTruth, Label};
use bellows_yolo::metrics::{ConfusionMatrix, Curves, Evaluator};
use bellows_yolo::plots::{CurveKind, GridBox, GridImage, PlotError, confusion_matrix, image_grid, labels_chart, results_chart};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn save(path: &Path, draw: impl FnOnce(&Path) -> Result<Vec<u8>, PlotError>) {
    std::fs::write(path, draw(path).unwrap()).unwrap();
}

fn out(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("plots");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}

/// Decodes the picture; checks its size and that at least `colors` different colours are in it.
fn check(path: &PathBuf, size: (u32, u32), colors: usize) {
    let image = image::open(path).unwrap().to_rgb8();
    assert_eq!(image.dimensions(), size, "{path:?}");
    let found = image.pixels().map(|p| p.0).collect::<HashSet<_>>().len();
    assert!(found >= colors, "{path:?} has {found} colours");
}

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f32) as usize
    }
}

fn thermal_names() -> Vec<String> {
    ["person", "bicycle", "motorcycle", "vehicle"].map(String::from).to_vec()
}

fn many_names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{} {i}", ["cat", "traffic light", "potted plant", "sports ball"][i % 4])).collect()
}

/// A detector that is better on the first classes than on the last.
fn validation(nc: usize, images: usize) -> (Curves, ConfusionMatrix) {
    let mut random = Random(7);
    let (mut evaluator, mut matrix) = (Evaluator::new(nc), ConfusionMatrix::new(nc, 0.25, 0.45));
    for _ in 0..images {
        let (mut truths, mut detections) = (Vec::new(), Vec::new());
        for _ in 0..random.below(7) {
            let class = (random.unit().powi(2) * nc as f32) as u32;
            let [x, y, w, h] = [500.0, 500.0, 60.0, 90.0].map(|m| 10.0 + m * random.unit());
            truths.push(GroundTruth { class, xyxy: [x, y, x + w, y + h] });
            if random.unit() < 0.95 - 0.5 * class as f32 / nc as f32 {
                let [dx, dy] = [0.0; 2].map(|_: f32| 0.25 * w * (random.unit() - 0.5));
                let guess = if random.unit() < 0.1 { random.below(nc) as u32 } else { class };
                let score = (random.unit() + random.unit() + 0.3).min(1.95) / 2.0;
                detections.push(Detection { xyxy: [x + dx, y + dy, x + w + dx, y + h + dy], score, class: guess });
            }
        }
        for _ in 0..random.below(4) {
            let [x, y] = [0.0; 2].map(|_: f32| 500.0 * random.unit());
            let class = random.below(nc) as u32;
            detections.push(Detection { xyxy: [x, y, x + 40.0, y + 40.0], score: random.unit().powi(2) * 0.9, class });
        }
        evaluator.add_image(&detections, &truths);
        matrix.add_image(&detections, &truths);
    }
    (evaluator.metrics().curves, matrix)
}

fn results_csv(epochs: usize) -> String {
    let mut random = Random(3);
    let mut csv = String::from(
        "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),metrics/mAP50(B),\
         metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2\n",
    );
    for e in 0..epochs {
        let t = e as f32 / 25.0;
        let mut near = |v: f32| v + 0.06 * (random.unit() - 0.5);
        let fall = (-t).exp();
        let cells = [
            near(1.1 + 1.9 * fall),
            near(0.6 + 4.0 * fall),
            near(0.9 + 0.9 * fall),
            near(0.8 * (1.0 - fall)),
            near(0.7 * (1.0 - fall)),
            near(0.75 * (1.0 - fall)),
            near(0.45 * (1.0 - fall)),
            near(1.3 + 1.7 * fall),
            near(0.8 + 3.0 * fall),
            near(1.0 + 0.8 * fall),
        ];
        csv += &format!("{},{}", e + 1, 61 * (e + 1));
        cells.iter().for_each(|v| csv += &format!(",{v:.5}"));
        csv += ",0.01,0.01,0.01\n";
    }
    csv
}

fn some_labels(n: usize, nc: usize) -> Vec<Label> {
    let mut random = Random(11);
    let label = |random: &mut Random| {
        let class = (random.unit().powi(4) * nc as f32) as u32;
        let size = 0.02 + 0.2 * random.unit().powi(3) * (1.0 + class as f32);
        let xywh = [0.1 + 0.8 * random.unit(), 0.35 + 0.5 * random.unit() * random.unit(), size * 0.6, size * (0.7 + 0.6 * random.unit())];
        Label { class, xywh }
    };
    (0..n).map(|_| label(&mut random)).collect()
}

/// A gray night scene: a gradient, stripes, and warm blobs where the boxes are.
fn scene(index: usize, channels: usize, width: usize, height: usize) -> (Vec<u8>, Vec<GridBox>) {
    let mut random = Random(index as u64 * 31 + 5);
    let boxes: Vec<GridBox> = (0..index % 5)
        .map(|_| {
            let (w, h) = (width as f32 * (0.06 + 0.2 * random.unit()), height as f32 * (0.1 + 0.2 * random.unit()));
            let (x, y) = (random.unit() * (width as f32 - w), random.unit() * (height as f32 - h));
            GridBox { xyxy: [x, y, x + w, y + h], class: random.below(4) as u32, score: Some(0.25 + 0.75 * random.unit()) }
        })
        .collect();
    let mut pixels = vec![0u8; channels * width * height];
    for (i, pixel) in pixels.iter_mut().enumerate() {
        let (c, x, y) = (i / (width * height), (i % width) as f32, (i / width % height) as f32);
        let warm = boxes.iter().any(|b| {
            let [x1, y1, x2, y2] = b.xyxy;
            ((2.0 * x - x1 - x2) / (x2 - x1)).powi(2) + ((2.0 * y - y1 - y2) / (y2 - y1)).powi(2) < 0.9
        });
        let cold = 40.0 + 60.0 * y / height as f32 + 6.0 * (x / 9.0).sin() + 10.0 * c as f32;
        *pixel = if warm { 220 } else { cold as u8 };
    }
    (pixels, boxes)
}

fn grid(name: &str, count: usize, channels: usize, (width, height): (usize, usize), labels: bool) -> PathBuf {
    let scenes: Vec<_> = (0..count).map(|i| scene(i, channels, width, height)).collect();
    let file_names: Vec<String> = (0..count).map(|i| format!("20200514_clip_22_2307_image_{i:04}.jpg")).collect();
    let images: Vec<GridImage> = scenes
        .iter()
        .zip(&file_names)
        .map(|((pixels, boxes), name)| GridImage {
            pixels,
            channels,
            width,
            height,
            name,
            boxes: boxes.iter().map(|b| GridBox { score: b.score.filter(|_| !labels), ..*b }).collect(),
        })
        .collect();
    let path = out(name);
    save(&path, |path| image_grid(&images, &thermal_names(), path));
    path
}

#[test]
fn training_curves() {
    for (name, epochs) in [("results.png", 100), ("results_3_epochs.png", 3), ("results_1_epoch.png", 1)] {
        save(&out(name), |path| results_chart(&results_csv(epochs), path));
        check(&out(name), (2250, 1000), 50);
    }
}

/// Losses that hardly change any more have labels of seven characters.
#[test]
fn tick_labels_of_the_first_panels_are_whole() {
    let rows: String = (1..10).map(|epoch| format!("{epoch},1.0000{epoch},1.0000{epoch}\n")).collect();
    let path = out("results_of_long_labels.png");
    save(&path, |path| results_chart(&format!("epoch,train/box_loss,val/box_loss\n{rows}"), path));
    let image = image::open(&path).unwrap().to_rgb8();
    let white = |x: u32| (0..image.height()).all(|y| image.get_pixel(x, y).0 == [255; 3]);
    assert!((0..12).all(white) && !(12..100).all(white));
}

#[test]
fn label_statistics() {
    for (name, count, names) in
        [("labels.jpg", 5000, thermal_names()), ("labels_20.jpg", 3000, many_names(20)), ("labels_80.jpg", 3000, many_names(80))]
    {
        save(&out(name), |path| labels_chart(&some_labels(count, names.len()), &names, path));
        check(&out(name), (1600, 1600), 200);
    }
}

#[test]
fn shapes_of_small_boxes_fill_their_panel() {
    for side in [0.02f32, 0.9] {
        let labels = [Label { class: 0, xywh: [0.3, 0.7, side, side / 2.0] }];
        let path = out("labels_one.png");
        save(&path, |path| labels_chart(&labels, &thermal_names(), path));
        let image = image::open(&path).unwrap().to_rgb8();
        let blue = |x: u32, y: u32| image.get_pixel(x, y).0[2] > image.get_pixel(x, y).0[0].saturating_add(60);
        // Its left edge is near that of the panel, its upper one a quarter of the panel below the panel's.
        assert!((922..950).any(|x| blue(x, 385)) && !(955..1240).any(|x| blue(x, 385)), "{side}");
        assert!((215..245).any(|y| blue(1300, y)), "{side}");
    }
}

#[test]
fn metric_curves() {
    let (curves, _) = validation(4, 400);
    for kind in CurveKind::ALL {
        save(&out(kind.file_name()), |path| kind.draw(&curves, &thermal_names(), path));
        check(&out(kind.file_name()), (1800, 1200), 50);
    }
    for nc in [20, 30] {
        let path = out(&format!("BoxPR_{nc}.png"));
        save(&path, |path| CurveKind::Pr.draw(&validation(nc, 600).0, &many_names(nc), path));
        check(&path, (1800, 1200), 50);
    }
}

#[test]
fn confusion_matrices() {
    for (nc, names) in [(4, thermal_names()), (1, vec!["person".into()]), (20, many_names(20)), (80, many_names(80))] {
        let (_, matrix) = validation(nc, 900);
        for (normalized, suffix) in [(false, ""), (true, "_normalized")] {
            let path = out(&format!("confusion_matrix_{nc}{suffix}.png"));
            save(&path, |path| confusion_matrix(&matrix, &names, normalized, path));
            let image = image::open(&path).unwrap().to_rgb8();
            assert!(image.width() >= 700 && image.height() >= 550, "{path:?} is {:?}", image.dimensions());
            check(&path, image.dimensions(), 50);
        }
    }
}

/// What is drawn is four times as large as the file.
#[test]
fn a_confusion_matrix_of_many_classes_stays_small() {
    let path = out("confusion_matrix_160.png");
    let mut matrix = ConfusionMatrix::new(160, 0.25, 0.45);
    matrix.add_image(&[], &[GroundTruth { class: 159, xyxy: [0.0, 0.0, 9.0, 9.0] }]);
    save(&path, |path| confusion_matrix(&matrix, &many_names(160), false, path));
    let image = image::open(&path).unwrap().to_rgb8();
    assert!(image.width() < 1300 && image.height() < 1300, "{:?}", image.dimensions());
    check(&path, image.dimensions(), 50);
}

#[test]
fn more_classes_than_a_confusion_matrix_has_room_for_share_cells() {
    let mut matrix = ConfusionMatrix::new(1501, 0.25, 0.45);
    matrix.add_image(&[], &[GroundTruth { class: 3, xyxy: [0.0, 0.0, 9.0, 9.0] }]);
    for normalized in [false, true] {
        let path = out("confusion_matrix_1501.png");
        save(&path, |path| confusion_matrix(&matrix, &many_names(1501), normalized, path));
        check(&path, (100 + 2 * 751 + 190, 90 + 2 * 751 + 110), 50);
        let image = image::open(&path).unwrap().to_rgb8();
        // Missed: the second cell of the last row.
        assert_eq!((image.get_pixel(102, 1590).0, image.get_pixel(106, 1590).0), ([8, 40, 110], [255; 3]));
    }
}

#[test]
fn image_grids() {
    check(&grid("train_batch0.jpg", 16, 3, (640, 640), true), (1920, 1920), 1000);
    check(&grid("val_batch0_labels.jpg", 16, 1, (160, 160), true), (1920, 1920), 500);
    check(&grid("val_batch0_pred.jpg", 16, 1, (160, 160), false), (1920, 1920), 500);
    check(&grid("val_rect_pred.jpg", 7, 1, (672, 512), false), (1920, 1461), 500);
    check(&grid("one_image.jpg", 1, 1, (64, 64), false), (384, 384), 20);
}

#[test]
fn boxes_are_drawn_where_they_are() {
    let pixels = vec![0u8; 64 * 64];
    let boxes = vec![GridBox { xyxy: [16.0, 32.0, 48.0, 56.0], class: 6, score: None }];
    let image = GridImage { pixels: &pixels, channels: 1, width: 64, height: 64, name: "", boxes };
    let path = out("one_box.png");
    save(&path, |path| image_grid(&[image], &thermal_names(), path));
    let sheet = image::open(&path).unwrap().to_rgb8(); // six times as large
    let red = image::Rgb([0xFF, 0x44, 0x4F]);
    assert_eq!((*sheet.get_pixel(96, 300), *sheet.get_pixel(288, 300), *sheet.get_pixel(250, 336)), (red, red, red));
    assert_eq!(*sheet.get_pixel(192, 264), image::Rgb([0; 3]), "not filled");
}

#[test]
fn nothing_to_draw_is_an_empty_chart() {
    save(&out("empty_results.png"), |path| results_chart("", path));
    check(&out("empty_results.png"), (2250, 1000), 3);
    save(&out("empty_labels.jpg"), |path| labels_chart(&[], &[], path));
    check(&out("empty_labels.jpg"), (1600, 1600), 3);
    for kind in CurveKind::ALL {
        let path = out(&format!("empty_{}", kind.file_name()));
        save(&path, |path| kind.draw(&Evaluator::new(4).metrics().curves, &thermal_names(), path));
        check(&path, (1800, 1200), 3);
    }
    for normalized in [false, true] {
        save(&out("empty_confusion.png"), |path| confusion_matrix(&ConfusionMatrix::new(0, 0.25, 0.45), &[], normalized, path));
    }
    save(&out("empty_grid.jpg"), |path| image_grid(&[], &[], path));
    check(&out("empty_grid.jpg"), (640, 640), 3);
}

#[test]
fn errors_name_the_picture() {
    let image = GridImage { pixels: &[0; 10], channels: 3, width: 4, height: 4, name: "frame_7.jpg", boxes: vec![] };
    let text = image_grid(&[image], &[], &out("bad.jpg")).unwrap_err().to_string();
    assert!(text.contains("frame_7.jpg") && text.contains("10 bytes") && text.contains("48"), "{text}");
}

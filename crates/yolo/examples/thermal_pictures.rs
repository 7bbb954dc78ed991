//! What each thermal augmentation does to a frame, drawn twice: `thermal_pictures DATA.yaml OUT.png [INDEX]`. The strengths are far above what one would
//! train with, so that they can be seen.

use std::error::Error;

use bellows_yolo::TrainingData;
use bellows_yolo::config::TrainConfig;
use bellows_yolo::data::{AugmentConfig, Frame, SensorConfig, Size, TrainView, augment};
use bellows_yolo::plots::{GridImage, image_grid};

const SIDE: u32 = 384;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [data, out, index @ ..] = &args[..] else { return Err("thermal_pictures DATA.yaml OUT.png [INDEX]".into()) };
    let index = index.first().map_or(Ok(0), |text| text.parse())?;
    let config = TrainConfig { data: data.clone(), imgsz: SIDE as usize, ..TrainConfig::default() };
    let data = TrainingData::open(&config, &|_, _, _| {})?;
    let off = SensorConfig::default();
    let sensors = [
        ("thermal_gain 0.6", SensorConfig { gain: 0.6, ..off }),
        ("thermal_offset 0.3", SensorConfig { offset: 0.3, ..off }),
        ("thermal_gamma 0.9", SensorConfig { gamma: 0.9, ..off }),
        ("thermal_invert 1", SensorConfig { invert: 1.0, ..off }),
        ("thermal_drift 0.25", SensorConfig { drift: 0.25, ..off }),
        ("thermal_pattern 0.1", SensorConfig { pattern: 0.1, ..off }),
        ("thermal_blur 3", SensorConfig { blur: 3.0, ..off }),
        ("thermal_dead 0.01", SensorConfig { dead: 0.01, ..off }),
    ];
    let still = AugmentConfig { hsv_v: 0.0, mosaic: 0.0, translate: 0.0, scale: 0.0, fliplr: 0.0, ..AugmentConfig::default() };
    let mut frames: Vec<(&str, Frame)> = Vec::new();
    for (name, sensor) in sensors {
        for epoch in 0..2 {
            let config = AugmentConfig { sensor, ..still.clone() };
            let view = TrainView {
                seed: 11,
                epoch,
                imgsz: SIDE,
                shape: Size { width: SIDE, height: SIDE * 3 / 4 },
                config: &config,
                weight_sums: &[],
                order: None,
            };
            frames.push((name, augment(&*data.train, index, &view)?.frame));
        }
    }
    let mut grid = Vec::new();
    for (name, f) in &frames {
        grid.push(GridImage { pixels: &f.pixels, channels: f.channels, width: f.width, height: f.height, name, boxes: Vec::new() });
    }
    std::fs::write(out, image_grid(&grid, &[], out.as_ref())?)?;
    Ok(())
}

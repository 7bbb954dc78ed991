//! A COCO file as large as you like, with its images, to see what opening it costs: `giant_coco OUT [MEGABYTES] [IMAGES] [SEED]`.
//!
//! `/usr/bin/time -v yolo-train data check --data OUT/annotations/instances_val.json` tells time and memory, the second time from what was
//! remembered. Annotations stand before images and categories, ids have 17 digits, and half of the objects have polygons. The images are
//! a few pictures under many names (hard links).
#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use image::GrayImage;

/// Names that one file may have.
const NAMES: usize = 30_000;
const WIDTH: u64 = 64;
const HEIGHT: u64 = 48;
const FIRST_ID: u64 = 20_260_101_000_000_000;

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let out = Path::new(args.first().ok_or("giant_coco OUT [MEGABYTES] [IMAGES] [SEED]")?);
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |text| text.parse());
    let (megabytes, images, seed) = (number(1, 1000)?, number(2, 100_000)?, number(3, 0)?);
    std::fs::create_dir_all(out.join("annotations"))?;
    std::fs::create_dir_all(out.join("images/val"))?;
    let name = |i: u64| format!("{i:07}.png");
    for i in 0..images {
        let (path, first) = (out.join("images/val").join(name(i)), i - i % NAMES as u64);
        if i == first {
            GrayImage::from_fn(WIDTH as u32, HEIGHT as u32, |x, y| image::Luma([(x * 3 + y) as u8])).save(&path)?;
        } else if !path.exists() {
            std::fs::hard_link(out.join("images/val").join(name(first)), path)?;
        }
    }
    let mut draws = Draws(seed);
    let mut json = BufWriter::new(File::create(out.join("annotations/instances_val.json"))?);
    let (mut written, mut objects) = (0u64, 0u64);
    json.write_all(b"{\"info\": {}, \"annotations\": [")?;
    while written < megabytes * 1_000_000 {
        let (x, y) = (draws.below(WIDTH - 8), draws.below(HEIGHT - 8));
        let (w, h) = (1 + draws.below(8), 1 + draws.below(8));
        let (image, category, tenth) = (FIRST_ID + draws.below(images), 1 + draws.below(80), draws.below(10));
        let ring = if draws.below(2) == 0 {
            format!("[{x}.{tenth}, {y}.5, {}.25, {y}.75, {}.0, {}.0, {x}.5, {}.5]", x + w, x + w, y + h, y + h)
        } else {
            String::new()
        };
        let comma = if objects == 0 { "" } else { ", " };
        let text = format!(
            "{comma}{{\"id\": {}, \"image_id\": {image}, \"category_id\": {category}, \"bbox\": [{x}.{tenth}, {y}.5, {w}.25, {h}.0], \
             \"area\": {}, \"segmentation\": [{ring}], \"iscrowd\": 0}}",
            FIRST_ID + objects,
            w * h
        );
        json.write_all(text.as_bytes())?;
        written += text.len() as u64;
        objects += 1;
    }
    json.write_all(b"], \"images\": [")?;
    for i in 0..images {
        let comma = if i == 0 { "" } else { ", " };
        write!(json, "{comma}{{\"id\": {}, \"file_name\": \"{}\", \"width\": {WIDTH}, \"height\": {HEIGHT}}}", FIRST_ID + i, name(i))?;
    }
    json.write_all(b"], \"categories\": [")?;
    for i in 1..=80 {
        let comma = if i == 1 { "" } else { ", " };
        write!(json, "{comma}{{\"id\": {i}, \"name\": \"class {i}\"}}")?;
    }
    json.write_all(b"]}\n")?;
    json.into_inner()?.sync_all()?;
    println!("{objects} objects, {images} images");
    Ok(())
}

//! What a thread reads and writes a second, `a = b + 3 c` over arrays that no cache holds: `bandwidth SECONDS`, once for each thread that is to do so at the same time. Prints GB/s.
#![allow(clippy::print_stdout, reason = "it measures")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Numbers of an array: 256 MB.
const NUMBERS: usize = 1 << 26;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: f64 = std::env::args().nth(1).ok_or("bandwidth SECONDS")?.parse()?;
    let (mut a, b, c) = (vec![0f32; NUMBERS], vec![1f32; NUMBERS], vec![2f32; NUMBERS]);
    let pass = |a: &mut [f32]| a.iter_mut().zip(&b).zip(&c).for_each(|((a, b), c)| *a = b + 3.0 * c);
    // The first one is given its pages.
    pass(&mut a);
    let (begun, mut passes) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        pass(black_box(&mut a));
        passes += 1;
    }
    // Two arrays are read, one is written, which the processor reads before.
    let bytes = 4 * size_of::<f32>() * NUMBERS * passes;
    println!("{:.2}", bytes as f64 / begun.elapsed().as_secs_f64() / 1e9);
    Ok(())
}

//! What precision costs: the tiny preset in each, by its loss on the chats it is judged by. Minutes of computing, so only when asked for
//! (`--ignored`).
//!
//! Ten epochs, a third of the preset's: later it knows its chats by heart, and the loss of 0.1 to 0.3 that is left depends on anything. Nine seeds:
//! of one seed any rounding moves the loss by one or two percent either way, so the mean of three is not known to two.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it measured")]

use std::path::Path;

use crate::support::{expect_code, llm_finetune};

const SEEDS: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];

/// The lowest validation loss of a run.
fn loss(precision: &str, more: &[&str], seed: &str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/tiny-chat");
    let args = ["--config", "tiny", "--data", data.to_str().unwrap(), "--device", "cpu", "--save-merged=false", "--precision", precision];
    let args = [&args[..], &["--epochs", "10", "--seed", seed], more].concat();
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &args), 0);
    let found = out.lines().find_map(|line| line.strip_prefix("Lowest validation loss ")).unwrap();
    found.split(',').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "45 runs of a quarter of a minute or more"]
fn every_precision_ends_within_two_percent_of_f32() {
    let of = |precision: &str, more: &[&str]| SEEDS.map(|seed| loss(precision, more, seed));
    let mean = |losses: [f64; SEEDS.len()]| losses.iter().sum::<f64>() / SEEDS.len() as f64;
    // Pure f16 has an ε of its own, which changes more than its rounding does.
    let (plain, same) = (of("f32", &[]), of("f32", &["--adam-epsilon", "1e-4"]));
    println!("f32 {plain:.4?}, with its ε {same:.4?}");
    for (precision, f32) in [("bf16", plain), ("fp16", plain), ("fp16-pure", same)] {
        let losses = of(precision, &[]);
        let off = mean(losses) / mean(f32) - 1.0;
        println!("{precision} {losses:.4?}: {:+.2} %", 100.0 * off);
        assert!(off.abs() < 0.02, "{precision}: {losses:?} for {f32:?}");
    }
}

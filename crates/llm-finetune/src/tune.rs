//! `tune-batch`: what batches of growing size take and how fast they are, measured. Each is measured in a process of its own, which may die of it,
//! on the longest row there is, again and again, with an evaluation and a checkpoint.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use bellows_chat::{Encoded, Fault};
use bellows_cli::{Context, Exit, Failure, Signals, Usage, join_pool, local_rank, note, pick_device, say, scratch};
use bellows_device::{Reading, Selected, Telemetry, this_program};
use bellows_learner::bench::{StepTimer, median};
use bellows_learner::memory::{Place, peak_memory};
use bellows_learner::{BatchReport, Observer, Phase, StepTimes};
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::SftData;
use bellows_qwen::examples::Examples;
use bellows_qwen::train::{Finetune, with_adapter};
use bellows_runs::RunDir;
use serde_json::{Value, json};

use crate::args::{MEASURE, TuneArgs};
use crate::presets::settings;
use crate::prove::{has_numbers, of_run, prove};
use crate::settle::settle_memory;
use crate::train::{data_paths, find_model, open_base, open_data, open_tokenizer, pick_template};

/// Updates of a measurement: one to warm up, and those that count.
const STEPS: usize = 3;
/// Between two questions to the card: a measurement may be over within a second.
const EVERY: Duration = Duration::from_millis(200);

/// A column: its heading, the key of a measurement, digits.
const COLUMNS: [(&str, &str, usize); 7] = [
    ("peak GB", "peak_gb", 2),
    ("planned GB", "planned_gb", 2),
    ("tokens/s", "tokens_per_s", 0),
    ("examples/s", "examples_per_s", 2),
    ("fragmented", "fragmentation", 2),
    ("watts", "watts", 0),
    ("°C", "degrees", 0),
];

pub(crate) fn tune(args: &TuneArgs, signals: &Signals) -> Result<(), Failure> {
    let config = settings(&args.settings)?;
    if config.model.is_empty() || config.data.is_empty() {
        return Err(Usage("tune-batch needs --model and --data".into()).into());
    }
    if let Some(batch) = args.measure {
        return measure(config, batch, signals);
    }
    if args.most == 0 {
        return Err(Usage("--most 0 leaves no batch to measure".into()).into());
    }
    // What one that dies leaves behind goes with this process.
    let (folder, _taken) = scratch(signals)?;
    let mut measured: Vec<Value> = Vec::new();
    if !args.json {
        say(&format!("{:>6}{}", "batch", COLUMNS.map(|(heading, ..)| format!("{heading:>12}")).concat()));
    }
    for batch in std::iter::successors(Some(1), |batch| Some(2 * batch)).take_while(|batch| *batch <= args.most) {
        match in_a_child(&args.typed, batch, &folder)? {
            Ok(row) => {
                if !args.json {
                    say(&format!("{batch:>6}{}", COLUMNS.map(|(_, key, digits)| cell(&row[key], digits)).concat()));
                }
                measured.push(row);
            }
            Err((exit, why)) if measured.is_empty() => {
                // A list all the same, for who reads one.
                if args.json {
                    say("[]");
                }
                let what = format!("not even a batch of {batch} could be measured");
                return Err::<(), _>(std::io::Error::other(why)).context(exit, what);
            }
            Err((_, why)) => {
                note(&format!("a batch of {batch}: {why}"));
                break;
            }
        }
    }
    if args.json {
        say(&json!(measured).to_string());
        return Ok(());
    }
    let speed = |row: &&Value| row["tokens_per_s"].as_f64().unwrap_or(0.0);
    if let Some(best) = measured.iter().max_by(|a, b| speed(a).total_cmp(&speed(b))) {
        say(&format!("the fastest: --batch-size {} ({:.0} tokens/s)", best["batch"], speed(&best)));
    }
    Ok(())
}

fn cell(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| format!("{:>12}", "-"), |value| format!("{value:>12.digits$}"))
}

/// One measurement by this program, with the words it was given and `folder` for temporary files; whose fault it is that there is none, and why, if it
/// failed or died.
fn in_a_child(typed: &[String], batch: usize, folder: &Path) -> Result<Result<Value, (Exit, String)>, Failure> {
    let program = this_program().context(Exit::Failed, "finding this program")?;
    let child = Command::new(&program)
        .args(typed)
        .args([format!("--{MEASURE}"), batch.to_string()])
        .envs(["TMPDIR", "TMP"].map(|name| (name, folder)))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context(Exit::Failed, program.display())?;
    let last = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
    if child.status.success()
        && let Ok(row) = serde_json::from_str(&last(&child.stdout))
    {
        return Ok(Ok(row));
    }
    let exit = child.status.code().map_or(Exit::Failed, Exit::of);
    Ok(Err((exit, format!("{} ({})", child.status, last(&child.stderr)))))
}

/// A few updates of this batch on the longest row, an evaluation on the longest of its own, a checkpoint and an adapter; what that took, as JSON.
fn measure(config: SftConfig, batch: usize, signals: &Signals) -> Result<(), Failure> {
    join_pool(0)?;
    // A packed row is as long as may be, whatever the examples are; those that are judged are never packed.
    let fill = if config.packing { config.max_seq_length } else { 0 };
    // Two batches an update hold what more of them do: the sum of gradients.
    let windows = config.gradient_accumulation_steps.min(2);
    let config = SftConfig {
        batch_size: batch,
        gradient_accumulation_steps: windows,
        epochs: 1,
        eval_steps: 0,
        early_stopping_patience: 0,
        packing: false,
        group_by_length: false,
        plots: false,
        tensorboard: false,
        profile: true,
        ..config
    };
    let model = find_model(&config)?;
    let (config, _) = with_adapter(config)?;
    let device = pick_device(&config.device, &of_run(&config, model.as_ref()))?;
    has_numbers(config.precision, &device)?;
    let paths = data_paths(&config, false)?;
    let (shape, tokenizer) = open_tokenizer(&config, &paths)?;
    let template = pick_template(&config, shape.architecture, &tokenizer)?;
    let data = open_data(&config, &paths, &tokenizer, &template)?;
    let per = config.objective.sequences();
    let data = SftData {
        train: longest(&data.train, batch * STEPS * windows, per, fill)?.into(),
        valid: longest(&data.valid, batch, per, 0)?.into(),
        pairs: data.pairs,
        ..SftData::default()
    };
    let (seq, tokens) = (data.train.lengths().max().unwrap_or(0), tokens(&data.train, batch * per));
    let config = config.stored_at(Place::of(&device.device));
    let (_, here) = local_rank(config.ranks);
    let (config, planned) = settle_memory(config, &shape, &data, &device, here)?;
    // On the processor the system would end any process when memory is gone, perhaps another one.
    if let Some(free) = Place::of(&device.device).room(device.memory).filter(|free| planned.peak() > *free) {
        return Err(Usage(format!("planned to take {:.2} GB, and there are {:.2}", planned.peak() / 1e9, free / 1e9)).into());
    }
    let base = open_base(&config, &paths, &device.device)?;
    let (folder, _taken) = scratch(signals)?;
    let (telemetry, highest) = (Telemetry::every(&device, EVERY), Rc::<Cell<Reading>>::default());
    let mut tuning = Finetune::new(config, base, data, template, &device.device, RunDir::create(&folder, "tune", false)?)?;
    prove(&tuning.model(), tuning.shape(), tuning.config().precision, &device, false)?;
    let timer = StepTimer::default();
    tuning.learner().observe(timer.clone()).observe(Watch { latest: move || telemetry.latest(), highest: Rc::clone(&highest) });
    tuning.run()?;
    tuning.save()?;
    let seconds = |window: &[StepTimes]| window.iter().map(StepTimes::step).sum::<f64>();
    let step_s = median(timer.after(windows).chunks(windows).map(seconds).collect()) / windows as f64;
    let usage = device.device.memory_pool_usage();
    let reading = highest.get();
    let row = json!({
        "batch": batch,
        "seq": seq,
        "peak_gb": peak(&device),
        "planned_gb": planned.peak() / 1e9,
        "tokens_per_s": tokens as f64 / step_s,
        "examples_per_s": batch as f64 / step_s,
        "fragmentation": usage.map(|usage| 1.0 - usage.bytes_in_use as f64 / usage.bytes_reserved.max(1) as f64),
        "watts": reading.power,
        "degrees": reading.temperature,
    });
    say(&row.to_string());
    Ok(())
}

/// GB (10^9 bytes) that were held: of a card what its allocator has reserved, which gives nothing back meanwhile; else of this process.
fn peak(device: &Selected) -> Option<f64> {
    match device.device.memory_pool_usage() {
        Some(usage) => Some(usage.bytes_reserved as f64 / 1e9),
        None => peak_memory().map(|gb| 1.024 * gb),
    }
}

/// Tokens of a batch of so many sequences, without their padding: all batches are alike.
fn tokens(examples: &Examples, sequences: usize) -> usize {
    examples.lengths().take(sequences).sum()
}

/// Keeps the highest readings of a card that trains: when all is done it has been idle for a while.
struct Watch<F> {
    latest: F,
    highest: Rc<Cell<Reading>>,
}

impl<F: Fn() -> Reading> Watch<F> {
    fn look(&self) {
        self.highest.set(higher(self.highest.get(), (self.latest)()));
    }
}

impl<F: Fn() -> Reading> Observer for Watch<F> {
    fn on_phase(&mut self, _phase: Phase) {
        self.look();
    }

    fn on_batch(&mut self, _report: &BatchReport) {
        self.look();
    }
}

/// Each value at its higher.
fn higher(a: Reading, b: Reading) -> Reading {
    let of = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    Reading { memory: a.memory.max(b.memory), temperature: of(a.temperature, b.temperature), power: of(a.power, b.power) }
}

/// The longest example of `per` sequences, `count` times: with shorter ones beside it the steps that count would be of fewer tokens than are said. Where it
/// has less than `fill` tokens it begins anew behind itself.
fn longest(examples: &Examples, count: usize, per: usize, fill: usize) -> Result<Vec<Encoded>, Failure> {
    let lengths: Vec<usize> = examples.lengths().collect();
    let longest = (0..lengths.len() / per).max_by_key(|&i| lengths[i * per..(i + 1) * per].iter().max());
    let Some(i) = longest else { return Ok(Vec::new()) };
    let read = |place: usize| -> Result<Encoded, Failure> {
        let Encoded { ids, trained, cut } = examples.get(place).map_err(Fault::from)?.into_owned();
        let tokens = ids.len().max(fill);
        Ok(Encoded {
            ids: ids.into_iter().cycle().take(tokens).collect(),
            trained: trained.into_iter().cycle().take(tokens).collect(),
            cut,
        })
    };
    let example = (i * per..(i + 1) * per).map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![example; count].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_as_long_as_what_is_said() {
        let of = |lengths: &[usize]| -> Examples {
            let example = |&n: &usize| Encoded { ids: vec![1; n], trained: vec![true; n], cut: 0 };
            lengths.iter().map(example).collect::<Vec<_>>().into()
        };
        let lengths = |examples: Vec<Encoded>| examples.iter().map(Encoded::len).collect::<Vec<_>>();
        assert_eq!(lengths(longest(&of(&[8, 20, 9, 3]), 3, 1, 0).unwrap()), [20; 3]);
        // Of a packed run, whose rows others fill.
        assert_eq!(lengths(longest(&of(&[8, 20, 9, 3]), 3, 1, 64).unwrap()), [64; 3]);
        let row = Encoded { ids: vec![4, 5, 6], trained: vec![false, true, true], cut: 0 };
        let twice = Encoded { ids: vec![4, 5, 6, 4, 5], trained: vec![false, true, true, false, true], cut: 0 };
        assert_eq!(longest(&vec![row].into(), 1, 1, 5).unwrap(), [twice]);
        // Of pairs the one with the longest side, with its other side.
        assert_eq!(lengths(longest(&of(&[8, 9, 4, 20, 19, 18]), 2, 2, 0).unwrap()), [4, 20, 4, 20]);
        assert!(longest(&Examples::default(), 3, 1, 64).unwrap().is_empty());
        // Three batches of a pair, which is not two of its longer side.
        assert_eq!(tokens(&longest(&of(&[8, 9, 4, 20]), 3, 2, 0).unwrap().into(), 2), 24);
    }

    #[test]
    fn a_card_is_told_of_as_it_was_when_it_worked() {
        let reading = |power, temperature| Reading { power, temperature, ..Reading::default() };
        let all = [reading(None, None), reading(Some(180.0), Some(61.0)), reading(Some(35.0), Some(64.0)), reading(None, None)];
        assert_eq!(all.into_iter().reduce(higher), Some(reading(Some(180.0), Some(64.0))));
        // The last batch's answer may only be there when the run has turned to something else.
        let (answers, highest) = (Cell::new(0), Rc::<Cell<Reading>>::default());
        let latest = || all[answers.replace(answers.get() + 1)];
        let mut watch = Watch { latest, highest: Rc::clone(&highest) };
        [Phase::Step, Phase::Evaluation].into_iter().for_each(|phase| watch.on_phase(phase));
        assert_eq!(highest.get(), all[1]);
    }
}

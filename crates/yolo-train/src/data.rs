//! `yolo-train data`: a data set looked at (`check`, `stats`) or written anew (`convert`, `shard`), by the same code that training reads it with.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bellows_cli::{Bar, Context, Exit, Failure, Signals, count, option, quoted, say, switch, text, whole};
use bellows_settings::Layer;
use bellows_yolo::config::TrainConfig;
use bellows_yolo::data::convert::{Form, Images, convert, partial};
use bellows_yolo::data::sample::generate;
use bellows_yolo::data::shard::Packing;
use bellows_yolo::data::stats::SplitStats;
use bellows_yolo::data::{DataConfig, DataError, ScanOptions, Split, YoloDataset, index_shards, leaks, overlap, report, scan};
use bellows_yolo::plots::data_chart;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};

/// The verb with its three verbs.
pub(crate) fn command() -> Command {
    let data =
        || option("data", "A data.yaml, a COCO .json, Darknet's obj.data, or the folder that a labelling tool exported").required(true);
    let out = |help| Arg::new("out").long("out").value_name("DIR").value_parser(value_parser!(PathBuf)).help(help);
    let outside = || {
        let help = "Directories outside the dataset's own that it may read from, as a list";
        Arg::new("allow_outside")
            .long("allow-outside")
            .value_name("DIR")
            .value_delimiter(',')
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    let written = |name, about| {
        Command::new(name)
            .about(about)
            .arg(data().alias("json"))
            .arg(out("Where to: a new or an empty folder").required(true))
            .arg(switch("allow-bad", "Go on although more than 1 % of the images or labels are bad"))
            .arg(outside())
    };
    let target = |name, about| {
        written(name, about).arg(
            option("images", "What becomes of the images: link (a second name for the same file), copy, or none")
                .value_parser(PossibleValuesParser::new(["link", "copy", "none"]))
                .default_value("link"),
        )
    };
    Command::new("data")
        .about("Looks at a data set or converts it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("check")
                .about("Checks every image and label of all splits; ends with 2 if more than 1 % cannot be used")
                .arg(data())
                .arg(outside()),
        )
        .subcommand(
            Command::new("stats")
                .about("Objects per class and size, empty images, brightness, image sizes")
                .arg(data())
                .arg(out("Also write stats.csv, sizes.csv and stats.png here"))
                .arg(outside()),
        )
        .subcommand(
            Command::new("convert")
                .about("Writes a data set anew; the source stays as it is")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(target("coco2yolo", "To images/, labels/ and a data.yaml, from COCO or any other form"))
                .subcommand(target("yolo2coco", "To images/, annotations/*.json and a data.yaml, from YOLO or any other form")),
        )
        .subcommand(
            written("shard", "Writes a data set into tar archives (WebDataset's layout) with an index; the source stays as it is")
                .arg(count("samples", "1000", "Images of a shard"))
                .arg(switch("shuffle", "In a random order (always the same): frames of a film then do not lie beside each other")),
        )
        .subcommand(
            Command::new("index")
                .about("Writes the index of tar archives that another program wrote, beside them")
                .arg(option("data", "The folder they lie in").required(true)),
        )
}

/// Does what was asked for.
pub(crate) fn run(matches: &ArgMatches, signals: &Signals) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("stats", m)) => stats(m),
        Some(("convert", m)) => match m.subcommand() {
            Some(("yolo2coco", m)) => rewrite(m, Form::Coco, signals),
            Some((_, m)) => rewrite(m, Form::Yolo, signals),
            None => Ok(()),
        },
        Some(("shard", m)) => {
            let packing = Packing { samples: whole(m, "samples").max(1), shuffle: m.get_flag("shuffle") };
            rewrite(m, Form::Shards(packing), signals)
        }
        Some(("index", m)) => index(m),
        Some((_, m)) => check(m),
        None => Ok(()),
    }
}

/// A bar that many threads may move.
struct Progress(Mutex<Bar>);

impl Progress {
    fn new() -> Self {
        Self(Mutex::new(Bar::new("", 0)))
    }

    fn set(&self, what: &str, done: u64, total: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(what.to_string(), done as usize, total as usize);
    }

    fn finish(self) {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).finish("");
    }
}

/// The data set that was named, drawn if it says so.
fn opened(m: &ArgMatches) -> Result<DataConfig, Failure> {
    let outside: Vec<PathBuf> = m.get_many("allow_outside").into_iter().flatten().cloned().collect();
    let config = DataConfig::load(&PathBuf::from(text(m, "data").unwrap_or_default()), &outside)?;
    config.notes.iter().for_each(|note| say(&format!("warning: {note}")));
    if let Some(spec) = &config.generator {
        let progress = Progress::new();
        generate(spec, &config.root, &|done, total| progress.set("drawing sample frames", done, total))?;
        progress.finish();
    }
    Ok(config)
}

fn check(m: &ArgMatches) -> Result<(), Failure> {
    let config = opened(m)?;
    let options = ScanOptions { allow_bad: true, ..ScanOptions::default() };
    let (mut wrong, mut seen): (Option<DataError>, _) = (None, Vec::new());
    for split in config.splits() {
        let progress = Progress::new();
        let found = scan(&config, split, &options, &|done, total| progress.set(&format!("{}: scanning", split.key()), done, total));
        progress.finish();
        let unusable = match found {
            Ok(found) => {
                report(split, &found).iter().for_each(|line| say(line));
                let bad = found.too_many_bad();
                for (other, before) in &seen {
                    let told = overlap((*other, before), (split, &found));
                    told.into_iter().chain(leaks((*other, before), (split, &found))).for_each(|line| say(&line));
                }
                seen.push((split, found));
                bad
            }
            Err(DataError::Missing { path, .. }) if split == Split::Test => {
                say(&absent(&path));
                None
            }
            Err(error) => {
                // The first ends the program, and is told then.
                if wrong.is_some() {
                    say(&format!("{}: {error}", split.key()));
                }
                Some(error)
            }
        };
        wrong = wrong.or(unusable);
    }
    // What is two splits at once was looked at once.
    let train = seen.iter().find(|(split, _)| *split == Split::Train);
    let same = |split: &Split| !config.splits().contains(split) && config.sources(*split) == config.sources(Split::Train);
    for split in Split::ALL.into_iter().filter(same) {
        train.and_then(|(train, found)| overlap((*train, found), (split, found))).iter().for_each(|line| say(line));
    }
    wrong.map_or(Ok(()), |error| Err(error.into()))
}

/// What is said of a test split that is not there: nobody trains on it, and of a download it is often left out.
fn absent(path: &Path) -> String {
    format!("test: {} is not there; training does without, `val --split test` does not", path.display())
}

fn stats(m: &ArgMatches) -> Result<(), Failure> {
    let config = opened(m)?;
    let of_the_data =
        Layer { origin: format!("{}, settings", config.yaml.display()), values: config.settings.clone().into_iter().collect() };
    let levels = TrainConfig::from_layers(&[of_the_data])?.levels();
    let options = ScanOptions { allow_bad: true, ..ScanOptions::default() };
    let mut normalisation = None;
    let mut all = Vec::new();
    for split in config.splits() {
        let progress = Progress::new();
        let found = scan(&config, split, &options, &|done, total| progress.set(&format!("{}: scanning", split.key()), done, total));
        let found = match found {
            Err(DataError::Missing { path, .. }) if split == Split::Test => {
                progress.finish();
                say(&absent(&path));
                continue;
            }
            found => found?,
        };
        // The first split is training where there is one: the levels that training takes.
        let normalisation = *normalisation.insert(match normalisation {
            Some(known) => known,
            None => levels.resolve(&found, options.cache_dir.as_deref())?,
        });
        let set = YoloDataset::new(found, config.channels, normalisation);
        let stats = SplitStats::of(split, &set, config.names.len(), &|done, total| {
            progress.set(&format!("{}: decoding", split.key()), done, total)
        });
        progress.finish();
        tell(&stats, &config.names);
        all.push(stats);
    }
    match m.get_one::<PathBuf>("out") {
        Some(out) => keep(&all, &config.names, out),
        None => Ok(()),
    }
}

fn tell(stats: &SplitStats, names: &[String]) {
    let share = |n: usize| 100.0 * n as f64 / stats.images.max(1) as f64;
    let key = stats.split.key();
    say(&format!("\n{key}: {} images, {} empty ({:.1} %), {} objects", stats.images, stats.empty, share(stats.empty), stats.objects()));
    let (most, mean) = (stats.per_image.iter().max().unwrap_or(&0), stats.objects() as f64 / stats.images.max(1) as f64);
    say(&format!("  objects per image: {mean:.2} on average, {most} at most"));
    let mut gray = stats.brightness.clone();
    gray.sort_unstable_by(f32::total_cmp);
    let at = |percent: usize| gray.get((gray.len().max(1) - 1) * percent / 100).copied().unwrap_or(0.0);
    say(&format!("  brightness of {} images: median {:.0}, 5 to 95 % {:.0} to {:.0} of 255", gray.len(), at(50), at(5), at(95)));
    let sizes = stats.sizes.iter().take(5).map(|(size, n)| format!("{}x{} ({n})", size.width, size.height));
    let more = if stats.sizes.len() > 5 { format!(" and {} more", stats.sizes.len() - 5) } else { String::new() };
    say(&format!("  image sizes: {}{more}", sizes.collect::<Vec<_>>().join(", ")));
    let wide = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).clamp(5, 24);
    let columns = ["objects", "small", "medium", "large", "images"].map(|c| format!("{c:>10}")).concat();
    say(&format!("  {:<wide$}{columns}", "class"));
    for [_, _, name, objects, small, medium, large, images] in stats.class_rows(names) {
        let cells = [objects, small, medium, large, images].map(|c| format!("{c:>10}")).concat();
        say(&format!("  {:<wide$}{cells}", name.chars().take(wide).collect::<String>()));
    }
}

/// The same as files.
fn keep(all: &[SplitStats], names: &[String], out: &Path) -> Result<(), Failure> {
    let as_csv = |cell: &str| if cell.contains([',', '"', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() };
    let mut classes = String::from("split,class,name,objects,small,medium,large,images\n");
    let mut sizes = String::from("split,width,height,images\n");
    for stats in all {
        for row in stats.class_rows(names) {
            classes.push_str(&(row.map(|cell| as_csv(&cell)).join(",") + "\n"));
        }
        stats.sizes.iter().for_each(|(size, n)| sizes.push_str(&format!("{},{},{},{n}\n", stats.split.key(), size.width, size.height)));
    }
    let picture = out.join("stats.png");
    let bytes = data_chart(all, names, &picture).context(Exit::Failed, "drawing the picture")?;
    std::fs::create_dir_all(out).context(Exit::Failed, out.display())?;
    for (name, bytes) in [("stats.csv", classes.as_bytes()), ("sizes.csv", sizes.as_bytes()), ("stats.png", &bytes)] {
        std::fs::write(out.join(name), bytes).context(Exit::Failed, out.join(name).display())?;
    }
    say(&format!("\n{}: stats.csv, sizes.csv, stats.png", out.display()));
    Ok(())
}

fn index(m: &ArgMatches) -> Result<(), Failure> {
    let folder = PathBuf::from(text(m, "data").unwrap_or_default());
    let mut bar = Bar::new("", 0);
    let samples = index_shards(&folder, &mut |done, total| bar.set("reading".into(), done, total))?;
    bar.finish("");
    say(&format!("{}: {samples} samples", folder.display()));
    Ok(())
}

fn rewrite(m: &ArgMatches, form: Form, signals: &Signals) -> Result<(), Failure> {
    let config = opened(m)?;
    let images = match m.try_get_one::<String>("images").ok().flatten().map(String::as_str) {
        Some("copy") => Images::Copy,
        Some("none") => Images::None,
        _ => Images::Link,
    };
    let out = m.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    let options = ScanOptions { allow_bad: m.get_flag("allow-bad"), ..ScanOptions::default() };
    let out = std::path::absolute(&out).context(Exit::Usage, out.display())?;
    // A signal takes the unfinished folder away.
    let unfinished = partial(&out);
    let ((), _taken) = signals.take(|| Ok(((), move || drop(std::fs::remove_dir_all(unfinished)))))?;
    let progress = Progress::new();
    let made = convert(&config, form, images, &out, &options, &|what, done, total| progress.set(what, done, total))?;
    progress.finish();
    made.lines.iter().for_each(|line| say(line));
    let mut line = format!("{}: {} images, {} objects", out.display(), made.images, made.objects);
    for (n, what) in [(made.renamed, "renamed because another has their name"), (made.copied, "copied because they cannot be linked")] {
        if n > 0 {
            line.push_str(&format!(", {n} {what}"));
        }
    }
    say(&line);
    let split = if config.train.is_empty() || config.hold_out { "; `val` is for you to name in its data.yaml" } else { "" };
    say(&format!("train with --data {}{split}", quoted(&out.join("data.yaml"))));
    Ok(())
}

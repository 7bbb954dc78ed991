//! `data shard` and `data index`: rows in tar archives.

use std::path::PathBuf;

use bellows_chat::{ReadOptions, Splits, index_shards};
use bellows_cli::{Bar, Failure, count, option, say, text, whole};
use clap::{ArgMatches, Command};

/// The two verbs.
pub(crate) fn commands() -> [Command; 2] {
    [
        Command::new("shard")
            .about("Writes the rows of a data set into tar archives (WebDataset's layout) with an index; the source stays as it is")
            .arg(option("data", "A file of rows, or a folder with train.jsonl and so on").required(true))
            .arg(option("out", "Where to: a new or an empty folder").value_name("DIR").required(true))
            .arg(count("samples", "10000", "Rows of a shard")),
        Command::new("index")
            .about("Writes the index of tar archives that another program wrote, beside them")
            .arg(option("data", "The folder they lie in").required(true)),
    ]
}

fn path(m: &ArgMatches, name: &str) -> PathBuf {
    text(m, name).map(PathBuf::from).unwrap_or_default()
}

pub(crate) fn shard(m: &ArgMatches) -> Result<(), Failure> {
    let (data, out) = (path(m, "data"), path(m, "out"));
    let splits = Splits::open(&data, &ReadOptions::default())?;
    let mut bar = Bar::new("", 0);
    let written =
        bellows_chat::shard(&splits, &out, whole(m, "samples").max(1), &mut |done, total| bar.set("writing".into(), done, total))?;
    bar.finish("");
    for (split, rows, shards) in written {
        say(&format!("{split}: {rows} rows in {shards} shards"));
    }
    say(&format!("train with --data {}", out.display()));
    Ok(())
}

pub(crate) fn index(m: &ArgMatches) -> Result<(), Failure> {
    let folder = path(m, "data");
    let mut bar = Bar::new("", 0);
    let samples = index_shards(&folder, &mut |done, total| bar.set("reading".into(), done, total))?;
    bar.finish("");
    say(&format!("{}: {samples} samples", folder.display()));
    Ok(())
}

//! `data shard` and `data index`: rows in tar archives.

use std::path::PathBuf;

use bellows_chat::{ReadOptions, Splits, index_shards};
use bellows_cli::{Bar, Failure, count, flag, flag_values, option, quoted, say, text, whole};
use bellows_qwen::config::{SETTINGS, SftConfig};
use bellows_settings::{Layer, Setting};
use clap::{ArgMatches, Command};

/// The settings under whose keys a cell of a table may be a chat, and a line of text lies.
fn keys() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| ["text_key", "prompt_key", "completion_key"].contains(&setting.name))
}

/// The two verbs.
pub(crate) fn commands() -> [Command; 2] {
    let defaults = serde_json::to_value(SftConfig::default()).unwrap_or_default();
    [
        Command::new("shard")
            .about("Writes the rows of a data set into tar archives (WebDataset's layout) with an index; the source stays as it is")
            .arg(option("data", "A file of rows, or a folder with train.jsonl and so on").required(true))
            .arg(option("out", "Where to: a new or an empty folder").value_name("DIR").required(true))
            .arg(count("samples", "10000", "Rows of a shard"))
            .args(keys().map(|setting| flag(setting, &defaults))),
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
    let values = flag_values(keys().map(|setting| (setting.key(), setting.read)), m);
    let config = SftConfig::from_layers(&[Layer { origin: "command line".into(), values }])?;
    // Whether pairs are learnt from is for whoever trains to say.
    let splits = Splits::open(&data, &ReadOptions { pairs: None, ..config.reading() })?;
    let mut bar = Bar::new("", 0);
    let written =
        bellows_chat::shard(&splits, &out, whole(m, "samples").max(1), &mut |done, total| bar.set("writing".into(), done, total))?;
    bar.finish("");
    for (split, rows, shards) in written {
        say(&format!("{split}: {rows} rows in {shards} shards"));
    }
    say(&format!("train with --data {}", quoted(&out)));
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

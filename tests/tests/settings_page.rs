//! The tables of `docs/settings.md`, which are made from the tables of settings: this says when they are stale, and renews them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use bellows_qwen::config::SftConfig;
use bellows_settings::Setting;
use bellows_yolo::config::TrainConfig;
use serde::Serialize;
use serde_json::Value;

const RENEW: &str = "BELLOWS_BLESS=1 cargo test --release -p bellows-tests settings_page";

fn default(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) if text.is_empty() => "none".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "none".into(),
        Value::Array(list) => format!("[{}]", list.iter().map(default).collect::<Vec<_>>().join(", ")),
        Value::Object(map) if map.is_empty() => "none".into(),
        other => other.to_string(),
    }
}

/// A row a setting, under headings of their groups.
fn table(settings: &[Setting], defaults: &impl Serialize) -> String {
    let defaults = serde_json::to_value(defaults).unwrap();
    let mut text = String::from("| setting | default | what it does |\n| --- | --- | --- |\n");
    let mut group = "";
    for setting in settings {
        if setting.group != group {
            group = setting.group;
            text.push_str(&format!("| **{group}** | | |\n"));
        }
        let said = [setting.help, setting.more].map(str::trim).into_iter().filter(|said| !said.is_empty());
        let what = said.collect::<Vec<_>>().join("; ").replace('|', "\\|");
        text.push_str(&format!("| `{}` | {} | {what} |\n", setting.key(), default(&defaults[setting.name])));
    }
    text
}

/// `page` with `table` between the marks of `program`.
fn renewed(page: &str, program: &str, table: &str) -> String {
    let begin = format!("<!-- generated: {program} -->\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    format!("{before}{begin}{table}<!-- end -->{after}")
}

#[test]
fn the_page_of_settings_is_that_of_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/settings.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let fresh = renewed(&page, "yolo-train", &table(bellows_yolo::config::SETTINGS, &TrainConfig::default()));
    let fresh = renewed(&fresh, "llm-finetune", &table(bellows_qwen::config::SETTINGS, &SftConfig::default()));
    if std::env::var_os("BELLOWS_BLESS").is_some() {
        std::fs::write(&path, fresh).unwrap();
        return;
    }
    let stale = page.lines().zip(fresh.lines()).find(|(old, new)| old != new);
    assert!(page == fresh, "docs/settings.md is stale ({stale:?}): renew it with\n{RENEW}");
}

#[test]
fn a_stale_table_is_replaced_and_the_prose_stays() {
    let page = "# A\n<!-- generated: a -->\nold\n<!-- end -->\nprose\n<!-- generated: b -->\n<!-- end -->\n";
    let fresh = renewed(&renewed(page, "a", "new\n"), "b", "more\n");
    assert_eq!(fresh, "# A\n<!-- generated: a -->\nnew\n<!-- end -->\nprose\n<!-- generated: b -->\nmore\n<!-- end -->\n");
}

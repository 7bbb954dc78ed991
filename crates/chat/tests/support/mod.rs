//! What the tests share: fixtures, the real tokenizers where they have been fetched, a small one where not.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test uses a part of it, may panic, and says what it skips"
)]

use std::path::PathBuf;

use bellows_chat::{Conversation, Message, Role, Tokenizer, ToolCall};
use serde_json::Value;

/// The folder of a model that `.ci/assets` fetches; None, with a message, if it has not.
pub fn asset(model: &str) -> Option<PathBuf> {
    let cache = || Some(std::env::var_os("XDG_CACHE_HOME").map_or_else(home_cache, PathBuf::from).join("bellows/assets"));
    let dir = std::env::var_os("BELLOWS_ASSETS").map(PathBuf::from).or_else(cache)?.join(model);
    if dir.join("tokenizer.json").is_file() && dir.join("tokenizer_config.json").is_file() {
        return Some(dir);
    }
    println!("skipped: {} is not there; .ci/assets fetches it", dir.display());
    None
}

fn home_cache() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache")
}

pub fn tiny() -> Tokenizer {
    Tokenizer::byte_level(["iron iron glows orange orange orange", "the fire the forge"], 40).unwrap()
}

/// A conversation as the fixtures write it, without the checks of a data set.
pub fn conversation(case: &Value) -> Conversation {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let message = |value: &Value| Message {
        role: match value["role"].as_str().unwrap() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => panic!("{other}"),
        },
        content: text(&value["content"]),
        reasoning: value.get("reasoning_content").map(text),
        tool_calls: value["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| ToolCall { name: text(&call["function"]["name"]), arguments: call["function"]["arguments"].clone() })
            .collect(),
        train: None,
    };
    Conversation {
        messages: case["messages"].as_array().unwrap().iter().map(message).collect(),
        tools: case["tools"].as_array().unwrap().clone(),
    }
}

pub fn cases() -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/templates.json")).unwrap();
    assert!(cases.len() > 60);
    cases
}

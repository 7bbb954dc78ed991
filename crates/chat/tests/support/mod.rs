//! What the tests share: fixtures, the real tokenizers where they have been fetched, a small one where not.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it, and may panic")]

pub mod assets;

use std::path::PathBuf;

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, Tokenizer, ToolCall};
use serde_json::Value;

/// The folder of a real tokenizer.
pub fn tokenizer(model: &str) -> Option<PathBuf> {
    assets::asset(model, &["tokenizer.json", "tokenizer_config.json"])
}

pub fn tiny() -> Tokenizer {
    Tokenizer::byte_level(["iron iron glows orange orange orange", "the fire the forge"], 40).unwrap()
}

/// A conversation as the fixtures write it, without the checks of a data set.
pub fn conversation(case: &Value) -> Conversation {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let role = |value: &Value| match value["role"].as_str().unwrap() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => panic!("{other}"),
    };
    let message = |value: &Value| Message {
        reasoning: value.get("reasoning_content").map(text),
        tool_calls: value["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| ToolCall { name: text(&call["function"]["name"]), arguments: call["function"]["arguments"].clone() })
            .collect(),
        ..Message::new(role(value), text(&value["content"]))
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

pub fn options(case: &Value) -> RenderOptions {
    RenderOptions { generation_prompt: case["prompt"].as_bool().unwrap(), thinking: case["thinking"].as_bool(), special_in_content: false }
}

/// Every case of the templates that `template` has, as transformers renders it; at least so many.
pub fn check_all(template: impl Fn(&str) -> Option<Template>, expected: usize) {
    let mut checked = 0;
    for case in cases() {
        let Some(template) = template(case["template"].as_str().unwrap()) else { continue };
        let text = template.render(&conversation(&case), options(&case));
        assert_eq!(text.unwrap(), case["text"].as_str().unwrap(), "{} {}", case["template"], case["name"]);
        checked += 1;
    }
    assert!(checked >= expected, "{checked}");
}

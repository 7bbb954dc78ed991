//! The Go templates of Modelfiles against the chat templates they stand for. Runs where `BELLOWS_GO` names the Go tool (Debian: golang-go).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::process::{Command, Stdio};

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, ToolCall};
use bellows_qwen::modelfile::modelfile;
use serde_json::{Value, json};

/// Renders `{template, messages, tools, thinking}` from standard input. The types print as those of Ollama's `api` package do: as JSON.
const PROGRAM: &str = r#"package main

import (
	"encoding/json"
	"os"
	"text/template"
)

type JSON map[string]any

func (j JSON) String() string { text, _ := json.Marshal(j); return string(text) }

type Function struct { Name string; Arguments JSON }
type Call struct { Function Function }
type Message struct { Role, Content, Thinking string; ToolCalls []Call }
type Tool struct { Function JSON }
type Input struct { Template string; Messages []Message; Tools []Tool; IsThinkSet, Think bool }

func main() {
	var in Input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil { panic(err) }
	if err := template.Must(template.New("").Parse(in.Template)).Execute(os.Stdout, in); err != nil { panic(err) }
}
"#;

fn rendered(program: &std::path::Path, input: &Value) -> String {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// The text with every line of JSON as serde_json writes it: Go leaves out spaces and sorts keys.
fn even(text: &str) -> String {
    fn sorted(value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(pairs.into_iter().collect())
            }
            other => other,
        }
    }
    let line = |line: &str| serde_json::from_str::<Value>(line).map_or_else(|_| line.to_owned(), |value| sorted(value).to_string());
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn conversations() -> Vec<Conversation> {
    use Role::{Assistant, System, Tool, User};
    let say = |role, text: &str| Message::new(role, text);
    let call = |arguments| ToolCall { name: "f".into(), arguments };
    let calling = |text: &str, tool_calls| Message { tool_calls, ..say(Assistant, text) };
    let thought = |message: Message| Message { reasoning: Some("why".into()), ..message };
    let calls = vec![
        say(System, "s"),
        say(User, "a"),
        thought(calling("", vec![call(json!({"x": 1})), call(json!({}))])),
        say(Tool, "1"),
        say(Tool, "2"),
        thought(calling("wait", vec![call(json!({"x": "y"}))])),
        say(Tool, "3"),
    ];
    let tools = vec![json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})];
    let talks = vec![
        vec![say(System, "s"), say(User, "a")],
        vec![say(System, "s"), say(User, "a"), say(Assistant, "b"), say(User, "c"), thought(say(Assistant, "d")), say(User, "e")],
        vec![say(System, "s"), say(User, "a"), say(Assistant, "b"), say(System, "t"), say(User, "c")],
        vec![say(System, "s"), say(User, "a"), say(Assistant, ""), say(User, "c"), say(Assistant, "d")],
        calls.clone(),
    ];
    let plain = talks.into_iter().map(|messages| Conversation { messages, tools: vec![] });
    let headless = calls[1..].to_vec();
    plain.chain([calls, headless].map(|messages| Conversation { messages, tools: tools.clone() })).collect()
}

#[test]
fn go_renders_what_the_model_was_trained_with() {
    let Some(go) = std::env::var_os("BELLOWS_GO") else {
        writeln!(std::io::stderr(), "skipped: set BELLOWS_GO to the Go tool to render Modelfiles").unwrap();
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("main.go"), dir.path().join("render"));
    std::fs::write(&source, PROGRAM).unwrap();
    let cache = dir.path().join("cache");
    let built = Command::new(go).args(["build", "-o"]).arg(&program).arg(&source).env("GOCACHE", cache).env("GO111MODULE", "off").status();
    assert!(built.unwrap().success());
    let mut checked = 0;
    for template in [Template::ChatMl, Template::Qwen25, Template::Qwen3] {
        let text = modelfile("m", None, None, Some(&template));
        let turns = text.split("\"\"\"").nth(1).unwrap();
        for conversation in conversations() {
            for thinking in [true, false] {
                let options = RenderOptions { generation_prompt: true, thinking, ..RenderOptions::default() };
                // Plain ChatML refuses tools, and Qwen2.5 has a system message of its own, which is the Modelfile's to give.
                let headed = conversation.messages[0].role == Role::System;
                let Ok(expected) = template.render(&conversation, options) else { continue };
                if template.name() == "qwen2.5" && !headed {
                    continue;
                }
                let message = |m: &Message| {
                    let calls: Vec<Value> =
                        m.tool_calls.iter().map(|c| json!({ "Function": { "Name": c.name, "Arguments": c.arguments } })).collect();
                    json!({ "Role": m.role.name(), "Content": m.content, "Thinking": m.reasoning.clone().unwrap_or_default(), "ToolCalls": calls })
                };
                let input = json!({
                    "Template": turns,
                    "Messages": conversation.messages.iter().map(message).collect::<Vec<_>>(),
                    "Tools": conversation.tools.iter().map(|tool| json!({ "Function": tool["function"] })).collect::<Vec<_>>(),
                    "IsThinkSet": true,
                    "Think": thinking,
                });
                assert_eq!(even(&rendered(&program, &input)), even(&expected), "{}", template.name());
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

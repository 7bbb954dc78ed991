//! The Go templates of Modelfiles against the chat templates they stand for. Runs where `BELLOWS_GO` names the Go tool (Debian: golang-go).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::process::{Command, Stdio};

use bellows_chat::{Conversation, Jinja, Message, RenderOptions, Role, Template, ToolCall};
use bellows_qwen::base::Base;
use bellows_qwen::modelfile::modelfile;
use burn::tensor::Device;
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

/// Chat templates as families of models have them, in Jinja of ours.
const FAMILIES: [(&str, &str); 6] = [
    (
        "llama 3",
        "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content ~ '<|eot_id|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    (
        "llama 3.2, whose system turn is always there",
        "{% set headed = messages[0].role == 'system' %}{{ '<|start_header_id|>system<|end_header_id|>\n\nToday: \"1 \\\\ 2\"\n\n' ~ (messages[0].content if headed else '') ~ '<|eot_id|>' }}\
         {% for m in (messages[1:] if headed else messages) %}{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content ~ '<|eot_id|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    (
        "llama 2, with the system message in the first question",
        "{% set headed = messages[0].role == 'system' %}{% set talk = messages[1:] if headed else messages %}{% for m in talk %}{% if m.role == 'user' %}\
         {{ '<s>[INST] ' ~ ('<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' if headed and loop.first else '') ~ m.content ~ ' [/INST]' }}\
         {% elif m.role == 'assistant' %}{{ ' ' ~ m.content ~ ' </s>' }}{% else %}{{ raise_exception('turns') }}{% endif %}{% endfor %}",
    ),
    (
        "mistral, with it in the last",
        "{% set headed = messages[0].role == 'system' %}{% set talk = messages[1:] if headed else messages %}{{ '<s>' }}{% for m in talk %}{% if m.role == 'user' %}\
         {% set last = talk[loop.index0:] | selectattr('role', 'equalto', 'user') | list | length == 1 %}\
         {{ '[INST] ' ~ (messages[0].content ~ '\n\n' if headed and last else '') ~ m.content ~ '[/INST]' }}\
         {% elif m.role == 'assistant' %}{{ ' ' ~ m.content ~ '</s>' }}{% else %}{{ raise_exception('turns') }}{% endif %}{% endfor %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '</s>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ),
    (
        "deepseek's distillates, which always think",
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<User>' ~ m.content }}{% elif m.role == 'assistant' %}{{ '<Assistant>' ~ m.content ~ '<end>' }}\
         {% elif loop.first %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<Assistant><think>\n' }}{% endif %}",
    ),
];

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
    let tokenizer = Base::tiny(["a b"], 0, &Device::flex()).unwrap().tokenizer;
    let jinja = |source: &str| Template::Jinja(Jinja::new(source, &tokenizer).unwrap());
    let always = Template::Qwen3.source().rsplit_once("{%- if add_generation_prompt").unwrap().0.to_owned();
    let always = always + "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}";
    let built_in = [Template::ChatMl, Template::Qwen25, Template::Qwen3, jinja(&always)].map(|template| (template.name(), template));
    for (family, template) in built_in.into_iter().chain(FAMILIES.map(|(family, source)| (family, jinja(source)))) {
        let text = modelfile("m", None, None, Some(&template), &tokenizer);
        let turns = text.split("\"\"\"").nth(1).unwrap_or_else(|| panic!("{family}: {text}"));
        let (regular, before) = (FAMILIES.iter().any(|(name, _)| *name == family), checked);
        for conversation in conversations() {
            // Turns alone are written of a family's, and a late system message is no turn of some.
            let plain = |m: &Message| m.role != Role::Tool && m.tool_calls.is_empty();
            let late = conversation.messages.iter().skip(1).any(|m| m.role == Role::System) && !turns.contains("(gt $i 0)");
            if regular && (late || !conversation.tools.is_empty() || !conversation.messages.iter().all(plain)) {
                continue;
            }
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
                assert_eq!(even(&rendered(&program, &input)), even(&expected), "{family}");
                checked += 1;
            }
        }
        assert!(checked > before + 5, "{family}: {}", checked - before);
    }
    assert!(checked > 20, "{checked}");
}

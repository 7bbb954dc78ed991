//! The Go templates of Modelfiles against the chat templates they stand for. Runs where `BELLOWS_GO` names the Go tool (Debian: golang-go).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bellows_chat::{Conversation, Jinja, Message, RenderOptions, Role, Template, ToolCall};
use bellows_qwen::base::Base;
use bellows_qwen::modelfile::modelfile;
use burn::tensor::Device;
use serde_json::{Value, json};

/// Renders `{template, messages, tools, thinking}` from standard input, or with `tag` tells after which text Ollama looks for calls in an answer: the
/// first one under the first `if .ToolCalls`, without the call itself. Types print as Ollama's do: lists of tools, tools and arguments as JSON.
const PROGRAM: &str = r#"package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
	"text/template/parse"
)

func dump(v any) string { text, _ := json.Marshal(v); return string(text) }

type JSON map[string]any
type Tool struct { Type string `json:"type"`; Function map[string]any `json:"function"` }
type Tools []Tool

func (j JSON) String() string { return dump(j) }
func (t Tool) String() string { return dump(t) }
func (t Tools) String() string { return dump(t) }

type Function struct { Name string; Arguments JSON }
type Call struct { ID string; Function Function }
type Message struct { Role, Content, Thinking, ToolCallID string; ToolCalls []Call }
type Input struct { Template string; Messages []Message; Tools Tools; IsThinkSet, Think, Tag bool }

// Of nodes in their order: the first that `here` takes; what it answers is the answer.
func first(nodes []parse.Node, here func(parse.Node) (string, bool)) (string, bool) {
	for _, node := range nodes {
		if text, found := here(node); found { return text, true }
		var branch *parse.BranchNode
		switch node := node.(type) {
		case *parse.IfNode: branch = &node.BranchNode
		case *parse.RangeNode: branch = &node.BranchNode
		default: continue
		}
		below := append([]parse.Node{}, branch.List.Nodes...)
		if branch.ElseList != nil { below = append(below, branch.ElseList.Nodes...) }
		if text, found := first(below, here); found { return text, true }
	}
	return "", false
}

func tag(root *parse.ListNode) string {
	written := func(node parse.Node) (string, bool) {
		if text, ok := node.(*parse.TextNode); ok { return string(text.Text), true }
		_, ok := node.(*parse.ActionNode)
		return "", ok
	}
	text, _ := first(root.Nodes, func(node parse.Node) (string, bool) {
		branch, ok := node.(*parse.IfNode)
		if !ok || branch.Pipe.String() != ".ToolCalls" { return "", false }
		text, _ := first(branch.List.Nodes, written)
		return text, true
	})
	text, _, _ = strings.Cut(text, "{")
	return strings.TrimSpace(text)
}

func main() {
	var in Input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil { panic(err) }
	parsed := template.Must(template.New("").Parse(in.Template))
	if in.Tag {
		fmt.Print(tag(parsed.Root))
	} else if err := parsed.Execute(os.Stdout, in); err != nil { panic(err) }
}
"#;

/// The program and the folder that it lies in; None without Go.
#[expect(clippy::print_stderr, reason = "a test that is skipped must say so")]
fn program() -> Option<(tempfile::TempDir, PathBuf)> {
    let Some(go) = std::env::var_os("BELLOWS_GO") else {
        eprintln!("skipped: set BELLOWS_GO to the Go tool to render Modelfiles");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("main.go"), dir.path().join("render"));
    std::fs::write(&source, PROGRAM).unwrap();
    let cache = dir.path().join("cache");
    let built = Command::new(go).args(["build", "-o"]).arg(&program).arg(&source).env("GOCACHE", cache).env("GO111MODULE", "off").status();
    assert!(built.unwrap().success());
    Some((dir, program))
}

fn rendered(program: &Path, input: &Value) -> String {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// The text with all JSON in it as serde_json writes it: Go leaves out spaces and sorts keys.
fn even(text: &str) -> String {
    fn sorted(value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(pairs.into_iter().collect())
            }
            Value::Array(list) => list.into_iter().map(sorted).collect(),
            other => other,
        }
    }
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['{', '[']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let end = match values.next() {
            Some(Ok(value)) => {
                out.push_str(&sorted(value).to_string());
                values.byte_offset()
            }
            _ => {
                out.push_str(&rest[..1]);
                1
            }
        };
        rest = &rest[end..];
    }
    out + rest
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
    let Some((_dir, program)) = program() else { return };
    let mut checked = 0;
    let tokenizer = Base::tiny(["a b"], 0, &Device::flex()).unwrap().tokenizer;
    let jinja = |source: &str| Template::Jinja(Jinja::new(source, &tokenizer).unwrap());
    let always = Template::Qwen3.source().rsplit_once("{%- if add_generation_prompt").unwrap().0.to_owned();
    let always = always + "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}";
    let built_in = [Template::ChatMl, Template::Qwen25, Template::Qwen3, jinja(&always)].map(|template| (template.name(), template));
    for (family, template) in built_in.into_iter().chain(FAMILIES.map(|(family, source)| (family, jinja(source)))) {
        let text = modelfile("m", None, None, Some(&template), &tokenizer);
        let turns = text.split("\"\"\"").nth(1).unwrap_or_else(|| panic!("{family}: {text}"));
        let tag = if turns.contains("<tool_call>") { "<tool_call>" } else { "" };
        assert_eq!(rendered(&program, &json!({ "Template": turns, "Tag": true })), tag, "{family}");
        let (regular, before) = (FAMILIES.iter().any(|(name, _)| *name == family), checked);
        for conversation in conversations() {
            // Turns alone are written of a family's, and a late system message is no turn of some.
            let plain = |m: &Message| m.role != Role::Tool && m.tool_calls.is_empty();
            let late = conversation.messages.iter().skip(1).any(|m| m.role == Role::System) && !turns.contains("(gt $i 0)");
            if regular && (late || !conversation.tools.is_empty() || !conversation.messages.iter().all(plain)) {
                continue;
            }
            for thinking in [true, false] {
                let options = RenderOptions { generation_prompt: true, thinking: Some(thinking), ..RenderOptions::default() };
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
                    "Tools": conversation.tools,
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

/// Messages and tools as `transformers` takes them, with ids of calls.
fn talks_with_tools() -> Vec<[Value; 2]> {
    let say = |role: &str, text: &str| json!({ "role": role, "content": text });
    let call = |id: &str, arguments: Value| json!({ "type": "function", "function": { "name": "f", "arguments": arguments }, "id": id });
    let calling = |calls: Vec<Value>| json!({ "role": "assistant", "content": "", "tool_calls": calls });
    let result = |id: &str, text: &str| json!({ "role": "tool", "content": text, "tool_call_id": id });
    let f = json!({ "name": "f", "description": "d \u{fc} <", "parameters": { "type": "object", "properties": { "x": { "type": "string" } } } });
    let tools = json!([{ "type": "function", "function": f }, { "type": "function", "function": { "name": "g", "parameters": {} } }]);
    let called = [
        say("system", "s"),
        say("user", "a"),
        calling(vec![call("abcdefgh1", json!({ "x": "\u{fc} \"<", "y": [1, { "z": 2.5, "a": null }] }))]),
        result("abcdefgh1", "{\"t\": \"<\u{fc}>\\n\"}"),
        say("assistant", "it is"),
        say("user", "a"),
        calling(vec![call("abcdefgh2", json!({}))]),
        result("abcdefgh2", "two\nlines & \"more\""),
        say("assistant", "and so"),
    ];
    // Cut off wherever an answer is asked for, with a system message and without.
    let cuts = [2, 4, 6, 8].map(|end| &called[..end]).into_iter().chain([2, 4, 8].map(|end| &called[1..end]));
    let several =
        [say("user", "a"), calling(vec![call("abcdefgh1", json!({ "x": 1 })), call("abcdefgh2", json!({}))]), result("abcdefgh1", "1")];
    let plain =
        [&[say("user", "a")][..], &[say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c")]].map(|talk| json!(talk));
    let plain = plain.map(|talk| [talk, Value::Null]).into_iter();
    plain
        .chain(cuts.map(|talk| [json!(talk), tools.clone()]))
        .chain([[json!(several), tools.clone()], [json!(called), Value::Null]])
        .collect()
}

#[test]
fn go_renders_calls_as_llama_and_mistral_were_trained_with() {
    let Some((_dir, program)) = program() else { return };
    let tokenizer = Base::tiny(["a b"], 0, &Device::flex()).unwrap().tokenizer;
    let mistral = include_str!("../src/modelfile/mistral.jinja");
    let mut families = vec![
        ("llama 3".to_owned(), include_str!("../src/modelfile/llama3.jinja").to_owned(), ""),
        ("mistral v0.3".to_owned(), format!("{{%- set gap = ' ' -%}}\n{mistral}"), "[TOOL_CALLS]"),
        ("mistral nemo".to_owned(), format!("{{%- set gap = '' -%}}\n{mistral}"), "[TOOL_CALLS]"),
    ];
    // The models' own, from the folder trl/chat_templates of TRL's wheel.
    if let Some(dir) = std::env::var_os("BELLOWS_TRL_TEMPLATES").map(PathBuf::from) {
        let own =
            ["llama3_1", "llama3_2"].map(|name| (name.to_owned(), std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap(), ""));
        families.extend(own);
    }
    for (family, source, tag) in families {
        let jinja = Jinja::new(&source, &tokenizer).unwrap();
        let text = modelfile("m", None, None, Some(&Template::Jinja(jinja.clone())), &tokenizer);
        let turns = text.split("\"\"\"").nth(1).unwrap_or_else(|| panic!("{family}: {text}"));
        assert_eq!(rendered(&program, &json!({ "Template": turns, "Tag": true })), tag, "{family}");
        let mut checked = 0;
        for [messages, tools] in talks_with_tools() {
            // Llama's refuse several calls at once.
            let options = RenderOptions { generation_prompt: true, ..RenderOptions::default() };
            let Ok(expected) = jinja.render_json(&messages, &tools, options) else { continue };
            let message = |m: &Value| {
                let call = |c: &Value| json!({ "ID": c["id"], "Function": { "Name": c["function"]["name"], "Arguments": c["function"]["arguments"] } });
                let calls: Vec<Value> = m["tool_calls"].as_array().into_iter().flatten().map(call).collect();
                json!({ "Role": m["role"], "Content": m["content"], "ToolCallID": m["tool_call_id"], "ToolCalls": calls })
            };
            let messages: Vec<Value> = messages.as_array().into_iter().flatten().map(message).collect();
            let input = json!({ "Template": turns, "Messages": messages, "Tools": tools });
            assert_eq!(even(&rendered(&program, &input)), even(&expected), "{family}");
            checked += 1;
        }
        assert!(checked >= 10, "{family}: {checked}");
    }
}

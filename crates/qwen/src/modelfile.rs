//! An Ollama Modelfile. Ollama renders turns by a Go template of its own, not by the Jinja of a GGUF, so one is written that renders what the
//! model was trained with: tools and thoughts for Qwen2.5's and Qwen3's, text alone for plain ChatML.

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, ToolCall};

/// ChatML without tools. `.Messages` hold the system message too.
const CHATML: &str = include_str!("modelfile/chatml.tmpl");
const QWEN25: &str = include_str!("modelfile/qwen25.tmpl");
const QWEN3: &str = include_str!("modelfile/qwen3.tmpl");

/// A Modelfile for a model in `from` (a file or directory, from where the Modelfile lies), with an adapter if there is one. The system message
/// is this one or the template's own.
pub fn modelfile(from: &str, adapter: Option<&str>, system: Option<&str>, template: Option<&Template>) -> String {
    let adapter = adapter.map(|file| format!("ADAPTER {file}\n")).unwrap_or_default();
    let mut text = format!("FROM {from}\n{adapter}\n");
    match template.and_then(go) {
        Some(turns) => {
            if template.is_some_and(|template| turns == CHATML && has_tools(template)) {
                text.push_str("# The chat template has a place for tools, and the TEMPLATE below has none.\n");
            }
            text.push_str(&format!("TEMPLATE \"\"\"{turns}\"\"\"\n\nPARAMETER stop \"<|im_start|>\"\nPARAMETER stop \"<|im_end|>\"\n"));
        }
        None => {
            text.push_str(
                "# The chat template is not ChatML, and Ollama runs no Jinja. Without a TEMPLATE it compares the GGUF's template with those it \
                 knows;\n# if none is near, it sends your text without any turns. Write TEMPLATE \"\"\"..\"\"\" (a Go template) here then.\n",
            );
            if let Some(end) = template.and_then(Template::end_of_turn) {
                text.push_str(&format!("PARAMETER stop {end:?}\n"));
            }
        }
    }
    if let Some(system) = system.map(str::to_owned).or_else(|| template?.default_system()) {
        text.push_str(&format!("\nSYSTEM \"\"\"{}\"\"\"\n", system.replace("\"\"\"", "\"")));
    }
    text
}

/// The Go template that renders what `template` does.
fn go(template: &Template) -> Option<&'static str> {
    // The default system message is the Modelfile's.
    let alike = |built_in: &Template| {
        [false, true].iter().all(|&thinks| talk(template, thinks).is_some_and(|text| talk(built_in, thinks) == Some(text)))
    };
    [(Template::Qwen25, QWEN25), (Template::Qwen3, QWEN3)]
        .into_iter()
        .find_map(|(built_in, turns)| alike(&built_in).then_some(turns))
        .or_else(|| template.is_chatml().then_some(CHATML))
}

/// A talk with a call as `template` renders it; None if it refuses.
fn talk(template: &Template, thinks: bool) -> Option<String> {
    let call = ToolCall { name: "f".into(), arguments: serde_json::json!({ "a": 1 }) };
    let thought = thinks.then(|| "why".to_owned());
    let messages = vec![
        Message::new(Role::System, "s"),
        Message::new(Role::User, "a"),
        Message { tool_calls: vec![call], reasoning: thought.clone(), ..Message::new(Role::Assistant, "") },
        Message::new(Role::Tool, "1"),
        Message { reasoning: thought, ..Message::new(Role::Assistant, "b") },
    ];
    let tools = vec![serde_json::json!({ "type": "function", "function": { "name": "f" } })];
    template.render(&Conversation { messages, tools }, RenderOptions::default()).ok()
}

/// Whether functions on offer are written.
fn has_tools(template: &Template) -> bool {
    talk(template, false).is_some_and(|text| text.contains("\"name\": \"f\""))
}

#[cfg(test)]
mod tests {
    use bellows_chat::Jinja;
    use burn::tensor::Device;

    use super::*;
    use crate::base::Base;

    #[test]
    fn a_modelfile_has_the_turns_of_the_model_and_one_system_message() {
        let written = |template: &Template| modelfile("./m.gguf", None, None, Some(template));
        let plain = written(&Template::ChatMl);
        assert!(plain.starts_with("FROM ./m.gguf\n\nTEMPLATE \"\"\"{{- range .Messages }}<|im_start|>"), "{plain}");
        assert!(!plain.contains(".System") && !plain.contains("SYSTEM") && plain.contains("PARAMETER stop \"<|im_end|>\""), "{plain}");
        let qwen = written(&Template::Qwen25);
        assert!(qwen.contains(".Tools") && !qwen.contains(".Thinking"), "{qwen}");
        assert!(qwen.ends_with("\nSYSTEM \"\"\"You are Qwen, created by Alibaba Cloud. You are a helpful assistant.\"\"\"\n"), "{qwen}");
        let thinker = written(&Template::Qwen3);
        assert!(thinker.contains(".Tools") && thinker.contains(".Thinking") && !thinker.contains("\nSYSTEM"), "{thinker}");
        let own = modelfile("./m.gguf", Some("./a.gguf"), Some("Be brief."), Some(&Template::Qwen25));
        assert!(own.contains("ADAPTER ./a.gguf\n") && own.contains("SYSTEM \"\"\"Be brief.\"\"\"") && !own.contains("Alibaba"), "{own}");
    }

    #[test]
    fn of_other_templates_the_truth_is_told() {
        let tokenizer = Base::tiny(["a b"], 0, &Device::flex()).unwrap().tokenizer;
        let jinja = |source: &str| Template::Jinja(Jinja::new(source, &tokenizer).unwrap());
        let other = jinja("{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}");
        for (template, stop) in [(Some(&other), true), (None, false)] {
            let text = modelfile("./m.gguf", None, Some("Be brief."), template);
            assert!(text.contains("\n# The chat template is not ChatML, and Ollama runs no Jinja") && text.contains("SYSTEM"), "{text}");
            assert!(!text.contains("\nTEMPLATE") && !text.contains("im_"), "{text}");
            assert_eq!(text.contains("PARAMETER stop \"<|endoftext|>\""), stop, "{text}");
        }
        // Qwen3's without thoughts has Qwen2.5's turns.
        let default = "{%- set system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}";
        let instruct = jinja(&Template::Qwen25.source().replace(default, "{%- set system = none -%}"));
        let text = modelfile("./m.gguf", None, None, Some(&instruct));
        assert!(text.contains(".Tools") && !text.contains("SYSTEM"), "{text}");
        let tooled = jinja(&format!("{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{}", Template::ChatMl.source()));
        let text = modelfile("./m.gguf", None, None, Some(&tooled));
        assert!(text.contains("# The chat template has a place for tools") && text.contains("{{- range .Messages }}"), "{text}");
    }
}

//! An Ollama Modelfile. Ollama renders turns by a Go template of its own, not by the Jinja of a GGUF, so one is written that renders what the
//! model was trained with: tools and thoughts for Qwen2.5's and Qwen3's, tools for Llama 3's and Mistral's, text alone for other templates of a
//! regular shape.

mod families;
mod turns;

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, Tokenizer, ToolCall};
use families::Family;
use turns::{Turns, go_prompt, prompts};

/// ChatML without tools. `.Messages` hold the system message too.
const CHATML: &str = include_str!("modelfile/chatml.tmpl");
const QWEN25: &str = include_str!("modelfile/qwen25.tmpl");
const QWEN3: &str = include_str!("modelfile/qwen3.tmpl");

/// A Modelfile for a model in `from` (a file or directory, from where the Modelfile lies), with an adapter if there is one. The system message
/// is this one or the template's own. The tokenizer's first token is put before a text by whoever runs the model, and not by the Go template.
pub fn modelfile(from: &str, adapter: Option<&str>, system: Option<&str>, template: Option<&Template>, tokenizer: &Tokenizer) -> String {
    let adapter = adapter.map(|file| format!("ADAPTER {file}\n")).unwrap_or_default();
    let mut text = format!("FROM {from}\n{adapter}\n");
    match template.and_then(|template| Some((template, go(template, tokenizer)?))) {
        Some((template, Go { turns, tools, system, notes })) => {
            text.push_str(&notes.concat());
            if !tools && has_tools(template) {
                text.push_str("# The chat template has a place for tools, and the TEMPLATE below has none.\n");
            }
            if !system {
                text.push_str("# The chat template has no place for a system message, and the TEMPLATE below leaves it out.\n");
            }
            text.push_str(&format!("TEMPLATE \"\"\"{turns}\"\"\"\n\n"));
            let chatml = ["<|im_start|>", "<|im_end|>"].map(String::from);
            let end = template.end_of_turn();
            let stops = if end.as_ref() == Some(&chatml[1]) { chatml.to_vec() } else { end.into_iter().collect() };
            stops.iter().for_each(|stop| text.push_str(&format!("PARAMETER stop {stop:?}\n")));
        }
        None => {
            text.push_str(
                "# The chat template is of no shape that a TEMPLATE is written for here, and Ollama runs no Jinja. Without a TEMPLATE it compares the \
                 GGUF's template with those it knows;\n# if none is near, it sends your text without any turns. Write TEMPLATE \"\"\"..\"\"\" (a Go \
                 template) here then.\n",
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

/// A Go template.
struct Go {
    turns: String,
    /// Whether it has a place for tools.
    tools: bool,
    /// Whether it has one for a system message.
    system: bool,
    /// What a reader of the Modelfile is told of it.
    notes: &'static [&'static str],
}

/// The Go template that renders what `template` does, which may ask for an answer otherwise than the templates whose turns it has.
fn go(template: &Template, tokenizer: &Tokenizer) -> Option<Go> {
    let prompt = go_prompt(&prompts(template)?);
    // The default system message is the Modelfile's.
    let alike = |built_in: &Template| {
        [false, true].iter().all(|&thinks| talk(template, thinks).is_some_and(|text| talk(built_in, thinks) == Some(text)))
    };
    let known = [(Template::Qwen25, QWEN25), (Template::Qwen3, QWEN3)].into_iter().find(|(built_in, _)| alike(built_in));
    if let Some((_, turns)) = known {
        return Some(Go { turns: format!("{turns}{prompt}"), tools: true, system: true, notes: &[] });
    }
    if let Template::Jinja(own) = template
        && let Some(family) = Family::of(own, tokenizer)
    {
        return Some(Go { turns: format!("{}{prompt}", family.go(tokenizer)), tools: true, system: true, notes: family.notes });
    }
    if template.is_chatml() {
        return Some(Go { turns: format!("{CHATML}{prompt}"), tools: false, system: true, notes: &[] });
    }
    let turns = Turns::of(template)?;
    let bos = tokenizer.leading_bos().and_then(|id| tokenizer.token(id));
    Some(Go { turns: format!("{}{prompt}", turns.go(bos.as_deref())), tools: false, system: turns.have_system(), notes: &[] })
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
    template.render(&Conversation { messages, tools: vec![function()] }, RenderOptions::default()).ok()
}

/// Whether functions on offer are written.
fn has_tools(template: &Template) -> bool {
    // Some refuse calls without ids.
    let asked = Conversation { messages: vec![Message::new(Role::User, "a")], tools: vec![function()] };
    let offered = template.render(&asked, RenderOptions::default()).ok();
    [talk(template, false), offered].into_iter().flatten().any(|text| text.contains("\"name\": \"f\""))
}

fn function() -> serde_json::Value {
    serde_json::json!({ "type": "function", "function": { "name": "f" } })
}

#[cfg(test)]
mod tests {
    use bellows_chat::Jinja;
    use burn::tensor::Device;

    use super::*;
    use crate::base::Base;

    fn tokenizer() -> Tokenizer {
        Base::tiny(["a b"], 0, &Device::flex()).unwrap().tokenizer
    }

    #[test]
    fn a_modelfile_has_the_turns_of_the_model_and_one_system_message() {
        let tokenizer = tokenizer();
        let written = |template: &Template| modelfile("./m.gguf", None, None, Some(template), &tokenizer);
        let plain = written(&Template::ChatMl);
        assert!(plain.starts_with("FROM ./m.gguf\n\nTEMPLATE \"\"\"{{- range .Messages }}<|im_start|>"), "{plain}");
        assert!(!plain.contains(".System") && !plain.contains("SYSTEM") && plain.contains("PARAMETER stop \"<|im_end|>\""), "{plain}");
        let qwen = written(&Template::Qwen25);
        assert!(qwen.contains(".Tools") && !qwen.contains(".Thinking"), "{qwen}");
        assert!(qwen.ends_with("\nSYSTEM \"\"\"You are Qwen, created by Alibaba Cloud. You are a helpful assistant.\"\"\"\n"), "{qwen}");
        let thinker = written(&Template::Qwen3);
        assert!(thinker.contains(".Tools") && thinker.contains(".Thinking") && !thinker.contains("\nSYSTEM"), "{thinker}");
        let own = modelfile("./m.gguf", Some("./a.gguf"), Some("Be brief."), Some(&Template::Qwen25), &tokenizer);
        assert!(own.contains("ADAPTER ./a.gguf\n") && own.contains("SYSTEM \"\"\"Be brief.\"\"\"") && !own.contains("Alibaba"), "{own}");
    }

    #[test]
    fn of_other_templates_the_truth_is_told() {
        let tokenizer = tokenizer();
        let jinja = |source: &str| Template::Jinja(Jinja::new(source, &tokenizer).unwrap());
        let other = jinja("{% for m in messages %}[{{ loop.index }}]{{ m.content }}<|endoftext|>{% endfor %}");
        for (template, stop) in [(Some(&other), true), (None, false)] {
            let text = modelfile("./m.gguf", None, Some("Be brief."), template, &tokenizer);
            assert!(text.contains("\n# The chat template is of no shape") && text.contains("SYSTEM"), "{text}");
            assert!(!text.contains("\nTEMPLATE") && !text.contains("im_"), "{text}");
            assert_eq!(text.contains("PARAMETER stop \"<|endoftext|>\""), stop, "{text}");
        }
        // Qwen3's without thoughts has Qwen2.5's turns.
        let default = "{%- set system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}";
        let instruct = jinja(&Template::Qwen25.source().replace(default, "{%- set system = none -%}"));
        let text = modelfile("./m.gguf", None, None, Some(&instruct), &tokenizer);
        assert!(text.contains(".Tools") && !text.contains("SYSTEM"), "{text}");
        let tooled = jinja(&format!("{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{}", Template::ChatMl.source()));
        let text = modelfile("./m.gguf", None, None, Some(&tooled), &tokenizer);
        assert!(text.contains("# The chat template has a place for tools") && text.contains("{{- range .Messages }}"), "{text}");
    }

    #[test]
    fn families_with_tools_are_known_by_what_they_render() {
        let tokenizer = tokenizer();
        let written =
            |source: &str| modelfile("./m.gguf", None, None, Some(&Template::Jinja(Jinja::new(source, &tokenizer).unwrap())), &tokenizer);
        let [llama, mistral, nemo] = families::FAMILIES.each_ref().map(|family| family.source());
        let text = written(&llama);
        for part in [
            "\n# Functions are offered",
            "\n# White space",
            "{{- $bos := ",
            "$.Tools",
            "{{ \"<|start_header_id|>assistant<|end_header_id|>\\n\\n\" }}\"\"\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for (source, gap) in [(&mistral, " "), (&nemo, "")] {
            let text = written(source);
            assert!(text.contains("[AVAILABLE_TOOLS]") && text.contains(&format!("$gap := {gap:?}")) && text.contains("0.12.10"), "{text}");
            assert_eq!(text.contains("# White space"), gap == " ", "{text}");
        }
        // One word, or one refusal, that is another's.
        for (source, from, to) in [
            (&llama, "26 Jul 2024", "26 July 2024"),
            (&llama, "calls | length > 1", "calls | length > 2"),
            (&llama, "message.content | tojson", "message.content"),
            (&mistral, "'[TOOL_CALLS]' ~ gap", "'[TOOL_CALLS]'"),
            (&nemo, "call.id | length != 9", "call.id | length != 10"),
            (&nemo, "key != 'return'", "key"),
            (&nemo, "message == ns.question", "loop.last"),
        ] {
            assert!(source.contains(from), "{from}");
            let text = written(&source.replace(from, to));
            assert!(
                !text.contains("ToolCalls") && (text.contains("no shape") || text.contains("# The chat template has a place for tools")),
                "{to}: {text}"
            );
        }
    }

    #[test]
    fn a_model_that_always_thinks_is_asked_to() {
        let tokenizer = tokenizer();
        let source = Template::Qwen3.source();
        let (turns, _) = source.rsplit_once("{%- if add_generation_prompt").unwrap();
        let prompt = "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}";
        let always = Template::Jinja(Jinja::new(&format!("{turns}{prompt}"), &tokenizer).unwrap());
        let text = modelfile("./m.gguf", None, None, Some(&always), &tokenizer);
        assert!(text.contains(".Tools") && text.contains(".Thinking"), "{text}");
        assert!(text.contains("{{ \"<|im_start|>assistant\\n<think>\\n\" }}\"\"\"") && !text.contains(".IsThinkSet"), "{text}");
        let plain = modelfile("./m.gguf", None, None, Some(&Template::Qwen3), &tokenizer);
        assert!(plain.contains("{{ if and .IsThinkSet (not .Think) }}"), "{plain}");
    }

    #[test]
    fn templates_of_a_regular_shape_are_written_in_go() {
        let tokenizer = tokenizer();
        let written =
            |source: &str| modelfile("./m.gguf", None, None, Some(&Template::Jinja(Jinja::new(source, &tokenizer).unwrap())), &tokenizer);
        let zephyr = written(
            "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        );
        for part in [
            "{{ \"<|user|>\\n\" }}",
            "{{ \"<|endoftext|>\\n\" }}",
            "{{ \"<|assistant|>\\n\" }}\"\"\"",
            "{{ \"<|system|>\\n\" }}{{ $system }}",
        ] {
            assert!(zephyr.contains(part), "{part}: {zephyr}");
        }
        assert!(zephyr.contains("PARAMETER stop \"<|endoftext|>\"\n") && !zephyr.contains("im_"), "{zephyr}");
        // ChatML up to the first answer, which ends otherwise.
        let base = written(
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '<|endoftext|>' if m.role == 'assistant' else '<|im_end|>\n' }}{% endfor %}\
             {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        );
        assert!(base.contains("{{ .Content }}{{ \"<|endoftext|>\" }}") && !base.contains("{{ .Role }}"), "{base}");
        // Who refuses a system message has no place for one.
        let silent = written(
            "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
        );
        assert!(silent.contains("# The chat template has no place for a system message") && !silent.contains("$headed }}"), "{silent}");
        // The turns depend on how many there were: no such shape.
        assert!(written("{% for m in messages %}[{{ loop.length }}]{{ m.content }}{% endfor %}").contains("of no shape"));
    }
}

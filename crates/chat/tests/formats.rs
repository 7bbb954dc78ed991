//! Every format of data sets, and what is said about broken ones.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellows_chat::{ChatError, Conversation, Dataset, Example, Message, ReadOptions, Role, Splits, ToolCall, files};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::json;

fn dataset(name: &str, bytes: impl AsRef<[u8]>) -> (tempfile::TempDir, Result<Dataset, ChatError>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, Dataset::open(&path, &ReadOptions::default()))
}

fn read(name: &str, bytes: impl AsRef<[u8]>) -> Vec<Example> {
    let (_dir, dataset) = dataset(name, bytes);
    dataset.unwrap().iter().collect::<Result<_, _>>().unwrap()
}

fn chat(turns: &[(Role, &str)]) -> Example {
    Example::Chat(Conversation { messages: turns.iter().map(|&(role, text)| Message::new(role, text)).collect(), tools: vec![] })
}

/// One key, whatever holds the turns; a turn of the system's own is stronger.
#[test]
fn a_system_key_leads_a_chat() {
    let turns = || json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let own = || json!([{"role": "system", "content": "own"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let rows = [
        json!({"messages": turns(), "system": "s"}),
        json!({"conversations": turns(), "system": "s"}),
        json!({"instruction": "a", "output": "b", "system": "s"}),
        json!({"messages": own(), "system": "s"}),
        json!({"conversations": own(), "system": "s"}),
        json!({"messages": turns(), "system": ""}),
        json!({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}], "system": "s"}),
        json!({"chosen": turns(), "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}], "system": "s"}),
    ];
    let examples = read("a.jsonl", rows.map(|row| row.to_string()).join("\n"));
    let led = |system: &'static str| chat(&[(Role::System, system), QA[0], QA[1]]);
    assert_eq!(examples[..6], [led("s"), led("s"), led("s"), led("own"), led("own"), chat(QA)]);
    let Example::Pair { chosen, .. } = &examples[7] else { panic!() };
    for example in [&examples[6], chosen.as_ref()] {
        let Example::Chat(conversation) = example else { panic!() };
        let read: Vec<_> = conversation.messages.iter().map(|m| (m.role, m.content.as_str(), m.prompt)).collect();
        assert_eq!(read, [(Role::System, "s", true), (Role::User, "a", true), (Role::Assistant, "b", false)]);
    }
}

/// What is asked for by name is read, whatever else a row has.
#[test]
fn keys_that_are_named_come_first() {
    let as_named = |row: serde_json::Value, prompt: &str, completion: &str, text: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, row.to_string()).unwrap();
        let [prompt_key, completion_key, text_key] = [prompt, completion, text].map(str::to_owned);
        let options = ReadOptions { prompt_key, completion_key, text_key, ..ReadOptions::default() };
        Dataset::open(&path, &options).unwrap().get(0)
    };
    let dolly = as_named(json!({"instruction": "a", "context": "", "response": "b"}), "instruction", "response", "text");
    assert_eq!(dolly.unwrap(), Example::Prompt { prompt: "a".into(), completion: "b".into() });
    let text = |text: &str| Example::Text(text.into());
    assert_eq!(as_named(json!({"prompt": "a", "text": "b"}), "prompt", "completion", "text").unwrap(), text("b"));
    assert_eq!(as_named(json!({"prompt": "a"}), "prompt", "completion", "prompt").unwrap(), text("a"));
    let turns = || json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let prompt = Example::Prompt { prompt: "a".into(), completion: "b".into() };
    let worked = json!({"problem": "a", "solution": "b", "answer": "c", "messages": turns()});
    assert_eq!(as_named(worked, "problem", "solution", "text").unwrap(), prompt);
    let asked = json!({"instruction": "c", "output": "d", "question": "a", "answer": "b"});
    assert_eq!(as_named(asked, "question", "answer", "text").unwrap(), prompt);
    for beside in [json!({"story": "a", "messages": turns()}), json!({"story": "a", "text": "b", "prompt": "c", "completion": "d"})] {
        assert_eq!(as_named(beside, "prompt", "completion", "story").unwrap(), text("a"));
    }
    let alpaca = json!({"instruction": "a", "output": "b", "messages": [{"role": "user", "content": "c"}]});
    assert_eq!(as_named(alpaca, "instruction", "output", "text").unwrap(), chat(QA));
    // Rows of a mixture that have none of them are what they were.
    assert_eq!(as_named(json!({"messages": turns(), "answer": "c"}), "question", "answer", "story").unwrap(), chat(QA));
    let alpaca = as_named(json!({"instruction": "a", "output": "b", "text": "c"}), "prompt", "completion", "text");
    assert_eq!(alpaca.unwrap(), chat(QA));
    let half = as_named(json!({"prompt": "a"}), "prompt", "completion", "text").unwrap_err().to_string();
    assert!(half.contains("`completion` is missing"), "{half}");
    for prompt in ["instruction", "question"] {
        let row = json!({prompt: "a", "response": "b", "text": "c"});
        let mistyped = as_named(row, prompt, "respnse", "text").unwrap_err().to_string();
        assert!(mistyped.contains("`respnse` is missing"), "{mistyped}");
    }
    let half = as_named(json!({"instruction": "a"}), "prompt", "completion", "text").unwrap_err().to_string();
    assert!(half.contains("`output` is missing"), "{half}");
}

const QA: &[(Role, &str)] = &[(Role::User, "a"), (Role::Assistant, "b")];

#[test]
fn messages_with_all_they_can_hold() {
    let row = json!({"messages": [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "reasoning_content": "r", "weight": 0,
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "c", "train": true, "reasoning_content": null, "thinking": "t"},
    ], "tools": "[{\"name\": \"f\"}]"});
    let [Example::Chat(conversation)] = &read("a.jsonl", row.to_string())[..] else { panic!() };
    let call = ToolCall { name: "f".into(), arguments: json!({"x": 1}) };
    let expected = [
        Message::new(Role::System, "s"),
        Message::new(Role::User, "ab"),
        Message { reasoning: Some("r".into()), tool_calls: vec![call], train: Some(false), ..Message::new(Role::Assistant, "") },
        Message::new(Role::Tool, "2"),
        Message { reasoning: Some("t".into()), train: Some(true), ..Message::new(Role::Assistant, "c") },
    ];
    assert_eq!(conversation.messages, expected);
    assert_eq!(conversation.tools, [json!({"name": "f"})]);
}

#[test]
fn sharegpt_alpaca_prompts_text_and_ids() {
    let rows = [
        json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"}),
        json!({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
            {"from": "observation", "value": "1"}, {"from": "gpt", "value": "b"}]}),
        json!({"instruction": "a", "input": "x", "output": "b", "history": [["q", "r"]], "system": "s"}),
        json!({"instruction": "a", "input": "", "output": "b", "system": null}),
        json!({"prompt": "a", "completion": "b"}),
        json!({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}),
        json!({"text": "a", "label": 3}),
        json!({"input_ids": [1, 2, 3, 0], "labels": [-100, 2, -100, -100], "attention_mask": [1, 1, 1, 0]}),
        json!({"input_ids": [4, 5], "labels": null, "attention_mask": null}),
        json!({"conversations": [{"from": "human", "value": "a", "train": null, "weight": 1}, {"from": "gpt", "value": "b", "train": false}]}),
    ];
    let examples = read("a.jsonl", rows.map(|row| row.to_string()).join("\n"));
    let system = (Role::System, "s");
    assert_eq!(examples[0], chat(&[system, QA[0], QA[1]]));
    let Example::Chat(calls) = &examples[1] else { panic!() };
    assert_eq!((calls.messages[1].tool_calls[0].name.as_str(), calls.messages[2].role), ("f", Role::Tool));
    assert_eq!(examples[2], chat(&[system, (Role::User, "q"), (Role::Assistant, "r"), (Role::User, "a\nx"), QA[1]]));
    assert_eq!(examples[3], chat(QA));
    assert_eq!(examples[4], Example::Prompt { prompt: "a".into(), completion: "b".into() });
    let Example::Chat(conversation) = &examples[5] else { panic!() };
    assert_eq!(conversation.messages.iter().map(|m| (m.prompt, m.train)).collect::<Vec<_>>(), [(true, None), (false, None)]);
    assert_eq!(examples[6], Example::Text("a".into()));
    assert_eq!(examples[7], Example::Tokens { ids: vec![1, 2, 3], trained: vec![false, true, false] });
    assert_eq!(examples[8], Example::Tokens { ids: vec![4, 5], trained: vec![true, true] });
    let Example::Chat(marked) = &examples[9] else { panic!() };
    assert_eq!(marked.messages.iter().map(|m| m.train).collect::<Vec<_>>(), [Some(true), Some(false)]);
}

#[test]
fn containers() {
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let expected = vec![chat(QA), chat(QA)];
    // JSONL with a byte order mark, CRLF, blank lines and no end of line.
    assert_eq!(read("a.jsonl", format!("\u{feff}{row}\r\n\r\n  \n{row}")), expected);
    assert_eq!(read("a.json", format!("\u{feff} [ {row},\n{row} ]\n")), expected);
    // A .json file that is JSONL, and the reverse.
    assert_eq!(read("a.json", format!("{row}\n{row}\n")), expected);
    assert_eq!(read("a.jsonl", format!("[{row},{row}]")), expected);
    assert_eq!(read("a.txt", "one\n\n two \r\nthree"), ["one", " two", "three"].map(|line| Example::Text(line.into())));
    let csv = "\u{feff}prompt,completion\r\n\"a, \"\"b\"\"\",\"c\nd\"\r\n";
    assert_eq!(read("a.csv", csv), [Example::Prompt { prompt: "a, \"b\"".into(), completion: "c\nd".into() }]);
    let csv = "messages,source\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a\"\"}, {\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"b\"\"}]\",x\n";
    assert_eq!(read("a.csv", csv), [chat(QA)]);
    // Chats where there may be text, and text that is a list of something else.
    let cell = |role: Role, text: &str| json!([{"role": role.name(), "content": text}]).to_string().replace('"', "\"\"");
    let calls = "[{\"\"name\"\": \"\"f\"\"}]";
    let (user, assistant) = (cell(Role::User, "a"), cell(Role::Assistant, "b"));
    let csv = format!("prompt,completion\n\"{user}\",\"{assistant}\"\na,\"{calls}\"\n");
    let asked = Message { prompt: true, ..Message::new(Role::User, "a") };
    let chats = Example::Chat(Conversation { messages: vec![asked.clone(), Message::new(Role::Assistant, "b")], tools: vec![] });
    let calls = Example::Prompt { prompt: "a".into(), completion: calls.replace("\"\"", "\"") };
    assert_eq!(read("a.csv", csv), [chats.clone(), calls]);
    let worse = Example::Chat(Conversation { messages: vec![asked, Message::new(Role::Assistant, "c")], tools: vec![] });
    let csv = format!("prompt,chosen,rejected\n\"{user}\",\"{assistant}\",\"{}\"\n", cell(Role::Assistant, "c"));
    assert_eq!(read("a.csv", csv), [Example::Pair { chosen: Box::new(chats), rejected: Box::new(worse) }]);
    // What only questions have is not looked at, as pandas writes lists.
    let csv = "prompt,completion,choices\na,b,['b' 'c']\na,b,\n";
    assert_eq!(read("a.csv", csv), vec![Example::Prompt { prompt: "a".into(), completion: "b".into() }; 2]);
    // Line ends of every kind, in cells and between rows, and rows read in any order.
    let (_dir, rows) = dataset("a.csv", "text\r\n\"a\nb\"\r\n\r\nc\n\"d\"\"\"\r\ne");
    let rows = rows.unwrap();
    let texts = [3, 0, 2, 1, 0].map(|i| rows.get(i).unwrap());
    assert_eq!(texts, ["e", "a\nb", "d\"", "c", "a\nb"].map(|text| Example::Text(text.into())));
    assert_eq!((rows.len(), rows.line(0), rows.line(3)), (4, 2, 7));
    // Brackets, quotes and backslashes in text do not end an element.
    let odd = r#"{"text": "]},{\"[\\"}"#;
    assert_eq!(read("a.json", format!("[{odd} , {odd}]")), vec![Example::Text("]},{\"[\\".into()); 2]);
}

/// Each key compared with all before it would be twenty thousand million comparisons.
#[test]
fn a_table_of_many_columns_takes_no_time() {
    let line = |cell: &str| (0..200_000).map(|i| format!("{cell}{i},")).collect::<String>();
    let begun = Instant::now();
    assert_eq!(read("a.csv", format!("{}text\n{}b\n", line("column"), line("a"))), [Example::Text("b".into())]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// rows.parquet holds nested messages and a column of nulls (fixtures/rows.py).
#[test]
fn parquet() {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/rows.parquet"));
    let dataset = Dataset::open(path, &ReadOptions::default()).unwrap();
    assert_eq!(dataset.iter().collect::<Result<Vec<_>, _>>().unwrap(), [chat(QA), chat(&[(Role::User, "ü"), (Role::Assistant, "d")])]);
    // In any order, from two groups.
    assert_eq!([1, 0, 1].map(|i| dataset.get(i).unwrap())[1..], [0, 1].map(|i| dataset.get(i).unwrap()));
    assert_eq!((dataset.len(), dataset.line(1), dataset.line(2), dataset.get(2).unwrap_err().line), (2, 2, 0, None));
    let bytes = std::fs::read(path).unwrap();
    // Damage is an error or other rows, never a panic, and in no row that is not there any more.
    for at in (0..bytes.len()).step_by(3) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        let (_dir, dataset) = self::dataset("a.parquet", damaged);
        let faults: Vec<ChatError> = dataset.map_or_else(|_| Vec::new(), |dataset| dataset.iter().filter_map(Result::err).collect());
        assert!(faults.iter().all(|error| error.line != Some(0)), "{at}: {faults:?}");
    }
    let (_dir, dataset) = self::dataset("a.parquet", &bytes[..bytes.len() / 2]);
    assert!(dataset.unwrap_err().to_string().contains("Parquet: "));
}

/// What is there of a column of bytes, and its definition and repetition levels.
type Column<'a> = (&'a [&'a [u8]], [Option<&'a [i16]>; 2]);

fn columns_of_bytes(schema: &str, columns: &[Column<'_>]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, Arc::new(parse_message_type(schema).unwrap()), Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for &(values, levels) in columns {
        let values: Vec<ByteArray> = values.iter().copied().map(ByteArray::from).collect();
        let mut writer = group.next_column().unwrap().unwrap();
        writer.typed::<ByteArrayType>().write_batch(&values[..], levels[0], levels[1]).unwrap();
        writer.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    file
}

/// As Impala and Hive write it: no column says that its bytes are text.
#[test]
fn parquet_text_that_nothing_calls_text() {
    let schema = "message rows { required group messages (LIST) { repeated group list {
        required group element { required binary role; required binary content; } } } }";
    let levels: [Option<&[i16]>; 2] = [Some(&[1; 3]), Some(&[0, 1, 0])];
    let columns: [Column<'_>; 2] = [(&[b"user", b"assistant", b"user"], levels), (&[b"a", b"b", b"\xff"], levels)];
    let (_dir, chats) = dataset("a.parquet", columns_of_bytes(schema, &columns));
    let chats = chats.unwrap();
    assert_eq!(chats.get(0).unwrap(), chat(QA));
    let error = chats.get(1).unwrap_err().to_string();
    assert!(error.contains("`messages[0].content` is an object"), "{error}");
    // Nor are they taken for what a row need not have.
    let schema = "message rows { required binary instruction; required binary output; required binary system; }";
    let columns: [Column<'_>; 3] = [(&[b"a", b"a"], [None; 2]), (&[b"b", b"b"], [None; 2]), (&[b"", b"\xff"], [None; 2])];
    let (_dir, rows) = dataset("a.parquet", columns_of_bytes(schema, &columns));
    let rows = rows.unwrap();
    assert_eq!(rows.get(0).unwrap(), chat(QA));
    let error = rows.get(1).unwrap_err().to_string();
    assert!(error.contains("`system` is an object"), "{error}");
}

/// A column has one type, so that every call has the arguments of all calls, those of others null.
#[test]
fn a_call_in_parquet_has_its_own_arguments_alone() {
    let call = |key: &str| {
        let call = json!({"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {key: "1"}}]});
        json!({"messages": [{"role": "user", "content": "q"}, call]}).to_string()
    };
    let schema = "message rows { required group messages (LIST) { repeated group list { required group element {
        required binary role; required binary content;
        optional group tool_calls (LIST) { repeated group list { required group element {
            required binary name; required group arguments { optional binary a; optional binary b; } } } } } } } }";
    let turn: Option<&[i16]> = Some(&[0, 1, 0, 1]);
    let columns: [Column<'_>; 5] = [
        (&[b"user", b"assistant", b"user", b"assistant"], [Some(&[1; 4]), turn]),
        (&[b"q", b"", b"q", b""], [Some(&[1; 4]), turn]),
        (&[b"f", b"f"], [Some(&[1, 3, 1, 3]), turn]),
        (&[b"1"], [Some(&[1, 4, 1, 3]), turn]),
        (&[b"1"], [Some(&[1, 3, 1, 4]), turn]),
    ];
    assert_eq!(read("a.parquet", columns_of_bytes(schema, &columns)), read("a.jsonl", [call("a"), call("b")].join("\n")));
}

#[test]
fn faults_say_where_and_what() {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let chat = |turns: &[serde_json::Value]| json!({"messages": turns}).to_string();
    let (user, assistant) = (turn("user", "a"), turn("assistant", "b"));
    let calling = json!({"role": "assistant", "tool_calls": [{"name": "f"}]});
    for (row, parts) in [
        (chat(&[turn("robot", "a")]), &["`messages[0].role` is \"robot\"", "user"][..]),
        (chat(&[user.clone(), turn("assistant", "  ")]), &["message 2", "empty", "tool call"]),
        (chat(&[turn("tool", "1"), assistant.clone()]), &["message 1", "tool", "follows nothing"]),
        (chat(&[user.clone(), assistant.clone(), turn("tool", "1")]), &["message 3", "tool", "expected a call"]),
        (chat(&[user.clone(), calling, user.clone()]), &["message 3", "user", "follows a call", "expected one of the tool"]),
        (chat(&[]), &["`messages` is empty"]),
        (json!({"messages": [{"role": "user"}]}).to_string(), &["`messages[0].content` is missing", "expected text"]),
        (json!({"messages": [{"content": "a"}]}).to_string(), &["`messages[0].role` is missing"]),
        (json!({"messages": "hi"}).to_string(), &["`messages` is \"hi\"", "expected a list"]),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}).to_string(), &["a list of 1", "parts of text"]),
        (chat(&[user.clone(), json!({"role": "assistant", "content": "b", "train": "no"})]), &["`messages[1].train` is \"no\""]),
        (chat(&[user, json!({"role": "assistant", "content": "b", "weight": 0.5})]), &["`messages[1].weight` is 0.5", "1 or 0"]),
        (json!({"instruction": "a"}).to_string(), &["`output` is missing"]),
        (json!({"prompt": "a"}).to_string(), &["`completion` is missing"]),
        (json!({"prompt": "a", "completion": ""}).to_string(), &["`completion` is empty"]),
        (json!({"question": "a", "answer": "b"}).to_string(), &["the keys are `question`, `answer`", "`messages`"]),
        (json!({"input_ids": [1, -2]}).to_string(), &["`input_ids[1]` is -2"]),
        (json!({"input_ids": [1, 2], "labels": [1]}).to_string(), &["`labels` is 1 numbers long"]),
        (json!({"input_ids": [1, 2], "labels": [2, -100]}).to_string(), &["`labels[0]` is 2", "not shifted"]),
        (json!({"conversations": [{"from": "bot", "value": "a"}]}).to_string(), &["`conversations[0].from` is \"bot\"", "gpt"]),
        (
            json!({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": "}]}).to_string(),
            &["`conversations[1].value` is broken JSON: ", "; expected the JSON text of a call"],
        ),
        ("7".into(), &["`the row` is 7", "an object"]),
        ("{\"text\": \"a\", \"text\": \"b\"}".into(), &["broken JSON", "`text` is there twice"]),
        ("{\"text\": \"a\"".into(), &["broken JSON", "object, at column 12"]),
        ("{\"text\": \"a\"} x".into(), &["broken JSON", "trailing"]),
    ] {
        let (_dir, dataset) = dataset("a.jsonl", format!("{{\"text\": \"fine\"}}\n\n{row}\n"));
        let error = dataset.unwrap().get(1).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a.jsonl:3: "), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
    }
}

/// As in TRL, whose trainer renders the turns as they are.
#[test]
fn the_assistant_may_begin_and_anyone_may_speak_twice() {
    let (user, assistant, system) = ((Role::User, "a"), (Role::Assistant, "b"), (Role::System, "s"));
    let rows: [&[(Role, &str)]; 5] = [
        &[assistant, user, assistant],
        &[user, user, assistant],
        &[user, assistant, assistant],
        &[user, assistant, system, user, assistant],
        &[system, assistant],
    ];
    let turn = |(role, content): &(Role, &str)| json!({"role": role.name(), "content": content});
    let text = rows.map(|row| json!({"messages": row.iter().map(turn).collect::<Vec<_>>()}).to_string()).join("\n");
    assert_eq!(read("a.jsonl", text), rows.map(chat));
}

#[test]
fn a_split_may_be_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    for (name, text) in [("train-00001-of-00002", "b"), ("train-00000-of-00002", "a"), ("validation-00000-of-00001", "c"), ("trainer", "x")]
    {
        std::fs::write(dir.path().join(format!("data/{name}.txt")), text).unwrap();
    }
    let texts = |sets: &[Dataset]| sets.iter().flat_map(Dataset::iter).collect::<Result<Vec<_>, _>>().unwrap();
    let text = |text: &str| Example::Text(text.into());
    let splits = Splits::open(dir.path(), &ReadOptions::default()).unwrap();
    assert_eq!((texts(&splits.train), texts(&splits.valid)), (vec![text("a"), text("b")], vec![text("c")]));
    // A file of the name alone is the split.
    std::fs::write(dir.path().join("train.txt"), "d").unwrap();
    assert_eq!(texts(&Splits::open(dir.path(), &ReadOptions::default()).unwrap().train), [text("d")]);
}

/// As ultrachat_200k and ultrafeedback_binarized have them.
#[test]
fn of_splits_of_single_answers_and_of_pairs_those_that_are_wanted_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(dir.path().join(format!("{name}-00000-of-00001.txt")), name).unwrap();
    let open = |pairs| Splits::open(dir.path(), &ReadOptions { pairs, ..ReadOptions::default() });
    let texts = |pairs| open(pairs).unwrap().all().map(|set| set.get(0).unwrap()).collect::<Vec<_>>();
    let expected = |names: &[&str]| names.iter().map(|name| Example::Text((*name).into())).collect::<Vec<_>>();
    let fault = |pairs| open(pairs).unwrap_err().to_string();
    write("train_gen");
    assert!(fault(None).contains("the splits to learn from are train_gen; expected `train`, or the files"), "{}", fault(None));
    ["train_sft", "test_sft"].into_iter().for_each(write);
    let single = expected(&["train_sft", "test_sft"]);
    assert_eq!((&texts(None), &texts(Some(false))), (&single, &single));
    assert!(fault(Some(true)).contains("are train_gen, train_sft; expected `train` or `train_prefs`"), "{}", fault(Some(true)));
    ["train_prefs", "test_prefs"].into_iter().for_each(write);
    assert_eq!((texts(Some(false)), texts(Some(true))), (single, expected(&["train_prefs", "test_prefs"])));
    assert!(fault(None).contains("are train_gen, train_prefs, train_sft; expected `train`"), "{}", fault(None));
    std::fs::write(dir.path().join("valid_prefs-00000-of-00003.txt"), "v").unwrap();
    std::fs::write(dir.path().join("valid_prefs-00002-of-00003.txt"), "v").unwrap();
    assert!(fault(Some(true)).contains("2 of the 3 pieces of valid_prefs are here"), "{}", fault(Some(true)));
    std::fs::write(dir.path().join("valid_prefs-00001-of-00003.txt"), "v").unwrap();
    assert_eq!(texts(Some(true)).len(), 5);
    ["0", "1", "2"].iter().for_each(|n| std::fs::remove_file(dir.path().join(format!("valid_prefs-0000{n}-of-00003.txt"))).unwrap());
    let names: Vec<String> = ["test_prefs", "train_gen", "train_prefs", "train_sft"].map(|name| format!("data/{name}-0-of-1.csv")).to_vec();
    let pick = |split, pairs| files(&names, split, pairs).iter().map(|name| name["data/".len()..].to_owned()).collect::<Vec<_>>().join(" ");
    assert_eq!([pick("train", None), pick("test", None)], ["train_sft-0-of-1.csv train_prefs-0-of-1.csv", "test_prefs-0-of-1.csv"]);
    assert_eq!([pick("train", Some(true)), pick("train", Some(false))], ["train_prefs-0-of-1.csv", "train_sft-0-of-1.csv"]);
    assert_eq!(files(&names[3..], "train", Some(true)), names[3..], "without the kind that is meant");
    // Beside a split of the name itself they are others.
    write("train");
    assert_eq!(texts(Some(true)), expected(&["train"]));
}

#[test]
fn faults_of_files() {
    let (_dir, open) = dataset("a.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n");
    let faults: Vec<String> = open.unwrap().iter().filter_map(|row| Some(row.err()?.to_string())).collect();
    assert!(faults.len() == 1 && faults[0].contains("a.jsonl:2: byte 11"), "{faults:?}");
    for (name, bytes, parts) in [
        ("a.jsonl", &b"\n\n"[..], &["no examples"][..]),
        ("a.json", b"[{},\n{}\n", &["a.json:3", "ends before"]),
        ("a.json", b"[{},,{}]", &["a.json:1", "missing between commas"]),
        ("a.json", b"[{}]\n{}", &["a.json:2", "more after"]),
        (
            "a.json",
            b"{\n \"n\": 1,\n \"data\": [\n  {\"text\": \"a\"}\n ]\n}",
            &["one object over several lines, whose `data` is a list", "one row a line"],
        ),
        ("a.csv", b"text,b\na,b\nc\n", &["a.csv:3", "1 cells; the header has 2"]),
        // As pandas writes lists; a line break that is not escaped; cut.
        (
            "a.csv",
            b"prompt,completion\na,b\na,\"[{'role': 'assistant', 'content': 'b'}]\"\n",
            &["a.csv:3: `completion` is broken JSON: ", ", at column 3; expected the JSON text of a list (json.dumps;"],
        ),
        ("a.csv", b"messages\n\"[{'role': 'assistant', 'content': 'b'}]\"\n", &["a.csv:2: `messages` is broken JSON", "pandas"]),
        (
            "a.csv",
            b"prompt,completion\n\"[{\"\"content\"\": \"\"a\nb\"\", \"\"role\"\": \"\"user\"\"}]\",b\n",
            &["a.csv:2: `prompt`", "JSON"],
        ),
        (
            "a.csv",
            b"prompt,completion\na,\"[ {\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"b\"\n",
            &["a.csv:2: `completion`", "JSON"],
        ),
        ("a.jsonl", br#"{"prompt": "a", "completion": "b", "system": "s"}"#, &["a.jsonl:1", "`system` is text", "`messages` have one"]),
        (
            "a.jsonl",
            br#"{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}], "system": "s"}"#,
            &["a.jsonl:1", "chats that begin alike"],
        ),
        ("a.jsonl", br#"{"prompt": "a", "chosen": "b", "rejected": "c", "system": "s"}"#, &["a.jsonl:1", "`system` is text"]),
        ("a.csv", b"text\na\n\xff\n", &["a.csv:3", "UTF-8"]),
        ("a.csv", b"text,text\na,b\n", &["a.csv:1", "`text` is there twice"]),
        ("a.csv", b"text\r\na\r\n\r\n\"b\nc", &["a.csv:4", "never closed", "the file is cut"]),
        ("a.csv", b"text\n\"a\"\n\"b\"\"", &["a.csv:3", "never closed"]),
        ("a.csv", b"text\na\n\"b\nc\nd\n", &["a.csv:3", "never closed", "stray quote"]),
        ("a.parquet", b"PAR1", &["Parquet"]),
        ("a.doc", b"x", &["extension", "jsonl"]),
    ] {
        let (_dir, open) = dataset(name, bytes);
        let text = open.and_then(|rows| rows.iter().collect::<Result<Vec<_>, _>>()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(Splits::open(dir.path(), &ReadOptions::default()).unwrap_err().to_string().contains("train.jsonl"));
    std::fs::write(dir.path().join("train.jsonl"), "{\"body\": \"a\"}").unwrap();
    std::fs::write(dir.path().join("valid.txt"), "b").unwrap();
    let options = ReadOptions { text_key: "body".into(), ..ReadOptions::default() };
    let splits = Splits::open(dir.path(), &options).unwrap();
    assert_eq!((splits.train[0].get(0).unwrap(), splits.valid[0].get(0).unwrap()), (Example::Text("a".into()), Example::Text("b".into())));
    assert!(splits.test.is_empty());
}

#[test]
fn pairs_of_answers() {
    let rows = [
        json!({"prompt": "a", "chosen": "b", "rejected": "c"}),
        json!({"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],
            "rejected": [{"role": "assistant", "content": "c"}]}),
        json!({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]}),
        // As ultrafeedback_binarized has it.
        json!({"prompt": "a", "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}], "messages": []}),
    ];
    let examples = read("a.jsonl", rows.map(|row| row.to_string()).join("\n"));
    let text = |completion: &str| Box::new(Example::Prompt { prompt: "a".into(), completion: completion.into() });
    assert_eq!(examples[0], Example::Pair { chosen: text("b"), rejected: text("c") });
    let said = |answer: &str| {
        let question = Message { prompt: true, ..Message::new(Role::User, "a") };
        let messages = vec![question, Message::new(Role::Assistant, answer)];
        Box::new(Example::Chat(Conversation { messages, tools: vec![] }))
    };
    let chats = Example::Pair { chosen: said("b"), rejected: said("c") };
    assert_eq!([&examples[1], &examples[2], &examples[3]], [&chats; 3]);

    // As the splits of single answers of ultrafeedback_binarized have it.
    let turns = |answer: &str| json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]);
    let row = json!({"prompt": "a", "chosen": turns("b"), "rejected": turns("c"), "messages": turns("b")});
    let (dir, _) = dataset("a.jsonl", row.to_string());
    for (pairs, expected) in [(Some(false), &chat(QA)), (Some(true), &chats), (None, &chats)] {
        let options = ReadOptions { pairs, ..ReadOptions::default() };
        assert_eq!(Dataset::open(&dir.path().join("a.jsonl"), &options).unwrap().get(0).unwrap(), *expected, "{pairs:?}");
    }

    for (row, wanted) in [
        (json!({"prompt": "a", "chosen": "b"}), "a.jsonl:1: `rejected` is missing; expected text"),
        (json!({"prompt": "a", "chosen": "", "rejected": "c"}), "`chosen` is empty"),
        (json!({"chosen": "b", "rejected": "c"}), "`prompt` is missing; expected text"),
        (json!({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]}), "chats that begin alike"),
        (
            json!({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]}),
            "`prompt` is \"q\"; expected a list of messages, or chats that begin alike",
        ),
    ] {
        let (_dir, dataset) = dataset("a.jsonl", row.to_string());
        let error = dataset.unwrap().get(0).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

//! Models by their hub name, from a hub on this machine: what is downloaded, what comes from the cache, and what is said when neither goes.
#![allow(clippy::unwrap_used, unreachable_pub, missing_docs, reason = "a test may panic")]

#[path = "support/mod.rs"]
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::base::Base;
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_qwen::peft;
use bellows_weights::gguf::Preset;
use bellows_weights::{Checkpoint, DType, TensorSpec, write_checkpoint};
use burn::tensor::Device;
use support::{COMMIT, FakeHub, SIZE};

const TEXT: &str = "What is 2 plus 3? 2 plus 3 is 5.";

/// A hub with the model `o/single`, the same in pieces as `o/pieces`, and as a GGUF in `o/quantised`.
fn hub(dir: &Path) -> FakeHub {
    let base = Base::tiny([TEXT], 0, &Device::flex()).unwrap();
    let (single, pieces) = (dir.join("single"), dir.join("pieces"));
    write_transformers(&single, &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
    std::fs::create_dir_all(&pieces).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(single.join(name), pieces.join(name)).unwrap();
    }
    let weights = Checkpoint::open(&single).unwrap();
    let specs = weights.tensors().map(|(name, spec)| (name.to_owned(), TensorSpec::clone(spec))).collect();
    let bytes = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    write_checkpoint(&pieces, &specs, 1_000_000, |name| weights.tensor_f32(name).map(bytes)).unwrap();
    write_gguf(&dir.join("model.gguf"), &base.model, &base.config, &base.tokenizer, Preset::from_name("q8_0").unwrap(), "tiny").unwrap();

    let hub = FakeHub::start();
    let mut shelf = hub.shelf.lock().unwrap();
    for (repo, dir) in [("o/single", &single), ("o/pieces", &pieces), ("o/gated", &single)] {
        for file in std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()) {
            shelf.files.insert(format!("{repo}/{}", file.file_name().unwrap().to_str().unwrap()), std::fs::read(&file).unwrap());
        }
    }
    shelf.files.insert("o/single/README.md".into(), b"not needed".to_vec());
    shelf.files.insert("o/quantised/q/model.gguf".into(), std::fs::read(dir.join("model.gguf")).unwrap());
    shelf.files.insert("o/empty/README.md".into(), b"nothing".to_vec());
    drop(shelf);
    hub
}

/// `llm-finetune` under variables of a hub's.
fn command(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-finetune"));
    for proxy in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    let ours = ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HF_ENDPOINT"];
    for name in ours {
        command.env_remove(name);
    }
    command.current_dir(dir).args(args).env("XDG_CACHE_HOME", dir.join("cache")).envs(variables.iter().copied());
    command
}

/// Its exit code and words.
fn run(dir: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(dir, args, variables).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

const ASK: [&str; 9] = ["generate", "--prompt", "2 plus", "--raw", "--max-new-tokens", "4", "--device", "cpu", "--model"];

fn ask<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ASK.iter().copied().chain([model]).chain(more.iter().copied()).collect()
}

fn snapshot(dir: &Path, repo: &str) -> PathBuf {
    dir.join(format!("cache/huggingface/hub/models--{}/snapshots/{COMMIT}", repo.replace('/', "--")))
}

#[test]
fn a_model_is_downloaded_once_and_then_read_from_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    let (code, first, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("downloading model.safetensors of o/single") && error.contains("device: "), "{error}");
    assert_eq!(first.lines().count(), 1, "stdout has the answer alone: {first}");
    let asked = hub.requests();
    assert!(asked.iter().any(|r| r.contains("generation_config.json")) && !asked.iter().any(|r| r.contains("README")), "{asked:#?}");
    assert!(snapshot(dir.path(), "o/single").join("model.safetensors").exists());

    // Again: without a word to the hub, with and without --offline, and where the hub is gone.
    let answer = first.lines().last().unwrap();
    let nowhere = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    let offline = [("HF_HUB_OFFLINE", "1"), nowhere[0]];
    for (more, variables) in [(&[][..], &at[..]), (&["--offline"], &at), (&[], &nowhere), (&[], &offline)] {
        let (code, out, error) = run(dir.path(), &ask("o/single", more), variables);
        assert_eq!((code, out.lines().last().unwrap()), (0, answer), "{error}");
        assert!(!error.contains("downloading"));
    }
    assert_eq!(hub.requests(), Vec::<String>::new());

    // What was loaded is the model: the directory it came from says the same, and a directory of that name wins.
    let (_, out, _) = run(dir.path(), &ask("./single", &[]), &nowhere);
    assert_eq!(out.lines().last().unwrap(), answer);
    std::fs::create_dir_all(dir.path().join("o/single")).unwrap();
    let (code, _, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert!(code == 2 && error.contains("config.json"), "{error}");
}

#[test]
fn a_cache_that_another_program_left_incomplete_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    let nowhere = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    assert_eq!(run(dir.path(), &ask("o/single", &[]), &at).0, 0);
    let snapshot = snapshot(dir.path(), "o/single");
    let eos = || Base::tokenizer(&snapshot).unwrap().eos();
    let own = eos();
    // As programs leave it that have no use for the description of the tokenizer.
    let forget = || {
        ["generation_config.json", "tokenizer_config.json"].iter().for_each(|name| std::fs::remove_file(snapshot.join(name)).unwrap());
        std::fs::remove_dir_all(dir.path().join("cache/huggingface/hub/models--o--single/.no_exist")).ok();
    };
    forget();
    assert!(own.is_some() && eos() == own && Base::open(&snapshot, &Device::flex()).unwrap().tokenizer.eos() == own);
    hub.requests();
    for (more, variables) in [(&["--offline"][..], &at), (&[], &nowhere)] {
        let (code, _, error) = run(dir.path(), &ask("o/single", more), variables);
        assert!(
            code == 0 && error.contains("without generation_config.json, tokenizer_config.json, chat_template.jinja"),
            "{code} {error}"
        );
        assert_eq!(hub.requests(), Vec::<String>::new());
    }
    // The hub has two of the three; that it lacks the third is remembered.
    let (code, _, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert!(code == 0 && error.contains("downloading tokenizer_config.json") && !error.contains("without"), "{code} {error}");
    let asked = hub.requests();
    assert!(asked[0].contains(&format!("revision/{COMMIT}")) && !asked.iter().any(|r| r.contains(".safetensors")), "{asked:#?}");
    for variables in [&at, &nowhere] {
        let (code, _, error) = run(dir.path(), &ask("o/single", &[]), variables);
        assert!(code == 0 && !error.contains("without") && !error.contains("downloading"), "{code} {error}");
    }
    assert_eq!(hub.requests(), Vec::<String>::new());
}

#[test]
fn a_look_at_the_data_downloads_no_weights() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    std::fs::write(dir.path().join("rows.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let preview = ["data", "preview", "--model", "o/pieces", "--data", "rows.jsonl"];
    let (code, _, error) = run(dir.path(), &preview, &at);
    assert_eq!(code, 0, "{error}");
    let asked = hub.requests();
    assert!(asked.iter().any(|r| r.contains("tokenizer.json")) && !asked.iter().any(|r| r.contains(".safetensors")), "{asked:#?}");
    // Then it comes from the cache, for the adapter's export too, until weights are needed.
    let base = Base::open(&dir.path().join("single"), &Device::flex()).unwrap();
    let lora = LoraConfig::default();
    peft::write(&dir.path().join("adapter"), &lora.apply(base.model, 0).unwrap(), &lora, None).unwrap();
    let export = ["export", "--format", "gguf-lora", "--model", "o/pieces", "--adapter", "adapter", "--out", "a.gguf", "--offline"];
    for args in [&preview[..], &export] {
        let (code, _, error) = run(dir.path(), args, &at);
        assert_eq!(code, 0, "{error}");
    }
    assert_eq!(hub.requests(), Vec::<String>::new());
    assert_eq!(run(dir.path(), &ask("o/pieces", &["--offline"]), &at).0, 2);
    assert_eq!(run(dir.path(), &ask("o/pieces", &[]), &at).0, 0);
    assert!(hub.requests().iter().any(|r| r.contains(".safetensors")));
}

/// Gigabytes that could not be read are not downloaded.
#[test]
fn a_model_that_is_not_built_here_is_refused_before_its_weights_come() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let mut shelf = hub.shelf.lock().unwrap();
    let text = String::from_utf8(shelf.files["o/single/config.json"].clone()).unwrap();
    let quantised = text.replacen('{', "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4},", 1);
    shelf.files.insert("o/single/config.json".into(), quantised.into_bytes());
    drop(shelf);
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    std::fs::write(dir.path().join("rows.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let train = ["--model", "o/single", "--data", "rows.jsonl", "--device", "cpu"];
    for args in [&train[..], &["plan", "--model", "o/single", "--device", "cpu"], &["merge", "--model", "o/single", "--out", "merged"]] {
        let (code, _, error) = run(dir.path(), args, &at);
        assert!(code == 2 && error.contains("config.json: this checkpoint is quantised (gptq)"), "{args:?}: {code} {error}");
    }
    let (code, _, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert!(code == 2 && error.contains("this checkpoint is quantised (gptq)"), "{code} {error}");
    let asked = hub.requests();
    assert!(!asked.iter().any(|r| r.contains(".safetensors")), "{asked:#?}");
}

#[test]
fn models_in_pieces_and_single_gguf_files_work_too_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str()), ("HF_HOME", "home")];
    let (code, out, error) = run(dir.path(), &["merge", "--model", "o/pieces", "--out", "merged", "--dtype", "f32"], &at);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("model-00002-of-") && out == "Saved merged in f32\n", "{out}{error}");
    let weights = |model: &str| Base::open(&dir.path().join(model), &Device::flex()).unwrap().model.model.norm.weight.val().into_data();
    assert_eq!(weights("merged"), weights("single"));
    assert!(dir.path().join("home/hub/models--o--pieces").exists());

    let at = [("HF_ENDPOINT", hub.endpoint.as_str()), ("HF_HUB_CACHE", "elsewhere")];
    let (code, _, error) = run(dir.path(), &["export", "--model", "o/quantised/q/model.gguf", "--quant", "f16", "--out", "x.gguf"], &at);
    assert_eq!(code, 0, "{error}");
    assert!(dir.path().join(format!("elsewhere/models--o--quantised/snapshots/{COMMIT}/q/model.gguf")).exists());
    let offline = ["export", "--model", "o/quantised/q/model.gguf", "--quant", "f16", "--out", "x.gguf", "--offline"];
    assert_eq!(run(dir.path(), &offline, &at).0, 0);
    // Training: the model is found, and then the data is what is missing.
    let train = ["--model", "o/pieces", "--data", "none.jsonl", "--device", "cpu", "--offline"];
    let (code, _, error) = run(dir.path(), &train, &[("HF_HOME", "home")]);
    assert!(code == 2 && error.contains("none.jsonl"), "{error}");
}

#[test]
fn what_cannot_be_had_is_said_in_one_sentence_with_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = ("HF_ENDPOINT", hub.endpoint.as_str());
    let offline = |model: &str| run(dir.path(), &ask(model, &["--offline"]), &[at]);
    let (code, _, error) = offline("o/single");
    let place = dir.path().join("cache/huggingface/hub/models--o--single");
    assert!(
        code == 2 && error.contains("config.json of o/single is not in the cache") && error.contains(place.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(run(dir.path(), &ask("o/pieces", &[]), &[at]).0, 0);
    hub.requests();
    let snapshot = snapshot(dir.path(), "o/pieces");
    let mut files = std::fs::read_dir(&snapshot).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let gone = files.find(|name| name.starts_with("model-00002-of-")).unwrap();
    std::fs::remove_file(snapshot.join(&gone)).unwrap();
    let (code, _, error) = offline("o/pieces");
    assert!(code == 2 && error.contains(&format!("{gone} of o/pieces")) && error.contains(snapshot.to_str().unwrap()), "{error}");
    assert_eq!(hub.requests(), Vec::<String>::new(), "offline means no connection");

    let cases: [(&str, &str, &[&str]); 6] = [
        ("o/nothing", at.1, &["has no model o/nothing", "HF_TOKEN"]),
        ("o/private", at.1, &["private", "HF_TOKEN"]),
        ("o/gated", at.1, &["accepted its conditions", "HF_TOKEN"]),
        ("o/empty", at.1, &["o/empty has no config.json"]),
        ("o/single/q/none.gguf", at.1, &["o/single has no q/none.gguf"]),
        ("o/single", "http://127.0.0.1:1", &["cannot get the list of files of o/single from http://127.0.0.1:1"]),
    ];
    for (model, endpoint, words) in cases {
        let (code, _, error) = run(dir.path(), &ask(model, &[]), &[("HF_ENDPOINT", endpoint)]);
        assert!(code == 2 && error.lines().last().unwrap().starts_with("error: "), "{model}: {code} {error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{model}: no {word:?} in {error}"));
    }
}

#[test]
fn a_download_goes_on_where_it_broke_off_and_a_damaged_one_is_thrown_away() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    hub.shelf.lock().unwrap().cut = true;
    let (code, _, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert_eq!(code, 0, "{error}");
    let size = hub.shelf.lock().unwrap().files["o/single/model.safetensors"].len();
    let half = format!("/cdn/o/single/model.safetensors {}-", size / 2);
    let asked = hub.requests();
    assert!(asked.contains(&half), "no {half} in {asked:#?}");

    hub.shelf.lock().unwrap().damaged = true;
    let (code, _, error) = run(dir.path(), &ask("o/quantised/q/model.gguf", &[]), &at);
    assert!(code == 2 && error.contains("q/model.gguf of o/quantised arrived damaged and was removed"), "{error}");
    hub.shelf.lock().unwrap().damaged = false;
    assert_eq!(run(dir.path(), &ask("o/quantised/q/model.gguf", &[]), &at).0, 0);

    // A part of the whole length, as a crash before the renaming leaves it.
    let blobs = dir.path().join("cache/huggingface/hub/models--o--single/blobs");
    let blob = snapshot(dir.path(), "o/single").join("model.safetensors");
    let name = blob.canonicalize().unwrap().file_name().unwrap().to_owned();
    std::fs::rename(blobs.join(&name), blobs.join(&name).with_extension("part")).unwrap();
    let (code, _, error) = run(dir.path(), &ask("o/single", &[]), &at);
    assert_eq!(code, 0, "{error}");
}

/// As ranks do that begin together, and beside another program, which has the library's lock alone.
#[test]
fn what_another_process_downloads_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    assert_eq!(run(dir.path(), &ask("o/single", &[]), &at).0, 0);
    let blob = snapshot(dir.path(), "o/single").join("model.safetensors").canonicalize().unwrap();
    let part = blob.with_extension("part");
    let whole = std::fs::read(&blob).unwrap();
    // That process is this one, in the middle of the weights. It ends them once it is waited for, or while others look for its lock.
    for (lock, told) in [("lock", true), ("turn", true), ("lock", false)] {
        hub.requests();
        std::fs::remove_file(&blob).unwrap();
        std::fs::write(&part, &whole[..whole.len() / 2]).unwrap();
        let lock = File::create(blob.with_extension(lock)).unwrap();
        lock.lock().unwrap();

        let mut other = command(dir.path(), &ask("o/single", &[]), &at).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = BufReader::new(other.stderr.take().unwrap()).lines().map_while(Result::ok);
        let of_weights = |request: &String| request.starts_with("/cdn/o/single/model.safetensors");
        if told {
            assert!(words.any(|line| line.contains("waiting for another process, which downloads model.safetensors of o/single")));
        } else {
            while !hub.shelf.lock().unwrap().log.iter().any(of_weights) {
                assert!(other.try_wait().unwrap().is_none());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        std::fs::write(&part, &whole).unwrap();
        std::fs::rename(&part, &blob).unwrap();
        drop(lock);
        let rest: Vec<String> = words.collect();
        assert!(other.wait().unwrap().success(), "{rest:?}");
        // For the size, once or more, and not for the file.
        let asked = hub.requests();
        let ranges: Vec<&str> =
            asked.iter().filter(|request| of_weights(request)).filter_map(|request| request.split(' ').nth(1)).collect();
        assert!(!ranges.is_empty() && ranges.iter().all(|range| *range == SIZE), "{asked:#?}");
    }
}

#[test]
fn a_data_set_is_downloaded_once_and_then_read_from_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let hub = FakeHub::start();
    let row = |answer: &str| format!("{{\"prompt\": \"2 plus\", \"completion\": \"{answer}\"}}\n");
    let files = [
        ("chats/README.md", "nothing".to_owned()),
        ("chats/data/train-00000-of-00002.jsonl", row("1")),
        ("chats/data/train-00001-of-00002.jsonl", row("2") + &row("3")),
        ("chats/data/test-00000-of-00001.jsonl", row("4")),
        ("tongues/en/train.jsonl", row("one")),
        ("tongues/de/train.jsonl", row("eins") + &row("zwei")),
        ("one/rows.jsonl", row("1")),
    ];
    hub.shelf.lock().unwrap().files.extend(files.map(|(name, text)| (format!("datasets/o/{name}"), text.into_bytes())));
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    let nowhere = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    let preview = |data: &str, more: &[&str], variables: &[(&str, &str)]| {
        let args = [&["data", "preview", "--model", "tiny", "--chat-template", "chatml", "--data", data], more].concat();
        run(dir.path(), &args, variables)
    };
    let (code, out, error) = preview("o/chats", &[], &at);
    assert!(code == 0 && out.contains("examples   3, of which 3 kept") && out.contains("test       1 examples"), "{out}{error}");
    assert!(
        error.contains("downloading data/train-00001-of-00002.jsonl of o/chats") && !hub.requests().iter().any(|r| r.contains("README"))
    );
    // Again from the cache, and not from one with a piece missing.
    assert_eq!(preview("o/chats", &[], &nowhere).1, out);
    let snapshot = dir.path().join(format!("cache/huggingface/hub/datasets--o--chats/snapshots/{COMMIT}"));
    std::fs::remove_file(snapshot.join("data/train-00000-of-00002.jsonl")).unwrap();
    let (code, _, error) = preview("o/chats", &["--offline"], &at);
    assert!(code == 2 && error.contains("offline, and data/train-00000-of-00002.jsonl of o/chats is not in the cache"), "{error}");
    assert_eq!(preview("o/chats", &[], &at).1, out);

    let (code, out, error) = preview("o/tongues/de", &[], &at);
    assert!(code == 0 && out.contains("examples   2, of which 2 kept"), "{out}{error}");
    assert!(preview("o/one", &[], &at).1.contains("examples   1, of which 1 kept"));
    for (data, parts) in [
        ("o/tongues", &["o/tongues has no train.jsonl", "its folders are o/tongues/de, o/tongues/en"][..]),
        ("o/nothing", &["has no data set o/nothing", "HF_TOKEN"]),
        ("data/chats.jsonl", &["data/chats.jsonl", "there is no such file or folder"]),
    ] {
        let (code, _, error) = preview(data, &[], &at);
        assert!(code == 2 && parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

/// Of a download that broke off behind the rows to learn from, and of a program that wanted nothing else.
#[test]
fn a_part_of_a_data_set_is_not_taken_for_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let hub = FakeHub::start();
    for (name, answer) in [("train", "1"), ("validation", "2")] {
        let row = format!("{{\"prompt\": \"2 plus\", \"completion\": \"{answer}\"}}\n");
        hub.shelf.lock().unwrap().files.insert(format!("datasets/o/chats/{name}.jsonl"), row.into_bytes());
    }
    let nowhere = "http://127.0.0.1:1";
    let preview = |more: &[&str], endpoint: &str| {
        let args = [&["data", "preview", "--model", "tiny", "--chat-template", "chatml", "--data", "o/chats"], more].concat();
        run(dir.path(), &args, &[("HF_ENDPOINT", endpoint)])
    };
    hub.shelf.lock().unwrap().withheld = Some("validation.jsonl");
    for _ in 0..2 {
        let (code, out, error) = preview(&[], &hub.endpoint);
        assert_eq!(code, 2, "{out}{error}");
    }
    let (code, _, error) = preview(&["--offline"], nowhere);
    assert!(code == 2 && error.contains("offline, and validation.jsonl of o/chats is not in the cache"), "{error}");
    hub.shelf.lock().unwrap().withheld = None;
    let (code, whole, error) = preview(&[], &hub.endpoint);
    assert!(code == 0 && whole.contains("validation 1 examples"), "{whole}{error}");

    // As another program leaves it. What cannot be asked for is used as it is, in words.
    let cached = dir.path().join("cache/huggingface/hub/datasets--o--chats");
    std::fs::remove_dir_all(cached.join(".bellows")).unwrap();
    std::fs::remove_file(cached.join("snapshots").join(COMMIT).join("validation.jsonl")).unwrap();
    for (more, why) in [(&["--offline"][..], "(offline)"), (&[], nowhere)] {
        let (code, out, error) = preview(more, nowhere);
        assert!(
            code == 0 && !out.contains("validation") && error.contains("the hub may have more of it") && error.contains(why),
            "{out}{error}"
        );
    }
    hub.requests();
    let (code, out, error) = preview(&[], &hub.endpoint);
    assert!(code == 0 && out == whole && error.contains("downloading validation.jsonl of o/chats"), "{out}{error}");
    let asked = hub.requests();
    assert!(asked[0].contains(&format!("revision/{COMMIT}")) && !asked.iter().any(|r| r.contains("train.jsonl")), "{asked:#?}");
    // Then it is known.
    let (code, out, error) = preview(&[], nowhere);
    assert!(code == 0 && out == whole && !error.contains("may have more"), "{out}{error}");
}

/// More than it began with would be other data, and it could never go on.
#[test]
fn a_run_on_a_part_of_a_data_set_goes_on_with_that_part() {
    let dir = tempfile::tempdir().unwrap();
    let hub = FakeHub::start();
    for name in ["train", "validation"] {
        let rows = "{\"prompt\": \"2 plus\", \"completion\": \"3\"}\n".repeat(4);
        hub.shelf.lock().unwrap().files.insert(format!("datasets/o/chats/{name}.jsonl"), rows.into_bytes());
    }
    let at = [("HF_ENDPOINT", hub.endpoint.as_str())];
    let of = ["--model", "tiny", "--chat-template", "chatml", "--data", "o/chats"];
    let (code, _, error) = run(dir.path(), &[&["data", "preview"][..], &of].concat(), &at);
    assert_eq!(code, 0, "{error}");
    // As another program leaves it.
    let cached = dir.path().join("cache/huggingface/hub/datasets--o--chats");
    std::fs::remove_dir_all(cached.join(".bellows")).unwrap();
    std::fs::remove_file(cached.join("snapshots").join(COMMIT).join("validation.jsonl")).unwrap();
    let train = ["--device", "cpu", "--r", "4", "--max-seq-length", "64", "--epochs", "1", "--name", "t"];
    let (code, _, error) = run(dir.path(), &[&of[..], &train].concat(), &[("HF_HUB_OFFLINE", "1")]);
    assert!(code == 0 && error.contains("the hub may have more of it"), "{code} {error}");
    hub.requests();
    let (code, out, error) = run(dir.path(), &["--resume", "runs/sft/t", "--save-merged", "true"], &at);
    assert!(code == 0 && dir.path().join("runs/sft/t/merged/model.safetensors").exists(), "{code} {out}{error}");
    assert_eq!(hub.requests(), Vec::<String>::new());
}

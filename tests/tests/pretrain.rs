//! Continued pre-training: plain text, new tokens, a rate of its own for the embedding; and the adapter of a grown vocabulary used again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::{expect_code, llm_finetune, tiny_chats};
use bellows_weights::read;

#[test]
fn new_tokens_are_learnt_and_go_with_the_adapter() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let run = |args: &[&str], code| expect_code(&mut llm_finetune(dir.path(), args), code);
    run(&["--config", "tiny.yaml", "--epochs", "1", "--save-merged", "true", "--project", "made"], 0);
    std::fs::rename(dir.path().join("made/train/merged"), dir.path().join("base")).unwrap();
    let text: String = (0..12).map(|i| format!("{{\"text\": \"The <ore> of hill {i} is so good. It is so.\"}}\n")).collect();
    std::fs::write(dir.path().join("text.jsonl"), text).unwrap();
    let settings = std::fs::read_to_string(dir.path().join("tiny.yaml")).unwrap();
    let settings = settings.replace("model: tiny", "model: base").replace("chats.jsonl", "text.jsonl");
    std::fs::write(dir.path().join("more.yaml"), settings).unwrap();

    let many = (0..70).map(|i| format!("<word{i}>")).collect::<Vec<_>>().join(",");
    let tokens = format!("<ore>,{many}");
    let train = ["--config", "more.yaml", "--new-tokens", &tokens, "--save-gguf", "f16", "--embedding-learning-rate", "0.0006"];
    let (out, _) = run(&[&train[..], &["--modules-to-save", "embed_tokens"]].concat(), 0);
    assert!(out.contains("71 tokens added"), "{out}");
    let results = dir.path().join("runs/sft/train/results.csv");
    let csv = std::fs::read_to_string(results).unwrap();
    assert!(csv.lines().next().unwrap().ends_with("lr/pg0,lr/pg1,lr/pg2"), "{csv}");
    let last: Vec<f64> = csv.lines().nth(1).unwrap().rsplit(',').take(3).map(|x| x.parse().unwrap()).collect();
    assert!((last[0] / last[2] - 0.2).abs() < 1e-3, "a fifth of the adapters' rate: {csv}");

    // The embedding moved, the new rows with it, and whoever uses the adapter gets them.
    let adapter = dir.path().join("runs/sft/train/adapter");
    let trained = read(&adapter.join("adapter_model.safetensors")).unwrap().tensors;
    let embedding = &trained["base_model.model.model.embed_tokens.weight"];
    let base = read(&dir.path().join("base/model.safetensors")).unwrap().tensors;
    let begun = &base["model.embed_tokens.weight"];
    assert!(embedding.shape[0] > begun.shape[0], "{:?}", embedding.shape);
    // New rows begin alike, so what has been read has learnt something else than what was not.
    let tokenizer = std::fs::read(adapter.join("tokenizer.json")).unwrap();
    let tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    let row = |token: &str| {
        let id = tokenizer["added_tokens"].as_array().unwrap().iter().find(|added| added["content"] == token).unwrap()["id"].as_u64();
        let bytes = 4 * embedding.shape[1];
        &embedding.data[id.unwrap() as usize * bytes..][..bytes]
    };
    assert!(row("<ore>") != row("<word0>"));
    let speak = ["generate", "--model", "base", "--adapter", "runs/sft/train/adapter", "--prompt", "The <ore>", "--max-new-tokens", "3"];
    run(&[&speak[..], &["--device", "cpu"]].concat(), 0);
    run(&["merge", "--model", "base", "--adapter", "runs/sft/train/adapter", "--out", "merged"], 0);
    run(&["generate", "--model", "merged", "--prompt", "The <ore>", "--max-new-tokens", "3", "--device", "cpu"], 0);
    run(&["generate", "--model", "runs/sft/train/model-f16.gguf", "--prompt", "The <ore>", "--max-new-tokens", "3", "--device", "cpu"], 0);
    // That the embedding is trained, the adapter says.
    let (out, _) = run(&[&train[..], &["--adapter", "runs/sft/train/adapter", "--name", "on", "--epochs", "1"]].concat(), 0);
    assert!(!out.contains("tokens added"), "they are there: {out}");

    // Further ones begin as the mean of the adapter's rows, in its padding and behind it, and the others are what they were: a rate of 0 leaves them so.
    let further = (0..64).map(|i| format!("<slag{i}>")).collect::<Vec<_>>();
    let old = embedding.to_f32().unwrap();
    for (count, name) in [(1, "room"), (64, "rows")] {
        let tokens = further[..count].join(",");
        let more = ["--config", "more.yaml", "--new-tokens", &tokens, "--adapter"];
        let (out, _) = run(&[&more[..], &["runs/sft/train/adapter", "--learning-rate", "0", "--epochs", "1", "--name", name]].concat(), 0);
        assert!(out.contains(&format!("{count} tokens added")), "{out}");
        let adapter = dir.path().join("runs/sft").join(name).join("adapter");
        let tensors = read(&adapter.join("adapter_model.safetensors")).unwrap().tensors;
        let new = tensors["base_model.model.model.embed_tokens.weight"].to_f32().unwrap();
        let tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(adapter.join("tokenizer.json")).unwrap()).unwrap();
        let slag = tokenizer["added_tokens"].as_array().unwrap().iter().find(|added| added["content"] == "<slag0>").unwrap();
        let (first, width) = (slag["id"].as_u64().unwrap() as usize, embedding.shape[1]);
        assert!(new[..first * width] == old[..first * width]);
        let mean = |column: usize| (0..first).map(|row| f64::from(old[row * width + column])).sum::<f64>() / first as f64;
        for row in [first, first + count - 1] {
            assert!((0..width).all(|column| (f64::from(new[row * width + column]) - mean(column)).abs() < 1e-6), "{name}: row {row}");
        }
    }

    // Rows that nobody trains are refused, also where an adapter that does not is gone on with.
    // Of that one the advice is no setting, which would be refused for being the adapter's.
    let other = "the adapter in made/train/adapter does not train them, and cannot be made to: merge it into its model, and train a new adapter on that";
    for (adapter, [tokens, rate]) in [
        (&[][..], ["modules_to_save embed_tokens (and lm_head, if the model has one)", "modules_to_save embed_tokens or lm_head"]),
        (&["--adapter", "made/train/adapter"], [other; 2]),
    ] {
        let plain = [&["--config", "more.yaml"][..], adapter].concat();
        let (_, err) = run(&[&plain[..], &["--new-tokens", "<ore>"]].concat(), 2);
        assert!(err.contains(&format!("new_tokens need rows that are trained: {tokens}")), "{err}");
        let (_, err) = run(&[&plain[..], &["--embedding-learning-rate", "1e-5"]].concat(), 2);
        assert!(err.contains(&format!("neither the embedding nor a head is trained: {rate}")), "{err}");
    }
}

#[test]
fn pairs_of_answers_train_and_bad_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let row = |i: usize| format!("{{\"prompt\": \"Say {i}.\", \"chosen\": \"It is so.\", \"rejected\": \"One two {i}.\"}}\n");
    std::fs::write(dir.path().join("pairs.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
    let settings = std::fs::read_to_string(dir.path().join("tiny.yaml")).unwrap().replace("chats.jsonl", "pairs.jsonl");
    std::fs::write(dir.path().join("pairs.yaml"), settings).unwrap();
    let run = |args: &[&str], code| expect_code(&mut llm_finetune(dir.path(), &[&["--config", "pairs.yaml"], args].concat()), code);
    for objective in ["orpo", "simpo", "dpo"] {
        let (out, _) = run(&["--objective", objective, "--name", objective], 0);
        assert!(out.contains("10 pairs of answers") && out.contains("% of pairs in order") && !out.contains("perplexity"), "{out}");
        let csv = std::fs::read_to_string(dir.path().join("runs/sft").join(objective).join("results.csv")).unwrap();
        let head = "epoch,time,train/loss,train/accuracy,train/margin,val/loss,val/accuracy,val/margin,lr/pg0,lr/pg1";
        assert_eq!(csv.lines().next().unwrap(), head);
    }
    // Pairs stay together in a file too, and are counted as one.
    let rows = |name: &str| -> Vec<String> {
        let csv = std::fs::read_to_string(dir.path().join("runs/sft").join(name).join("results.csv")).unwrap();
        csv.lines().skip(1).map(|line| line.splitn(3, ',').last().unwrap().to_owned()).collect()
    };
    run(&["--objective", "dpo", "--name", "streamed", "--streaming", "true"], 0);
    assert_eq!(rows("streamed"), rows("dpo"));
    let (out, _) = run(&["--objective", "dpo", "--name", "few", "--max-samples", "4", "--epochs", "1"], 0);
    assert!(out.contains("4 pairs of answers"), "{out}");
    let (_, err) = run(&[], 2);
    assert!(err.contains("pairs.jsonl:1: the row is a pair of answers"), "{err}");
    let (_, err) = run(&["--objective", "dpo", "--data", "chats.jsonl"], 2);
    assert!(err.contains("chats.jsonl:1: the row is no pair of answers"), "{err}");
    std::fs::write(dir.path().join("bad.jsonl"), row(1) + "{\"prompt\": \"a\", \"chosen\": \"b\"}\n").unwrap();
    let (_, err) = run(&["--objective", "dpo", "--data", "bad.jsonl", "--val-size", "0"], 2);
    assert!(err.contains("bad.jsonl:2: `rejected` is missing; expected text"), "{err}");
    let (_, err) = run(&["--objective", "best"], 2);
    assert!(err.contains("objective"), "{err}");
}

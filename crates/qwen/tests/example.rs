//! The example of the library's use does what it says.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, unreachable_pub, reason = "its main is not called")]
#[path = "../examples/finetune_custom.rs"]
mod finetune_custom;

#[test]
fn a_model_learns_chats_made_in_code() {
    let dir = tempfile::tempdir().unwrap();
    let (loss, answer) = finetune_custom::finetune(dir.path(), 15).unwrap();
    assert!(loss < 0.5, "{loss}");
    assert_eq!(answer, "In a hive.");
    for file in ["adapter/adapter_model.safetensors", "adapter/adapter_config.json", "adapter/tokenizer.json", "facts.gguf"] {
        assert!(dir.path().join("facts").join(file).exists(), "no {file}");
    }
    // In one file, the GGUF is the whole of it.
    let device = burn::tensor::Device::flex();
    assert_eq!(bellows_qwen::base::Base::open(&dir.path().join("facts/facts.gguf"), &device).unwrap().config.num_hidden_layers, 4);
}

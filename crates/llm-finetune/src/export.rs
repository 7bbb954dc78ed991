//! `merge` and `export`: a model, with or without an adapter, as files of other tools.

use bellows_chat::Template;
use bellows_cli::say;
use bellows_device::processor;
use bellows_qwen::export::write_transformers;
use bellows_qwen::weights;
use bellows_weights::DType;

use crate::args::ExportArgs;
use crate::speak::open;
use crate::train::gguf;

pub(crate) fn merge(args: &ExportArgs) -> anyhow::Result<()> {
    let base = open(&args.model, args.adapter.as_deref(), &processor())?;
    let dtype = match args.kind.as_str() {
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        _ => DType::F32,
    };
    write_transformers(&args.out, &weights::merge(base.model), &base.config, &base.tokenizer, dtype)?;
    say(&format!("Saved {}", args.out.display()));
    Ok(())
}

pub(crate) fn export(args: &ExportArgs) -> anyhow::Result<()> {
    let mut base = open(&args.model, args.adapter.as_deref(), &processor())?;
    if base.tokenizer.chat_template().is_none() {
        let template = Template::detect(&base.tokenizer, Some(base.config.architecture.model_type()))?;
        base.tokenizer.set_chat_template(template.source().to_owned());
    }
    gguf(&args.out, &weights::merge(base.model), &base.config, &base.tokenizer, &args.kind, args.system.as_deref())
}

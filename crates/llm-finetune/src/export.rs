//! `merge` and `export`: a model, with or without an adapter, as files of other tools.

use std::path::{Path, PathBuf};

use bellows_chat::{Template, Tokenizer};
use bellows_cli::{Failure, Usage, note, say};
use bellows_device::processor;
use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::Base;
use bellows_qwen::gguf_lora::write_gguf_lora;
use bellows_qwen::hub::{describe, locate};
use bellows_qwen::merging::{Merging, own_dtype};
use bellows_qwen::modelfile::modelfile;
use bellows_qwen::peft;
use bellows_runs::write_atomic;
use bellows_weights::DType;
use burn::tensor::Device;

use crate::args::ExportArgs;
use crate::speak::{adapter_tokenizer, adopt_tokenizer};
use crate::train::{directory, gguf, modelfile_of};

pub(crate) fn merge(args: &ExportArgs) -> Result<(), Failure> {
    spare_model(args)?;
    if args.out.join("adapter_config.json").exists() {
        let why = "holds an adapter, which transformers would put on the merged model once more: name another folder";
        return Err(Usage(format!("--out {} {why}", args.out.display())).into());
    }
    let device = processor();
    let (mut base, adapter, path) = open(args, &device)?;
    adopt(&mut base.tokenizer, base.config.architecture);
    let dtype = match args.kind.as_deref() {
        Some("f16") => DType::F16,
        Some("bf16") => DType::BF16,
        Some(_) => DType::F32,
        None => own_dtype(&path)?,
    };
    let merging = Merging::open(&path, (&base.model, &base.config), &adapter, &device)?;
    directory(&args.out, &merging, &base.config, &base.tokenizer, dtype)
}

pub(crate) fn export(args: &ExportArgs) -> Result<(), Failure> {
    spare_model(args)?;
    // It would be found out when the file is written and gets its name.
    if args.out.is_dir() {
        return Err(Usage(format!("--out {} is a folder: name a file in it", args.out.display())).into());
    }
    spare_parts(args)?;
    if args.adapter_only {
        return export_adapter(args);
    }
    let device = processor();
    let (mut base, adapter, path) = open(args, &device)?;
    let template = adopt(&mut base.tokenizer, base.config.architecture);
    gguf(
        &args.out,
        &Merging::open(&path, (&base.model, &base.config), &adapter, &device)?,
        &base.config,
        &base.tokenizer,
        args.kind.as_deref().unwrap_or("q8_0"),
        args.system.as_deref(),
        template.as_ref(),
    )
}

/// The model with the adapter, if there is one, its own weights left in the files; the adapter's settings; where the files are.
fn open(args: &ExportArgs, device: &Device) -> Result<(Base, LoraConfig, PathBuf), Failure> {
    let path = locate(&args.model, args.offline, &mut note)?;
    let (mut base, mut adapter) = (Base::without_weights(&path, device)?, LoraConfig::default());
    if let Some(dir) = &args.adapter {
        adopt_tokenizer(&mut base, dir)?;
        let tensors;
        (adapter, tensors) = peft::read(dir)?;
        base.model = peft::attach(base.model, &adapter, tensors, dir)?;
    }
    Ok((base, adapter, path))
}

/// Refuses to write over the model that is read.
fn spare_model(args: &ExportArgs) -> Result<(), Failure> {
    match (args.out.canonicalize(), Path::new(&args.model).canonicalize()) {
        (Ok(out), Ok(model)) if out == model => {
            Err(Usage(format!("--out {} is the model itself, which would be replaced: name another", args.out.display())).into())
        }
        _ => Ok(()),
    }
}

/// Refuses to write over a file of the folder that a model or an adapter is read from; another GGUF that lies there is an export's.
fn spare_parts(args: &ExportArgs) -> Result<(), Failure> {
    // The folder alone without links: in a cache the files are some, and they would be replaced.
    let folder = std::path::absolute(&args.out).ok().and_then(|out| out.parent()?.canonicalize().ok());
    let is_gguf = args.out.extension().is_some_and(|suffix| suffix == "gguf");
    let mut read = [Some(Path::new(&args.model)), args.adapter.as_deref()].into_iter().flatten();
    if args.out.is_file() && !is_gguf && folder.is_some() && read.any(|input| input.canonicalize().ok() == folder) {
        let why = "is a file of the model or of the adapter that is read, and would be replaced: name another";
        return Err(Usage(format!("--out {} {why}", args.out.display())).into());
    }
    Ok(())
}

/// The template of a model, which its tokenizer then has too; none of a model that does not chat.
fn adopt(tokenizer: &mut Tokenizer, architecture: Architecture) -> Option<Template> {
    let template = Template::detect(tokenizer, Some(architecture.model_type())).ok()?;
    tokenizer.adopt(&template);
    Some(template)
}

/// The adapter alone, and a Modelfile that puts it on its model.
fn export_adapter(args: &ExportArgs) -> Result<(), Failure> {
    let dir = args.adapter.as_deref().ok_or_else(|| Usage("--format gguf-lora needs --adapter".into()))?;
    if args.kind.is_some() {
        return Err(Usage("--format gguf-lora writes f32, which an adapter is small enough for: leave out --quant".into()).into());
    }
    let model = describe(&args.model, args.offline, &mut note)?;
    let (config, tensors) = peft::read(dir)?;
    let shape = Base::shape(&model)?;
    let mut tokenizer = adapter_tokenizer(dir)?.map_or_else(|| Base::tokenizer(&model), Ok)?;
    let template = adopt(&mut tokenizer, shape.architecture);
    let name = args.out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    write_gguf_lora(&args.out, &config, tensors, &shape, name.trim_end_matches(".gguf"))?;
    let beside = modelfile_of(&args.out);
    let from = model.canonicalize().unwrap_or(model);
    let (from, adapter) = (from.display().to_string(), format!("./{name}"));
    let text = modelfile(&from, Some(&adapter), args.system.as_deref(), template.as_ref(), &tokenizer);
    write_atomic(&beside, text.as_bytes())?;
    say(&format!("Saved {} and {}", args.out.display(), beside.display()));
    Ok(())
}

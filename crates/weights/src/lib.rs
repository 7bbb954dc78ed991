//! Weight files to named tensors, and back.
//!
//! Reads safetensors, `.pt` (what `torch.save` writes) and ONNX, recognised by content and not by extension, and writes them. Models too large to be read at once are a [`Checkpoint`] or a [`gguf::Gguf`]: mapped, and read and written a
//! tensor at a time. It knows no model: names, shapes and bytes come out as they were stored.
//!
//! Every file is treated as hostile. A `.pt` holds a Python pickle, which in Python may run any code; here an
//! interpreter of our own walks it, builds tensors through an allow-list of globals, and executes nothing
//! (see `pt`). What a file may make us allocate is bounded by its own size (see `limits`).
//! Finiteness is not checked on reading: callers ask for it with [`check_finite`].

mod blocks;
mod error;
mod floats;
pub mod gguf;
mod limits;
mod map;
pub mod onnx;
mod parts;
pub mod pt;
mod safetensors;
mod tensor;

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

pub use blocks::{BlockType, Quantized};
pub use error::{Fault, WeightsError};
pub use floats::{to_bf16, to_f16};
pub use parts::Parts;
pub use safetensors::{Checkpoint, from_safetensors, to_safetensors, write_checkpoint, write_safetensors};
pub use tensor::{DType, Tensor, TensorSpec, Tensors, Weights, check_finite};

/// Reads a safetensors, `.pt` or ONNX file.
///
/// # Errors
/// [`WeightsError`] with the path, and what was refused where. Nothing partial is returned.
pub fn read(path: &Path) -> Result<Weights, WeightsError> {
    read_file(path).map_err(|fault| WeightsError { path: Some(path.to_owned()), fault })
}

fn read_file(path: &Path) -> Result<Weights, Fault> {
    // Asked before opening: opening a named pipe would wait for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Fault::NotAFile);
    }
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut start = Vec::with_capacity(9);
    Read::by_ref(&mut file).take(9).read_to_end(&mut start)?;
    file.rewind()?;
    if start.starts_with(b"PK\x03\x04") {
        pt::read(BufReader::new(file), size)
    } else if start.get(8) == Some(&b'{') {
        safetensors::read(BufReader::new(file), size)
    } else if onnx::is_onnx(&start) {
        onnx::read(file, size)
    } else {
        Err(Fault::Unrecognised { start })
    }
}

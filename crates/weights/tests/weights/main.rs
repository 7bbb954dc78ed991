//! The crate from outside: files PyTorch wrote, files that break a rule, and damaged files.

#[cfg(test)]
#[path = "../../../chat/tests/support/assets.rs"]
#[allow(unreachable_pub, reason = "shared with the tests of other crates")]
mod assets;
#[cfg(test)]
mod blocks;
#[cfg(test)]
mod checkpoint;
#[cfg(test)]
mod common;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod gguf;
#[cfg(test)]
mod gguf_hostile;
#[cfg(test)]
mod onnx;
#[cfg(test)]
mod pt;
#[cfg(test)]
mod pt_write;
#[cfg(test)]
mod refusals;

//! How a device that has run out of memory is recognised.
//!
//! With CubeCL 0.11.3 an allocation that fails is told by every read of a tensor that depends on it: what the step reads is an error then, with the
//! words of `cubecl_runtime::server::{IoError, LaunchError}`, and the device goes on serving. (On SwiftShader: "can't allocate buffer of size".) wgpu's own
//! allocations, and reads while a kernel is being chosen (autotune), panic with such words instead. A driver that finds no memory for a submission gives
//! up the device: then it is said to be poisoned, or lost, as well.

use std::any::Any;

use bellows_kernels::cube::out_of_memory;

/// What wgpu-core calls its limits of one buffer, to which a smaller batch keeps; in lower case, `_` and `-` taken for spaces.
const LIMITS: [&str; 2] = ["maximum buffer size", "buffer binding size"];

/// What a device is called that will not serve again.
const LOST: [&str; 4] = ["device is poisoned", "device was poisoned", "device is lost", "device lost"];

/// The device ran out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Its own words: the line that says so.
    pub(crate) reason: String,
    /// It will not serve again in this process.
    pub(crate) lost: bool,
}

impl Shortage {
    /// What `message` says of memory, if anything.
    pub(crate) fn of(message: &str) -> Option<Self> {
        let plain = |text: &str| text.to_lowercase().replace(['_', '-'], " ");
        let says = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
        let reason = message.lines().find(|line| out_of_memory(line) || says(&plain(line), &LIMITS))?;
        Some(Self { reason: reason.trim().into(), lost: says(&plain(message), &LOST) })
    }

    /// What a panic says of memory.
    pub(crate) fn of_panic(payload: &(dyn Any + Send)) -> Option<Self> {
        let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
        text.and_then(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_every_layer_are_known() {
        let unwritten = "The bytes were never written (failure #0, still claiming 1 buffer(s))\nCaused by:\n  An IO error happened\n\
                         Caused by:\n  out of device memory allocating 4096 bytes\n<backtrace>";
        assert_eq!(Shortage::of(unwritten), Some(Shortage { reason: "out of device memory allocating 4096 bytes".into(), lost: false }));
        let lost = "The device is poisoned\nCaused by:\n  Unknown: Out of memory";
        assert_eq!(Shortage::of(lost), Some(Shortage { reason: "Unknown: Out of memory".into(), lost: true }));
        for text in [
            "can't allocate buffer of size: 68719476736",
            "Can't allocate 4096 bytes: every page size the memory tracks still holds live allocations",
            "An out-of-memory error happened during launch",
            "wgpu error: Out of Memory",
            "Not enough memory left.",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "VK_ERROR_OUT_OF_DEVICE_MEMORY",
            "hipErrorOutOfMemory",
            "Buffer size 5368709120 is greater than the maximum buffer size (4294967296)",
            "Buffer binding 0 range 5368709120 exceeds `max_*_buffer_binding_size` limit 4294967295",
        ] {
            assert!(Shortage::of(text).is_some_and(|s| !s.lost), "{text}");
        }
        for text in [
            "The device is poisoned\nCaused by:\n  Unknown: Device is lost",
            "Too much shared memory requested.\nRequested 65536 bytes, maximum 49152 bytes available.",
            "couldn't find resource for that handle: memory page 3",
            "index out of bounds: the len is 3 but the index is 4",
        ] {
            assert_eq!(Shortage::of(text), None, "{text}");
        }
    }
}

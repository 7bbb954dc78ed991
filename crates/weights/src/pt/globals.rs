//! The allow-list: which Python globals a weight file may name, and what we make of each.
//!
//! None is ever imported or called. Those that build tensors and dictionaries have a meaning here; classes
//! of neural-network modules and a few values found in training records are carried as opaque objects.

use crate::tensor::DType;

/// What a global means to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `OrderedDict()`: an empty dictionary.
    OrderedDict,
    /// `_rebuild_tensor_v2(storage, offset, size, stride, ...)`: a view of a storage.
    RebuildTensor,
    /// `_rebuild_parameter(tensor, ...)`: that tensor.
    RebuildParameter,
    /// `torch.Size(tuple)`: that tuple.
    Size,
    /// A typed storage class, named inside persistent ids.
    Storage(DType),
    /// Kept by name, with arguments and state, never run.
    Opaque,
}

/// Modules all of whose classes are opaque: what whole-model checkpoints are made of.
const OPAQUE_MODULES: [&str; 2] = ["torch.nn.modules.", "ultralytics."];

/// The meaning of `module.name`, or `None` if it is not allowed.
pub(super) fn meaning(module: &str, name: &str) -> Option<Meaning> {
    Some(match (module, name) {
        ("collections", "OrderedDict") => Meaning::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Meaning::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Meaning::RebuildParameter,
        ("torch", "Size") => Meaning::Size,
        ("torch", "DoubleStorage") => Meaning::Storage(DType::F64),
        ("torch", "FloatStorage") => Meaning::Storage(DType::F32),
        ("torch", "HalfStorage") => Meaning::Storage(DType::F16),
        ("torch", "BFloat16Storage") => Meaning::Storage(DType::BF16),
        ("torch", "LongStorage") => Meaning::Storage(DType::I64),
        ("torch", "IntStorage") => Meaning::Storage(DType::I32),
        ("torch", "ShortStorage") => Meaning::Storage(DType::I16),
        ("torch", "CharStorage") => Meaning::Storage(DType::I8),
        ("torch", "ByteStorage") => Meaning::Storage(DType::U8),
        ("torch", "BoolStorage") => Meaning::Storage(DType::Bool),
        ("torch", "device") => Meaning::Opaque,
        ("torch", "float64" | "float32" | "float16" | "bfloat16" | "int64" | "int32" | "int16" | "int8" | "uint8" | "bool") => {
            Meaning::Opaque
        }
        // Python 3 writes the names of Python 2 at protocol 2; both are the set type.
        ("__builtin__" | "builtins", "set") => Meaning::Opaque,
        // Metrics are often numpy scalars; their bytes come as latin-1 text through `encode`.
        ("_codecs", "encode") => Meaning::Opaque,
        ("numpy", "dtype" | "ndarray") => Meaning::Opaque,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar" | "_reconstruct") => Meaning::Opaque,
        _ if OPAQUE_MODULES.iter().any(|prefix| module.starts_with(prefix)) => Meaning::Opaque,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_code_is_not_on_the_list() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("subprocess", "Popen"),
            ("builtins", "eval"),
            ("__builtin__", "getattr"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("torch.nn", "Module"),
            ("torch.nn.modulesx", "Conv2d"),
            ("ultralytics", "YOLO"),
            ("numpy", "load"),
            ("collections", "OrderedDict.fromkeys"),
            ("", ""),
        ] {
            assert_eq!(meaning(module, name), None, "{module}.{name}");
        }
        assert_eq!(meaning("torch.nn.modules.conv", "Conv2d"), Some(Meaning::Opaque));
    }
}

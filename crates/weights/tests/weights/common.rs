//! Weight files made by hand.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use bellows_weights::{Weights, WeightsError};
use zip::write::SimpleFileOptions;

pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Reads bytes through a file, as users do.
pub(crate) fn read_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file.flush().unwrap();
    bellows_weights::read(file.path())
}

/// A stored zip of these entries.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, data) in entries {
        writer.start_file(*name, stored).unwrap();
        writer.write_all(data).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A `.pt` of this pickle and one storage of these bytes.
pub(crate) fn pt(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", storage)])
}

/// A pickled dictionary of these text keys and pickled values.
pub(crate) fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut pickle = b"}(".to_vec();
    for (key, value) in entries {
        pickle.extend(text(key));
        pickle.extend(value);
    }
    pickle.push(b'u');
    pickle
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut pickle = b"X".to_vec();
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
    pickle
}

pub(crate) fn int(int: i32) -> Vec<u8> {
    [&b"J"[..], &int.to_le_bytes()].concat()
}

pub(crate) fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".to_vec(), items.concat(), b"t".to_vec()].concat()
}

pub(crate) fn ints(items: &[i32]) -> Vec<u8> {
    tuple(&items.iter().map(|&item| int(item)).collect::<Vec<_>>())
}

/// A pickled view of storage `0` of `held` floats.
pub(crate) fn tensor(held: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    let id = tuple(&[text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), int(held)]);
    let storage = [id, b"Q".to_vec()].concat();
    let hooks = b"ccollections\nOrderedDict\n)R".to_vec();
    let arguments = tuple(&[storage, int(offset), ints(shape), ints(strides), b"\x89".to_vec(), hooks]);
    [b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), arguments, b"R".to_vec()].concat()
}

/// A whole pickle of this value.
pub(crate) fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02", value, b"."].concat()
}

/// A pickled `torch.nn.modules` instance with these parameters and children.
pub(crate) fn module(parameters: &[(&str, Vec<u8>)], modules: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let state = dict(&[("_parameters", dict(parameters)), ("_buffers", dict(&[])), ("_modules", dict(modules))]);
    [b"ctorch.nn.modules.x\nX\n)\x81".to_vec(), state, b"b".to_vec()].concat()
}

//! Every bound and rule, each broken by a file made for it.

use std::collections::BTreeMap;

use crate::common::*;
use bellows_weights::{DType, Tensor, Tensors, from_safetensors, to_safetensors};
use proptest::prelude::*;

#[track_caller]
fn refused(bytes: &[u8], what: &str) {
    let error = read_bytes(bytes).map(|weights| weights.tensors.into_keys().collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(error.contains(what), "{error:?} does not say {what:?}");
}

fn good() -> Vec<u8> {
    pickle(&dict(&[("w", tensor(4, 0, &[2, 2], &[2, 1]))]))
}

#[test]
fn the_hand_made_file_is_read_when_nothing_is_broken() {
    let weights = read_bytes(&pt(&good(), &[0; 16])).unwrap();
    assert_eq!(weights.tensors["w"], Tensor::from_f32([2, 2], &[0.0; 4]));
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_opened() {
    let error = bellows_weights::read(std::path::Path::new("/dev/null")).map(|weights| weights.tensors.len()).unwrap_err();
    assert_eq!(error.to_string(), "/dev/null: not a regular file");
}

#[test]
fn containers() {
    refused(b"", "neither safetensors, nor a .pt");
    refused(b"\x80\x02\x8a\x0alegacy pickle", "before 1.6");
    refused(b"PK\x03\x04 not really", "zip: cannot be opened");
    refused(&zip(&[("constants.pkl", b"")]), "there is no <name>/data.pkl");
    refused(&zip(&[("data.pkl", b"N.")]), "there is no <name>/data.pkl");
    refused(&zip(&[("a/data.pkl", b"N."), ("b/data.pkl", b"N.")]), "several directories");
    refused(&zip(&[("a/data.pkl", b"N."), ("a/byteorder", b"big")]), "byte order is `big`");
    refused(&zip(&[("a/data.pkl", &good())]), "entry `data/0`: ");
    refused(&pt(&good(), &[0; 12]), "entry `data/0` has 12 bytes, the pickle says 16");
    refused(&pt(&good(), &[0; 20]), "bytes of entry `data/0`: 20 is over the limit of 16");
}

/// Changes a field of every local (30-byte) and central (46-byte) zip header; the offsets are those of the ZIP specification.
fn patch_headers(zip: &mut [u8], local: usize, central: usize, field: &[u8]) {
    for (magic, at) in [(b"PK\x03\x04", local), (b"PK\x01\x02", central)] {
        let headers: Vec<usize> = zip.windows(4).enumerate().filter(|(_, window)| window == magic).map(|(i, _)| i).collect();
        for header in headers {
            zip[header + at..header + at + field.len()].copy_from_slice(field);
        }
    }
}

#[test]
fn zip_tricks() {
    let file = pt(&good(), &[0; 16]);
    let patched = |local, central, field: &[u8]| {
        let mut bytes = file.clone();
        patch_headers(&mut bytes, local, central, field);
        bytes
    };
    refused(&patched(8, 10, &8u16.to_le_bytes()), "is compressed");
    refused(&patched(6, 8, &1u16.to_le_bytes()), "is encrypted");
    refused(&patched(22, 24, &1_000_000u32.to_le_bytes()), "is compressed");
    let mut huge = patched(18, 20, &1_000_000u32.to_le_bytes());
    patch_headers(&mut huge, 22, 24, &1_000_000u32.to_le_bytes());
    refused(&huge, "has 1000000 bytes, the whole file");
    refused(&patched(14, 16, &[1, 2, 3, 4]), "checksum");

    // Two entries of one name: the zip writer refuses, so the second one is renamed afterwards.
    let mut twice = zip(&[("a/data.pkl", &good()), ("a/data.pkk", &good())]);
    let names: Vec<usize> = twice.windows(10).enumerate().filter(|(_, window)| window == b"a/data.pkk").map(|(i, _)| i).collect();
    for name in names {
        twice[name + 9] = b'l';
    }
    refused(&twice, "two entries have the same name");

    // A second central header that points at the first entry's local header.
    let mut overlap = zip(&[("a/data.pkl", &good()), ("a/datb.pkl", &good())]);
    let central = overlap.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    overlap[central + 42..central + 46].copy_from_slice(&0u32.to_le_bytes());
    refused(&overlap, "entries overlap");
}

#[test]
fn pickles() {
    let global = |name: &str| pt(&pickle(format!("c{name}\n)R").as_bytes()), &[]);
    refused(&global("os\nsystem"), "`os.system` is not allowed");
    refused(&global("builtins\nexec"), "`builtins.exec` is not allowed");
    refused(&global("torch.storage\nUntypedStorage"), "`torch.storage.UntypedStorage` is not allowed");
    refused(&pt(b"\x80\x05\x95.", &[]), "pickle protocol 5");
    refused(&pt(b"\x80\x02}", &[]), "data.pkl byte 3: 1 bytes wanted, 0 left");
    refused(&pt(&pickle(b"}"), &[]), "no weights found: a dict without tensors");
    refused(&pt(&pickle(b"K\x01"), &[]), "no weights found: the file holds an int");
    refused(&pt(&pickle(&dict(&[("a", dict(&[]))])), &[]), "holds a dict, in a dictionary that should map names to tensors");
    refused(&pt(&pickle(&dict(&[("w", tensor(4, 0, &[5], &[1]))])), &[0; 16]), "reaches beyond storage `0` of 4 elements");
    refused(&pt(&pickle(&dict(&[("w", tensor(-4, 0, &[1], &[1]))])), &[0; 16]), "storage `0` of -4 F32 elements");
    let twice = dict(&[("w", tensor(4, 0, &[4], &[1])), ("w", tensor(4, 0, &[4], &[1]))]);
    refused(&pt(&pickle(&twice), &[0; 16]), "two tensors are named `w`");
    refused(&pt(&pickle(&dict(&[("a\nb", tensor(4, 0, &[4], &[1]))])), &[0; 16]), "control characters");
    let long = "n".repeat(1025);
    refused(&pt(&pickle(&dict(&[(&long, tensor(4, 0, &[4], &[1]))])), &[0; 16]), "name: 1025 is over the limit of 1024");
}

#[test]
fn bombs() {
    // One float, seen as a million.
    let expanded = dict(&[("w", tensor(4, 0, &[1000, 1000], &[0, 0]))]);
    refused(&pt(&pickle(&expanded), &[0; 16]), "bytes of tensors and names: 4000001 is over the limit");

    // One storage, seen whole a thousand times.
    let view = tensor(1024, 0, &[1024], &[1]);
    let mut copies = [b"}".to_vec(), text("w"), view, b"q\x01s".to_vec()].concat();
    for i in 0..1000 {
        copies.extend([text(&format!("w{i}")), b"h\x01s".to_vec()].concat());
    }
    refused(&pt(&pickle(&copies), &[0; 4096]), "bytes of tensors and names");

    // A module that contains itself.
    let state = b"}(X\x0b\x00\x00\x00_parameters}X\x08\x00\x00\x00_buffers}X\x08\x00\x00\x00_modules}X\x01\x00\x00\x00mh\x01su";
    let looped = [b"ctorch.nn.modules.x\nX\n)\x81q\x01", &state[..], b"b"].concat();
    refused(&pt(&pickle(&looped), &[]), "nesting of modules: 65 is over the limit of 64");

    // Two children, each with the same two children, thirty deep: a billion modules in a few kilobytes.
    let mut tree = [module(&[], &[]), b"q\x01".to_vec()].concat();
    for _ in 0..30 {
        let mut children = b"h\x01".to_vec();
        children = [module(&[], &[("a", children.clone()), ("b", children)]), b"q\x01".to_vec()].concat();
        tree.extend(children);
    }
    refused(&pt(&pickle(&tree), &[]), "bytes of tensors and names");

    // Sixty modules that share one dictionary of two hundred thousand absent parameters.
    let absent = [b"(".to_vec(), b"K\x01N".repeat(1000), b"u".to_vec()].concat().repeat(200);
    let with = |parameters: Vec<u8>, modules: &[(&str, Vec<u8>)]| {
        let state = dict(&[("_parameters", parameters), ("_buffers", dict(&[])), ("_modules", dict(modules))]);
        [b"ctorch.nn.modules.x\nX\n)\x81".to_vec(), state, b"b".to_vec()].concat()
    };
    let sharing = vec![("m", with(b"h\x02".to_vec(), &[])); 60];
    refused(&pt(&pickle(&with([b"}".to_vec(), absent, b"q\x02".to_vec()].concat(), &sharing)), &[]), "steps through the pickled modules");
}

#[test]
fn modules() {
    let whole = |module: Vec<u8>| pt(&pickle(&module), &[0; 16]);
    let weights = read_bytes(&whole(module(&[], &[("a", module(&[("w", tensor(4, 0, &[4], &[1])), ("b", b"N".to_vec())], &[]))]))).unwrap();
    assert_eq!(weights.tensors.keys().collect::<Vec<_>>(), ["a.w"]);
    assert_eq!(weights.classes.keys().collect::<Vec<_>>(), ["", "a"]);

    refused(&whole(module(&[("w", b"K\x01".to_vec())], &[])), "tensor `w`: it is an int");
    refused(&whole(module(&[], &[("a", b"K\x01".to_vec())])), "module `a` is an int without attributes");
    refused(&whole(b"cultralytics.x\nX\n)\x81}b".to_vec()), "module `` has no `_parameters`");
    refused(&whole(module(&[], &[])), "without tensors");
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn safetensors_headers() {
    let good = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert_eq!(read_bytes(&safetensors(good, &[0; 8])).unwrap().tensors["w"].shape, [2]);

    refused(&safetensors(good, &[0; 7]), "it describes 8 bytes of data, but 7 follow");
    refused(&safetensors(good, &[0; 9]), "it describes 8 bytes of data, but 9 follow");
    refused(&safetensors(good, &[0; 8])[..40], "bytes of the safetensors header: 54 is over the limit of 32");
    let mut long = safetensors(good, &[0; 8]);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&long, "is over the limit of 62");
    refused(&safetensors("{", &[]), "safetensors header: EOF");
    refused(&safetensors(r#"{"w":1}"#, &[]), "safetensors header: invalid type");

    let one =
        |dtype: &str, shape: &str, offsets: &str| format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
    refused(&safetensors(&one("F32", "[2]", "[4,12]"), &[0; 12]), "offset"); // a hole
    refused(&safetensors(&one("F32", "[3]", "[0,8]"), &[0; 8]), "invalid shape");
    refused(&safetensors(&one("F32", "[4294967296,4294967296]", "[0,8]"), &[0; 8]), "overflow");
    refused(&safetensors(&one("F32", "[-1]", "[0,8]"), &[0; 8]), "invalid value");
    refused(&safetensors(&one("F8_E5M2", "[8]", "[0,8]"), &[0; 8]), "tensor `w`: dtype F8_E5M2 is not supported");
    refused(&safetensors(&one("Q9", "[8]", "[0,8]"), &[0; 8]), "unknown variant");
    let two = |a: &str, b: &str| format!("{{{},{}}}", &a[1..a.len() - 1], &b[1..b.len() - 1]);
    let renamed = good.replace('w', "v").replace("[0,8]", "[4,12]");
    refused(&safetensors(&two(good, &renamed), &[0; 12]), "offset"); // an overlap
    refused(&safetensors(&two(good, good), &[0; 8]), "`w` appears twice");
    refused(&safetensors(&good.replace("\"w\"", "\"\\n\""), &[0; 8]), "control characters");
}

#[test]
fn safetensors_that_would_not_read_back_are_not_written() {
    let write = |name: &str, tensor: Tensor| to_safetensors(&Tensors::from([(name.into(), tensor)]), &BTreeMap::new());
    let short = Tensor { dtype: DType::F32, shape: vec![3], data: vec![0; 8] };
    assert_eq!(write("w", short).unwrap_err().to_string(), "tensor `w`: 8 bytes of data, but shape [3] of F32 needs 12");
    assert!(write("__metadata__", Tensor::from_f32([1], &[0.0])).unwrap_err().to_string().contains("reserved"));
    assert!(write("a\0b", Tensor::from_f32([1], &[0.0])).unwrap_err().to_string().contains("control"));
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    use DType::*;
    let dtype = prop::sample::select(vec![F64, F32, F16, BF16, I64, I32, I16, I8, U8, Bool]);
    (dtype, prop::collection::vec(0usize..4, 0..4)).prop_flat_map(|(dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        prop::collection::vec(any::<u8>(), bytes).prop_map(move |data| Tensor { dtype, shape: shape.clone(), data })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safetensors_round_trip(
        tensors in prop::collection::btree_map("[a-zé.\"]{1,8}", any_tensor(), 0..6),
        metadata in prop::collection::btree_map(".{0,6}", ".{0,6}", 0..6),
    ) {
        let bytes = to_safetensors(&tensors, &metadata).unwrap();
        prop_assert_eq!(&bytes, &to_safetensors(&tensors, &metadata).unwrap());
        let back = from_safetensors(&bytes).unwrap();
        prop_assert_eq!(&back.tensors, &tensors);
        prop_assert_eq!(&back.metadata, &metadata);
        // The reference implementation agrees on every byte.
        let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(reference.len(), tensors.len());
        for (name, tensor) in &tensors {
            prop_assert_eq!(reference.tensor(name).unwrap().data(), tensor.data.as_slice());
        }
    }
}

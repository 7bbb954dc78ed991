//! `.pt` files written here and read back, bit for bit, and what is in the zip.

use std::io::{Cursor, Read};

use bellows_weights::pt::{Pickled, Storages, View, write};
use bellows_weights::{DType, Tensor, Tensors};
use proptest::prelude::*;

use crate::common::read_bytes;

fn any_tensor() -> impl Strategy<Value = Tensor> {
    use DType::*;
    let dtype = prop::sample::select(vec![F64, F32, F16, BF16, I64, I32, I16, I8, U8, Bool]);
    (dtype, prop::collection::vec(0usize..4, 0..4)).prop_flat_map(|(dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        prop::collection::vec(any::<u8>(), bytes).prop_map(move |data| Tensor { dtype, shape: shape.clone(), data })
    })
}

/// A module of `torch.nn` with these parameters and this child.
fn module(parameters: Pickled, buffers: Pickled, child: Option<Pickled>) -> Pickled {
    let modules = Pickled::dict(child.map(|child| ("inner", child)));
    let state = Pickled::dict([("_parameters", parameters), ("_buffers", buffers), ("_modules", modules), ("nc", Pickled::Int(3))]);
    Pickled::Object("torch.nn.modules.container", "Sequential", Box::new(state))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tensors_come_back(tensors in prop::collection::btree_map("[a-z]{1,8}", any_tensor(), 1..8), epoch in any::<i64>()) {
        let mut storages = Storages::default();
        let views: Vec<(String, Pickled)> =
            tensors.iter().map(|(name, tensor)| (name.clone(), Pickled::Parameter(storages.whole(tensor.clone())))).collect();
        let buffers: Vec<(String, Pickled)> = views.iter().map(|(name, view)| (format!("buffer_{name}"), view.clone())).collect();
        let inner = module(Pickled::dict(views.clone()), Pickled::dict(buffers), None);
        let outer = module(Pickled::dict::<&str>([]), Pickled::dict::<&str>([]), Some(inner));
        let settings = Pickled::dict([("imgsz", Pickled::Int(640)), ("freeze", Pickled::None), ("classes", Pickled::ints(&[1]))]);
        let facts = [("epoch", Pickled::Int(epoch)), ("date", "2026".into()), ("best_fitness", Pickled::None), ("train_args", settings)];
        let root = Pickled::dict(facts.into_iter().chain([("model", outer)]));
        let file = write(&root, &storages).unwrap();
        prop_assert_eq!(&file, &write(&root, &storages).unwrap());
        let read = read_bytes(&file).unwrap();
        let mut expected = Tensors::new();
        for (name, tensor) in &tensors {
            expected.insert(format!("inner.{name}"), tensor.clone());
            expected.insert(format!("inner.buffer_{name}"), tensor.clone());
        }
        prop_assert_eq!(read.tensors, expected);
        prop_assert_eq!(read.metadata["epoch"].as_str(), epoch.to_string());
        prop_assert_eq!((read.metadata["date"].as_str(), read.metadata["nc"].as_str()), ("2026", "3"));
        prop_assert_eq!(read.metadata["train_args"].as_str(), r#"{"imgsz":640,"freeze":null,"classes":[1]}"#);
        prop_assert!(!read.metadata.contains_key("best_fitness"));
        prop_assert_eq!(read.classes["inner"].as_str(), "torch.nn.modules.container.Sequential");
    }
}

#[test]
fn views_share_a_storage() {
    let mut storages = Storages::default();
    let storage = storages.add(DType::U8, (0..6).collect());
    let view = |offset, shape: &[usize], strides: &[usize]| View { storage, offset, shape: shape.into(), strides: strides.into() };
    let state = Pickled::dict([
        ("all", Pickled::Tensor(view(0, &[2, 3], &[3, 1]))),
        ("turned", Pickled::Tensor(view(0, &[3, 2], &[1, 3]))),
        ("tail", Pickled::Tensor(view(4, &[2], &[1]))),
    ]);
    let file = write(&state, &storages).unwrap();
    let read = read_bytes(&file).unwrap();
    assert_eq!(read.tensors["turned"].data, [0, 3, 1, 4, 2, 5]);
    assert_eq!(read.tensors["tail"].data, [4, 5]);
}

#[test]
fn the_container_is_that_of_pytorch() {
    let mut storages = Storages::default();
    let state = Pickled::dict([
        ("a", Pickled::Tensor(storages.whole(Tensor::from_f32([3], &[1.0, 2.0, 3.0])))),
        ("b", Pickled::Tensor(storages.whole(Tensor::from_i64([], &[5])))),
    ]);
    let mut zip = zip::ZipArchive::new(Cursor::new(write(&state, &storages).unwrap())).unwrap();
    let mut entries = Vec::new();
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).unwrap();
        assert_eq!(entry.compression(), zip::CompressionMethod::Stored);
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        let name = entry.name().unwrap().into_owned();
        if name.contains("/data/") {
            assert_eq!(entry.data_start().unwrap() % 64, 0, "{name}");
        }
        entries.push((name, data));
    }
    let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0", "data/1", "version"];
    assert_eq!(names, expected.map(|name| format!("archive/{name}")));
    let text = |index: usize| std::str::from_utf8(&entries[index].1).unwrap();
    assert_eq!([1, 2, 3, 6].map(text), ["1", "64", "little", "3\n"]);
    assert_eq!(entries[5].1, 5i64.to_le_bytes());
}

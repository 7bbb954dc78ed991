//! The architecture of YOLOv8 in the words of Ultralytics' model files: rows of `[from, repeats, module, arguments]` at full size, and the
//! multiples of each size. A training that starts from the file builds its model from this.

use bellows_weights::pt::Pickled;

use crate::export::about::About;
use crate::model::{Layer, Scale, Yolo};

/// The dictionary `yaml` of a model.
pub(super) fn plan(about: &About, model: &Yolo) -> Pickled {
    let channels = Pickled::Int(about.config.channels as i64);
    Pickled::dict([
        ("nc", Pickled::Int(about.config.nc as i64)),
        ("scales", Pickled::dict(Scale::ALL.map(|scale| (scale.letter(), multiples(scale))))),
        ("backbone", Pickled::List(backbone())),
        ("head", Pickled::List(head(model))),
        ("scale", about.config.scale.letter().into()),
        ("yaml_file", format!("{}.yaml", about.size()).as_str().into()),
        ("ch", channels.clone()),
        ("channels", channels),
    ])
}

/// Numbers of the layers whose outputs are read later than by the next one.
pub(super) fn save(model: &Yolo) -> Vec<i64> {
    let read = model.model.iter().filter_map(|layer| match layer {
        Layer::Concat(m) => Some(m.with()),
        _ => None,
    });
    let mut save: Vec<i64> = read.chain(model.head_inputs().iter().copied()).map(|i| i as i64).collect();
    save.sort_unstable();
    save.dedup();
    save
}

/// Depth, width, and the most channels.
fn multiples(scale: Scale) -> Pickled {
    let (depth, width, most) = scale.table();
    Pickled::List(vec![Pickled::Float(depth), Pickled::Float(width), Pickled::Int(most as i64)])
}

fn row(from: Pickled, repeats: i64, module: &str, arguments: Vec<Pickled>) -> Pickled {
    Pickled::List(vec![from, Pickled::Int(repeats), module.into(), Pickled::List(arguments)])
}

const LAST: Pickled = Pickled::Int(-1);

fn conv(channels: i64) -> Pickled {
    row(LAST, 1, "Conv", vec![Pickled::Int(channels), Pickled::Int(3), Pickled::Int(2)])
}

fn c2f(repeats: i64, channels: i64, shortcut: bool) -> Pickled {
    let shortcut = shortcut.then_some(Pickled::Bool(true));
    row(LAST, repeats, "C2f", [Some(Pickled::Int(channels)), shortcut].into_iter().flatten().collect())
}

fn backbone() -> Vec<Pickled> {
    vec![
        conv(64),
        conv(128),
        c2f(3, 128, true),
        conv(256),
        c2f(6, 256, true),
        conv(512),
        c2f(6, 512, true),
        conv(1024),
        c2f(3, 1024, true),
        row(LAST, 1, "SPPF", vec![Pickled::Int(1024), Pickled::Int(5)]),
    ]
}

fn head(model: &Yolo) -> Vec<Pickled> {
    let upsample = || row(LAST, 1, "nn.Upsample", vec!["None".into(), Pickled::Int(2), "nearest".into()]);
    let concat = |with| row(Pickled::ints(&[-1, with]), 1, "Concat", vec![Pickled::Int(1)]);
    let mut rows = vec![upsample(), concat(6), c2f(3, 512, false), upsample(), concat(4), c2f(3, 256, false)];
    if model.p2() {
        rows.extend([upsample(), concat(2), c2f(3, 128, false), conv(128), concat(15), c2f(3, 256, false)]);
    }
    let inputs: Vec<i64> = model.head_inputs().iter().map(|&i| i as i64).collect();
    rows.extend([
        conv(256),
        concat(12),
        c2f(3, 512, false),
        conv(512),
        concat(9),
        c2f(3, 1024, false),
        row(Pickled::ints(&inputs), 1, "Detect", vec!["nc".into()]),
    ]);
    rows
}

//! Settings that `optimizer: auto` sets itself: what becomes of those that somebody gives beside it, or takes back.

use bellows_settings::Layer;
use serde_json::Value;

/// Settings that `optimizer: auto` sets itself. `none` of them is the default, as if nobody had said one.
pub const OF_AUTO: [&str; 3] = ["lr0", "momentum", "warmup_bias_lr"];

fn said<'a>(layer: &'a Layer, name: &str) -> Option<&'a Value> {
    layer.values.iter().find(|(key, value)| key.replace('-', "_") == name && !value.is_null()).map(|(_, value)| value)
}

/// The layer with the default, which is `usual`, where it says `none` of [`OF_AUTO`].
pub(super) fn taken_back(layer: &Layer, usual: [f64; 3]) -> Layer {
    let mut layer = layer.clone();
    for (name, usual) in OF_AUTO.into_iter().zip(usual) {
        let nones = layer.values.iter_mut().filter(|(key, value)| key.replace('-', "_") == name && **value == "none");
        nones.for_each(|(_, value)| *value = usual.into());
    }
    layer
}

/// What to say of values in `layers`, which came to `found` where the default is `usual`, that `optimizer: auto` does not use. A layer that names the optimizer too may be a list
/// of all settings, as an `args.yaml` is: defaults in it are nobody's wish. Nor is what a later layer takes back.
pub(super) fn left_to_auto(found: [f64; 3], usual: [f64; 3], layers: &[Layer]) -> Option<String> {
    let wished = |name: &str, usual: f64| {
        let none = layers.iter().rposition(|layer| said(layer, name).is_some_and(|value| *value == "none"));
        layers
            .iter()
            .skip(none.map_or(0, |i| i + 1))
            .any(|layer| said(layer, name).is_some_and(|value| value.as_f64() != Some(usual) || said(layer, "optimizer").is_none()))
    };
    let all = OF_AUTO.into_iter().zip(found).zip(usual);
    let known: Vec<(&str, f64)> = all.filter(|&((name, _), usual)| wished(name, usual)).map(|(known, _)| known).collect();
    if known.is_empty() {
        return None;
    }
    let values: Vec<String> = known.iter().map(|(name, x)| format!("{name} {x}")).collect();
    let flags: String = known.iter().map(|(name, x)| format!(" --{} {x}", name.replace('_', "-"))).collect();
    let momentum = known.iter().any(|(name, _)| *name == "momentum");
    let but = if momentum { " (SGD, which it takes for long runs, has this momentum)" } else { "" };
    let why = format!("not used with optimizer auto, which sets its own{but}");
    Some(format!("warning: {}: {why}; name one to use it: --optimizer AdamW{flags}", values.join(", ")))
}

//! The linear maps of a layer by the names that LoRA's targets go by: one table for plans and files, which build no model.

use crate::model::ModelConfig;
use crate::model::layers::MAPS;

/// Name, `[out, in]`.
pub(crate) type Map = (&'static str, [usize; 2]);

/// Those of a layer of this shape, in the order of its checkpoint.
pub(crate) fn of_layer(c: &ModelConfig) -> [Map; 7] {
    let (hidden, inner) = (c.hidden_size, c.intermediate_size);
    let (queries, keys) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    let [q, k, v, o] = [[queries, hidden], [keys, hidden], [keys, hidden], [hidden, queries]];
    let [gate, up, down] = [[inner, hidden], [inner, hidden], [hidden, inner]];
    let shapes = [q, k, v, o, gate, up, down];
    std::array::from_fn(|map| (MAPS[map], shapes[map]))
}

/// Those of all layers: layer, whole name, `[out, in]`.
pub(crate) fn of_model(c: &ModelConfig) -> impl Iterator<Item = (usize, String, [usize; 2])> {
    let maps = of_layer(c);
    (0..c.num_hidden_layers).flat_map(move |layer| maps.map(|(name, shape)| (layer, format!("model.layers.{layer}.{name}"), shape)))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::CausalLm;

    #[test]
    fn the_table_is_the_models() {
        let shape = ModelConfig::from_json(include_str!("../tests/golden/qwen3/model/config.json")).unwrap();
        let model = CausalLm::new(&shape, &Device::flex());
        let built: Vec<_> = model.linears().map(|(name, linear)| (name, linear.weight.dims())).collect();
        assert_eq!(of_model(&shape).map(|(_, name, dims)| (name, dims)).collect::<Vec<_>>(), built);
    }
}

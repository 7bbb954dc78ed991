//! What settings can only be held against once the adapter, the model and the data are there.

use bellows_chat::{Jinja, Template, Tokenizer};
use bellows_learner::{Decay, Schedule};
use bellows_settings::SettingsError;
use serde_json::Map;

use crate::adapter::{AdapterError, LoraConfig, Targets};
use crate::config::{Method, SftConfig, bad};
use crate::model::{CausalLm, ModelConfig};

/// Refuses an adapter whose rank some map has no room for, or whose settings name maps that are not there.
///
/// # Errors
/// [`AdapterError`], with the setting.
pub(crate) fn adapter_fits(lora: &LoraConfig, model: &CausalLm) -> Result<(), AdapterError> {
    for (name, map) in model.linears() {
        let Some(spec) = lora.spec(&name, lora.layers_to_transform.first().copied().unwrap_or(0), 0)? else { continue };
        let [out, input] = map.weight.dims();
        if spec.rank > out.min(input) {
            let (rank, side) = (spec.rank, out.min(input));
            return Err(AdapterError::Setting(format!("r is {rank}, and {name} is {out} x {input}: its rank is at most {side}")));
        }
    }
    // Each text by itself, as settings that give rank 1 to the maps it names.
    let (excluded, one) = (&lora.exclude_modules, LoraConfig { r: 1, ..LoraConfig::default() });
    let named = |targets: Targets| LoraConfig { target_modules: targets, ..one.clone() };
    let ranked = |pattern: &String| LoraConfig { rank_pattern: [(pattern.clone(), 1)].into(), ..LoraConfig::default() };
    let mut probes = match excluded {
        Targets::Names(names) => names.iter().map(|n| ("exclude_modules", n, named(Targets::Names(vec![n.clone()])))).collect(),
        Targets::Pattern(pattern) => vec![("exclude_modules", pattern, named(excluded.clone()))],
    };
    probes.extend(lora.rank_pattern.keys().map(|p| ("rank_pattern", p, ranked(p))));
    probes.extend(lora.alpha_pattern.keys().map(|p| ("alpha_pattern", p, ranked(p))));
    for (setting, text, probe) in probes {
        let mut found = false;
        for (name, _) in model.linears() {
            found |= probe.spec(&name, 0, 0)?.is_some_and(|spec| spec.rank == 1);
        }
        if !found {
            return Err(AdapterError::Setting(format!("{setting}: no map is named {text:?}")));
        }
    }
    Ok(())
}

/// What a person should know of a run of so many micro-batches an epoch before it starts: one line each.
pub(crate) fn warnings(config: &SftConfig, model: &ModelConfig, batches: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (length, limit) = (config.max_seq_length, model.max_position_embeddings);
    if length > limit {
        lines.push(format!("warning: max_seq_length is {length}, and the model was made for at most {limit} tokens"));
    }
    if config.method == Method::Full {
        let [ours, plain] = [config, &SftConfig::default()].map(|config| serde_json::to_value(config.lora()).unwrap_or_default());
        let set = |key: &&String| ours[key.as_str()] != plain[key.as_str()];
        let mut unused: Vec<&str> = ours.as_object().into_iter().flat_map(Map::keys).filter(set).map(String::as_str).collect();
        unused.extend((config.loraplus_lr_ratio != 1.0).then_some("loraplus_lr_ratio"));
        if !unused.is_empty() {
            lines.push(format!("warning: method full trains every parameter, and has no use for {}", unused.join(", ")));
        }
    }
    if let Schedule::Updates(schedule) = config.learner(false).schedule {
        let updates = config.epochs * schedule.updates(batches);
        if (0..updates).all(|u| schedule.factor(u, updates) < 1.0) {
            let nothing = if updates == 1 { "stays 0: nothing is learnt" } else { "never reaches learning_rate" };
            lines.push(format!("warning: the warm-up covers every update of the run ({updates}), and the rate {nothing}"));
        }
    }
    let ratio = config.min_lr_ratio;
    if config.lr_scheduler_type == Decay::Constant && ratio > 0.0 {
        lines.push(format!("warning: lr_scheduler_type constant ends at learning_rate: min_lr_ratio {ratio} has no effect"));
    }
    lines
}

impl SftConfig {
    /// How these modules come to be trained, where they have to be: what an adapter trains that is gone on with, cannot be asked for.
    pub(crate) fn to_train(&self, modules: &str) -> String {
        match &self.adapter {
            None => format!("modules_to_save {modules}"),
            Some(dir) => {
                let instead = "merge it into its model, and train a new adapter on that";
                format!("the adapter in {dir} does not train them, and cannot be made to: {instead}")
            }
        }
    }

    /// The template that was asked for by name; `None` leaves it to the tokenizer.
    ///
    /// # Errors
    /// A name that is neither a template nor a file.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<Option<Template>, SettingsError> {
        if self.chat_template == "auto" {
            return Ok(None);
        }
        if let Some(template) = Template::named(&self.chat_template) {
            return Ok(Some(template));
        }
        let fail = |e: &dyn std::fmt::Display| {
            bad(format!("chat_template {:?} is neither a template's name nor a readable file: {e}", self.chat_template))
        };
        let source = std::fs::read_to_string(&self.chat_template).map_err(|e| fail(&e))?;
        Jinja::new(&source, tokenizer).map(|jinja| Some(Template::Jinja(jinja))).map_err(|e| fail(&e))
    }

    /// What a person should know of the updates that several ranks make, before a run of them begins.
    pub fn larger_updates(&self) -> Option<String> {
        let (ranks, times) = (self.ranks, self.gradient_accumulation_steps);
        let one = self.batch_size * times;
        let way = times.is_multiple_of(ranks).then(|| format!("; --gradient-accumulation-steps {} makes one rank's", times / ranks));
        (ranks > 1).then(|| {
            let (all, way) = (ranks * one, way.unwrap_or_default());
            format!("updates: of at most {all} rows ({ranks} ranks of {one}), where one rank's are of at most {one}{way}")
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::base::Base;

    #[test]
    fn ranks_and_names_are_held_against_the_model() {
        let model = Base::tiny(["a b"], 0, &Device::flex()).unwrap().model;
        let fits = |lora: LoraConfig| adapter_fits(&lora, &model).map_err(|e| e.to_string());
        let plain = LoraConfig::default();
        let name = |n: &str| n.to_string();
        assert_eq!(fits(plain.clone()), Ok(()));
        assert_eq!(fits(LoraConfig { r: 64, ..plain.clone() }), Ok(()));
        // k_proj is 64 x 128, the maps of the MLP are 352 x 128.
        let error = fits(LoraConfig { r: 65, ..plain.clone() }).unwrap_err();
        assert!(error.starts_with("r is 65, and model.layers.0.self_attn.k_proj is ") && error.ends_with("at most 64"), "{error}");
        assert_eq!(fits(LoraConfig { r: 65, target_modules: Targets::Names(vec![name("up_proj")]), ..plain.clone() }), Ok(()));
        assert!(fits(LoraConfig { r: 129, layers_to_transform: vec![2], ..plain.clone() }).is_err());
        assert!(fits(LoraConfig { rank_pattern: [(name("v_proj"), 65)].into(), ..plain.clone() }).is_err());

        let excluding = |targets| LoraConfig { exclude_modules: targets, ..plain.clone() };
        let ranks = |p: &str| LoraConfig { rank_pattern: [(name(p), 3)].into(), ..plain.clone() };
        let alphas = |p: &str| LoraConfig { alpha_pattern: [(name(p), 3.0)].into(), ..plain.clone() };
        for good in [
            excluding(Targets::Names(vec![name("q_proj"), name("mlp.up_proj")])),
            excluding(Targets::Pattern(name(r".*\.0\..*"))),
            ranks("q_proj"),
            ranks(r"layers\.1\..*"),
            alphas("o_proj"),
        ] {
            assert_eq!(fits(good), Ok(()));
        }
        for (wrong, setting) in [
            (excluding(Targets::Names(vec![name("q_proj"), name("nosuch")])), "exclude_modules"),
            (excluding(Targets::Pattern(name("nosuch"))), "exclude_modules"),
            (ranks("nosuch"), "rank_pattern"),
            (alphas("nosuch"), "alpha_pattern"),
        ] {
            assert_eq!(fits(wrong), Err(format!("{setting}: no map is named \"nosuch\"")));
        }
    }

    #[test]
    fn a_rate_of_their_own_is_for_rows_that_are_trained_and_new_tokens_for_an_embedding() {
        let rate = SftConfig { embedding_learning_rate: Some(1e-5), ..SftConfig::default() };
        let tokens = SftConfig { new_tokens: vec!["<ore>".into()], ..SftConfig::default() };
        let fine = |config: &SftConfig, saved: &str| SftConfig { modules_to_save: vec![saved.into()], ..config.clone() }.validate().is_ok();
        assert_eq!(["embed_tokens", "lm_head", "norm"].map(|saved| fine(&rate, saved)), [true, true, false]);
        assert_eq!(["embed_tokens", "lm_head", "norm"].map(|saved| fine(&tokens, saved)), [true, false, false]);
        for config in [rate, tokens] {
            assert!(config.validate().is_err());
            assert!(SftConfig { method: Method::Full, ..config }.validate().is_ok());
        }
    }

    #[test]
    fn a_run_that_only_warms_up_or_outgrows_its_model_is_told() {
        let model = Base::tiny(["a b"], 0, &Device::flex()).unwrap().config;
        let lines = |config: SftConfig, batches| warnings(&SftConfig { max_seq_length: 512, ..config }, &model, batches);
        let plain = SftConfig { epochs: 1, gradient_accumulation_steps: 2, ..SftConfig::default() };
        assert_eq!(lines(plain.clone(), 4), Vec::<String>::new());
        assert!(lines(plain.clone(), 2)[0].ends_with("every update of the run (1), and the rate stays 0: nothing is learnt"));
        assert_eq!(lines(SftConfig { warmup_ratio: 0.0, ..plain.clone() }, 2), Vec::<String>::new());
        assert!(lines(SftConfig { warmup_steps: Some(4), ..plain.clone() }, 8)[0].contains("never reaches"));
        assert_eq!(lines(SftConfig { warmup_steps: Some(3), ..plain.clone() }, 8), Vec::<String>::new());
        assert!(warnings(&SftConfig { max_seq_length: 513, ..plain.clone() }, &model, 8)[0].contains("at most 512 tokens"));
        let ends_at = |decay, ratio| lines(SftConfig { lr_scheduler_type: decay, min_lr_ratio: ratio, ..plain.clone() }, 4);
        let said = "warning: lr_scheduler_type constant ends at learning_rate: min_lr_ratio 0.1 has no effect";
        assert_eq!(ends_at(Decay::Constant, 0.1), [said]);
        assert_eq!([ends_at(Decay::Constant, 0.0), ends_at(Decay::Cosine, 0.1)].concat(), Vec::<String>::new());
        let of = |ranks, times| SftConfig { ranks, batch_size: 3, gradient_accumulation_steps: times, ..plain.clone() }.larger_updates();
        let said = "updates: of at most 12 rows (2 ranks of 6), where one rank's are of at most 6; \
                    --gradient-accumulation-steps 1 makes one rank's";
        assert_eq!([of(1, 2), of(2, 2)], [None, Some(said.into())]);
        assert!(of(2, 3).unwrap().ends_with("(2 ranks of 9), where one rank's are of at most 9"), "half of three is none");
        let full = SftConfig { method: Method::Full, ..plain };
        assert_eq!(lines(full.clone(), 8), Vec::<String>::new());
        let unused = &lines(SftConfig { r: 8, use_dora: true, loraplus_lr_ratio: 16.0, ..full }, 8)[0];
        assert!(unused.ends_with("no use for r, use_dora, loraplus_lr_ratio"), "{unused}");
    }
}

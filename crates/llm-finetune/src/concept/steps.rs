//! What the verbs and the chain have in common: a model with prompts, and each step with its bar and its table.

use std::path::Path;

use bellows_chat::{Template, Tokenizer};
use bellows_cli::{Bar, Failure, note, say};
use bellows_qwen::base::Base;
use bellows_qwen::concept::direction::{Place, candidates, common_end, find, separation};
use bellows_qwen::concept::edit::Ablation;
use bellows_qwen::concept::files::{Found, digest, forget_scores, read_scores, record, write_model, write_scores};
use bellows_qwen::concept::judge::{Comparison, Verdict, judge};
use bellows_qwen::concept::prompts::{EncodedSets, PromptSets};
use bellows_qwen::concept::reader::Reader;
use bellows_qwen::concept::score::{Scores, marker_ids, score};
use bellows_weights::DType;
use burn::tensor::Device;

/// What an edit is signed with.
pub(super) const TOOL: &str = concat!("Bellows ", env!("CARGO_PKG_VERSION"));

/// The seed of what is held out.
const SEED: u64 = 0;

/// Prompt sets as a model reads them.
pub(super) struct Prompts {
    pub(super) sets: PromptSets,
    pub(super) encoded: EncodedSets,
    /// Whose turns they are in; none of a model that does not chat.
    template: Option<Template>,
}

impl Prompts {
    pub(super) fn open(dir: &Path, tokenizer: &Tokenizer, template: Option<Template>) -> Result<Self, Failure> {
        let sets = PromptSets::open(dir)?;
        let encoded = sets.encode(tokenizer, template.as_ref(), SEED)?;
        Ok(Self { sets, encoded, template })
    }

    pub(super) fn digest(&self) -> String {
        digest(&self.encoded)
    }
}

/// A model where it reads.
pub(super) fn reader<'a>(base: &'a Base, device: &'a Device) -> Reader<'a> {
    Reader { model: &base.model, config: &base.config, device }
}

/// Finds the concept, and says how well each layer separates.
pub(super) fn extract(reader: Reader<'_>, model: &str, prompts: &Prompts, out: &Path) -> Result<Found, Failure> {
    let (sets, EncodedSets { target, baseline }) = (&prompts.sets, &prompts.encoded);
    let positions = common_end(&prompts.encoded);
    let mut bar = Bar::new("prompts ", 0);
    let mut finding = |done, total| bar.set("finding".into(), done, total);
    let directions = find(reader, &target.found_on, &baseline.found_on, positions, &mut finding)?;
    let mut separating = |done, total| bar.set("separating".into(), done, total);
    let separations = separation(reader, &directions, &target.held_out, &baseline.held_out, &mut separating)?;
    bar.finish("");
    let best = candidates(&separations, directions.layers).into_iter().max_by(|a, b| a.effect.total_cmp(&b.effect)).map(|s| s.place);
    let found = Found {
        tool: TOOL.into(),
        model: known_as(model),
        concept: sets.name(),
        prompts_sha256: prompts.digest(),
        target: [target.found_on.len(), target.held_out.len()],
        baseline: [baseline.found_on.len(), baseline.held_out.len()],
        chosen: best.unwrap_or(Place { layer: 0, position: 1 }),
        separations,
        directions,
    };
    // First, so that a folder that is left half done has no choice of another direction.
    forget_scores(out)?;
    found.write(out)?;
    tell_separation(&found);
    say(&format!("Saved {}", out.display()));
    Ok(found)
}

/// What a model is called in records that others read: a folder or a file by its name, for where it lies is nobody's affair.
pub(super) fn known_as(model: &str) -> String {
    let path = Path::new(model);
    let name = path.file_name().filter(|_| path.exists()).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| model.into())
}

fn tell_separation(found: &Found) {
    let Found { target, baseline, concept, .. } = found;
    say(&format!(
        "{concept}: found on {} + {} prompts, judged on {} + {}; of each layer the best of the last {} tokens",
        target[0], baseline[0], target[1], baseline[1], found.directions.positions
    ));
    say(&format!("{:>6} {:>6} {:>9} {:>9} {:>7} {:>12}", "layer", "token", "norm", "effect", "AUC", "cos to next"));
    for layer in 0..found.directions.layers {
        let of_layer = found.separations.iter().filter(|s| s.place.layer == layer);
        let Some(s) = of_layer.max_by(|a, b| a.effect.total_cmp(&b.effect)) else { continue };
        let cosine = s.cosine_to_next.map_or_else(String::new, |x| format!("{x:.3}"));
        let chosen = if s.place == found.chosen { "  chosen" } else { "" };
        let token = format!("-{}", s.place.position);
        say(&format!("{layer:>6} {token:>6} {:>9.3} {:>9.2} {:>7.3} {cosine:>12}{chosen}", s.norm, s.effect, s.auc));
    }
}

/// Scores the candidates with the edit that is to be made.
pub(super) fn scored(
    base: &Base,
    device: &Device,
    found: &Found,
    prompts: &Prompts,
    edit: &Ablation,
    dir: &Path,
) -> Result<Scores, Failure> {
    let markers = marker_ids(&prompts.sets.markers, &base.tokenizer)?;
    let candidates = candidates(&found.separations, found.directions.layers);
    let mut bar = Bar::new("layer ", 0);
    let mut progress = |done, total| bar.set("scoring".into(), done, total);
    let scores = score(reader(base, device), &found.directions, &candidates, &prompts.encoded, &markers, edit, &mut progress)?;
    bar.finish("");
    write_scores(dir, &scores)?;
    let Scores { target, baseline, layers, strength, .. } = &scores;
    say(&format!("log-odds of a marker coming next: target {target:.2}, baseline {baseline:.2}; layers {layers}, strength {strength}"));
    say(&format!("{:>6} {:>6} {:>10} {:>10} {:>10}", "layer", "token", "taken out", "added", "KL"));
    for s in &scores.candidates {
        let token = format!("-{}", s.place.position);
        let chosen = if s.place == scores.chosen { "  chosen" } else { "" };
        let why = s.refused.as_deref().map(|why| format!("  {why}")).unwrap_or_default();
        say(&format!("{:>6} {token:>6} {:>10.2} {:>10.2} {:>10.4}{chosen}{why}", s.place.layer, s.ablation, s.induction, s.divergence));
    }
    if scores.candidates.iter().all(|s| s.refused.is_some()) {
        note("warning: no layer passes, the one that separates best is taken: try fewer --layers, a lower --strength, or more prompts");
    }
    say(&format!("Saved {}", dir.join("scores.json").display()));
    Ok(scores)
}

/// The place that was chosen: of `at_layer` the one that separates best, else that of the scores, else that of the separation.
pub(super) fn place(found: &Found, dir: &Path, at_layer: Option<usize>) -> Result<Place, Failure> {
    let Some(layer) = at_layer else { return Ok(read_scores(dir)?.map_or(found.chosen, |scores| scores.chosen)) };
    let of_layer = found.separations.iter().filter(|s| s.place.layer == layer);
    // A layer that is not there is refused by whoever asks for its direction.
    Ok(of_layer.max_by(|a, b| a.effect.total_cmp(&b.effect)).map_or(Place { layer, position: 1 }, |s| s.place))
}

/// Takes the direction at `place` out of the model, which is known as `model`, and writes what is left.
pub(super) fn ablate(
    (model, base): (&str, Base),
    found: &Found,
    place: Place,
    edit: &Ablation,
    dtype: DType,
    out: &Path,
) -> Result<(), Failure> {
    found.fits(&base.config)?;
    if let Some(warning) = edit.warning(base.config.tie_word_embeddings) {
        note(&format!("warning: {warning}"));
    }
    let record = record(found, place, edit, model, TOOL)?;
    let Base { model, config, tokenizer, .. } = base;
    let model = edit.apply(model, &found.directions.unit(place)?)?;
    for line in write_model(out, &model, &config, record, &tokenizer, dtype)? {
        note(&format!("warning: {line}"));
    }
    let Place { layer, position } = place;
    say(&format!(
        "Took the direction at the input of layer {layer}, token -{position}, out of layers {}, strength {}",
        edit.layers, edit.strength
    ));
    say(&format!("Saved {}", out.display()));
    Ok(())
}

/// Has a model answer and read; `tell` prints how far it is with `what`.
pub(super) fn judged(
    base: &Base,
    device: &Device,
    prompts: &Prompts,
    tokens: usize,
    (what, tell): (&'static str, fn(&str)),
) -> Result<Verdict, Failure> {
    let mut bar = Bar::new("answers ", 0).through(tell);
    let mut progress = |done, total| bar.set(what.into(), done, total);
    let words = (&base.tokenizer, prompts.template.as_ref());
    let verdict = judge(reader(base, device), words, &prompts.sets, &prompts.encoded, tokens, &mut progress)?;
    bar.finish("");
    Ok(verdict)
}

/// Prints shares and perplexities, one model a column.
pub(super) fn tell_comparison(comparison: &Comparison) {
    let models: Vec<&Verdict> = [Some(&comparison.before), comparison.after.as_ref()].into_iter().flatten().collect();
    let row = |name: &str, cell: &dyn Fn(&Verdict) -> Option<String>| {
        let cells: Vec<String> = models.iter().map(|v| format!("{:>28}", cell(v).unwrap_or_else(|| "-".into()))).collect();
        say(&format!("{name:<26}{}", cells.concat()));
    };
    let heads = if models.len() > 1 { format!("{:>28}{:>28}", "before", "after") } else { format!("{:>28}", "the model") };
    say(&format!("{:<26}{heads}", ""));
    row("target, with a marker", &|v| v.target.map(|rate| rate.to_string()));
    row("baseline, with a marker", &|v| v.baseline.map(|rate| rate.to_string()));
    row("perplexity of the guard", &|v| v.perplexity.map(|p| format!("{p:.3}")));
    if comparison.before.target.is_none() {
        say("(no markers.txt: answers are not counted)");
    }
}

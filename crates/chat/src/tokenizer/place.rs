//! Where a text stands that is cut into tokens. SentencePiece puts a space of its own before a text, and some of its `tokenizer.json`s
//! after every special token too; none belongs where a text goes on.

use tokenizers::normalizers::{NormalizerWrapper, Sequence as Normalizers};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::{AddedVocabulary, OffsetReferential, OffsetType, Tokenizer as Hf};

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It begins.
    Start,
    /// It follows a special token.
    AfterSpecial,
    /// It goes on after other text, as a completion does after its prompt.
    Middle,
}

type Rules<'a> = (Option<&'a NormalizerWrapper>, Option<&'a PreTokenizerWrapper>);

/// The rules of a tokenizer for text that does not begin.
#[derive(Clone)]
pub(super) struct Prefixes {
    /// How text is cut after a special token; it is normalised as any.
    after_special: Option<PreTokenizerWrapper>,
    /// How text is normalised and cut that goes on; `None` if as after a special token.
    middle: Option<(Option<NormalizerWrapper>, Option<PreTokenizerWrapper>)>,
}

impl Prefixes {
    pub(super) fn of(hf: &Hf) -> Self {
        let (normalizer, rule) = (hf.get_normalizer(), hf.get_pre_tokenizer());
        let after_special = rule.map(|rule| cut_without_prefix(rule, &|scheme| scheme == PrependScheme::First));
        let goes_on = (normalizer.and_then(normalised_without_prefix), rule.map(|rule| cut_without_prefix(rule, &|_| true)));
        let differs = goes_on.1 != after_special || normalizer.is_some_and(prepends);
        Self { after_special, middle: differs.then_some(goes_on) }
    }

    /// Whether text that goes on is cut otherwise than after a special token.
    pub(super) fn middle_differs(&self) -> bool {
        self.middle.is_some()
    }

    /// How text is normalised and cut in this place.
    pub(super) fn rules<'a>(&'a self, hf: &'a Hf, place: Place) -> Rules<'a> {
        match (place, &self.middle) {
            (Place::Start, _) => (hf.get_normalizer(), hf.get_pre_tokenizer()),
            (Place::Middle, Some((normalizer, rule))) => (normalizer.as_ref(), rule.as_ref()),
            (Place::AfterSpecial | Place::Middle, _) => (hf.get_normalizer(), self.after_special.as_ref()),
        }
    }
}

fn prepends(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Prepend(_) => true,
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().any(prepends),
        _ => false,
    }
}

fn normalised_without_prefix(normalizer: &NormalizerWrapper) -> Option<NormalizerWrapper> {
    match normalizer {
        NormalizerWrapper::Prepend(_) => None,
        NormalizerWrapper::Sequence(all) => {
            Some(NormalizerWrapper::Sequence(Normalizers::new(all.as_ref().iter().filter_map(normalised_without_prefix).collect())))
        }
        other => Some(other.clone()),
    }
}

/// The rule with no space before text where its scheme is one of `these`.
fn cut_without_prefix(rule: &PreTokenizerWrapper, these: &dyn Fn(PrependScheme) -> bool) -> PreTokenizerWrapper {
    match rule {
        PreTokenizerWrapper::Metaspace(spaces) if these(spaces.get_prepend_scheme()) => {
            let mut spaces = spaces.clone();
            spaces.set_prepend_scheme(PrependScheme::Never);
            spaces.into()
        }
        PreTokenizerWrapper::Sequence(all) => {
            PreTokenizerWrapper::Sequence(PreTokenizers::new(all.as_ref().iter().map(|rule| cut_without_prefix(rule, these)).collect()))
        }
        other => other.clone(),
    }
}

/// Where in `text` its first added token begins; its end if there is none.
pub(super) fn before_added(added: &AddedVocabulary, text: &str) -> usize {
    let pieces = added.extract_and_normalize::<NormalizerWrapper>(None, text);
    let first = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().find(|(_, _, tokens)| tokens.is_some());
    first.map_or(text.len(), |(_, (start, _), _)| start)
}

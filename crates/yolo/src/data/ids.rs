//! What COCO files call their images and categories: results that go back to such a file have to name them so.

use std::collections::HashSet;

use serde_json::Value;

use super::coco::Id;

/// The ids behind a scan. Empty where no COCO file is among its sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CocoIds {
    /// Of each image up to the last one that has any: which file, and its id there.
    images: Vec<Option<(u32, Id)>>,
    /// Of each file, the id of each class; none for a class that is no category of it.
    categories: Vec<Vec<Option<Id>>>,
    /// Of images that the files list and the scan has not.
    left_out: Vec<Id>,
}

impl CocoIds {
    pub(crate) fn new(categories: Vec<Vec<Option<Id>>>) -> Self {
        Self { categories, ..Self::default() }
    }

    /// Image `index`, of which there is none after it yet, is this one of that file.
    pub(crate) fn push(&mut self, index: usize, of: Option<(u32, Id)>) {
        if of.is_some() {
            self.images.resize(index, None);
            self.images.push(of);
        }
    }

    /// An image of a file that is none of the scan's: it cannot be used, or another one has its file.
    pub(crate) fn leave_out(&mut self, id: Id) {
        self.left_out.push(id);
    }

    /// The ids of those.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = Value> {
        self.left_out.iter().map(Into::into)
    }

    /// The id of image `index`, a whole number or a text; none of an image with a label file of its own.
    pub(crate) fn image(&self, index: usize) -> Option<Value> {
        self.images.get(index)?.as_ref().map(|(_, id)| id.into())
    }

    /// The id that the file of image `index` gives to `class`; none if that is no category of it.
    pub(crate) fn category(&self, index: usize, class: u32) -> Option<Value> {
        let (file, _) = self.images.get(index)?.as_ref()?;
        self.categories.get(*file as usize)?.get(class as usize)?.as_ref().map(Into::into)
    }

    /// Whether any of its files gives an id to a class.
    pub(crate) fn has_categories(&self) -> bool {
        self.categories.iter().flatten().any(Option::is_some)
    }

    /// The ids of the first `images` in one file in place of all. `None` where one has none, or two have the same.
    pub(crate) fn of_images(&self, images: usize) -> Option<Vec<Value>> {
        let ids: Vec<&Id> = self.images.get(..images)?.iter().map(|of| of.as_ref().map(|(_, id)| id)).collect::<Option<_>>()?;
        let mut known = HashSet::new();
        let differ = ids.iter().all(|id| known.insert(*id));
        differ.then(|| ids.into_iter().map(Value::from).collect())
    }

    /// The ids of the first `classes`, as the files behind `all` give them; none for a class that is no category of any. `None` where files disagree about a class,
    /// two have the same id, or none has any.
    pub(crate) fn of_classes(all: &[&Self], classes: usize) -> Option<Vec<Option<Value>>> {
        let of_class = |class: usize| {
            let mut ids = all.iter().flat_map(|of| &of.categories).filter_map(|file| file.get(class)?.as_ref());
            let first = ids.next();
            ids.all(|id| Some(id) == first).then_some(first)
        };
        let ids: Vec<Option<&Id>> = (0..classes).map(of_class).collect::<Option<_>>()?;
        let mut known = HashSet::new();
        let differ = ids.iter().flatten().all(|id| known.insert(*id));
        (differ && !known.is_empty()).then(|| ids.into_iter().map(|id| id.map(Value::from)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_agree_are_one() {
        let of = |categories: &[[Option<i64>; 2]], images: &[Option<(u32, i64)>]| {
            let mut ids = CocoIds::new(categories.iter().map(|file| file.map(|id| id.map(Id::Number)).to_vec()).collect());
            images.iter().enumerate().for_each(|(i, of)| ids.push(i, of.map(|(file, id)| (file, Id::Number(id)))));
            Some((ids.of_images(images.len())?, CocoIds::of_classes(&[&ids], 3)?))
        };
        let (one, two) = (Some((0, 7)), Some((1, 5)));
        let told: Option<(Vec<Value>, Vec<Option<Value>>)> = Some((vec![7.into(), 5.into()], vec![Some(90.into()), Some(1.into()), None]));
        assert_eq!(of(&[[Some(90), Some(1)], [None, Some(1)]], &[one, two]), told);
        let clashes: [(&[_], &[_]); 5] = [
            (&[[Some(90), Some(1)]], &[one, None]),
            (&[[Some(90), Some(1)]], &[None, one]),
            (&[[Some(90), Some(1)]], &[one, one]),
            (&[[Some(90), Some(1)], [Some(90), Some(2)]], &[one, two]),
            (&[[Some(90), None], [None, Some(90)]], &[one, two]),
        ];
        for (categories, images) in clashes {
            assert_eq!(of(categories, images), None, "{categories:?} {images:?}");
        }
    }

    #[test]
    fn images_with_and_without_ids_mix() {
        let mut ids = CocoIds::new(vec![vec![None, Some(Id::Number(7))], vec![Some("c".into())]]);
        ids.push(0, None);
        ids.push(1, Some((0, Id::Number(20_261_122_104_500_001))));
        ids.push(2, None);
        ids.push(3, Some((1, "day/1".into())));
        let images: Vec<_> = (0..5).map(|i| ids.image(i)).collect();
        assert_eq!(images, [None, Some(20_261_122_104_500_001_i64.into()), None, Some("day/1".into()), None]);
        assert_eq!([ids.category(1, 0), ids.category(1, 1), ids.category(1, 9)], [None, Some(7.into()), None]);
        assert_eq!([ids.category(3, 0), ids.category(0, 0)], [Some("c".into()), None]);
    }
}

//! What COCO files call their images and categories: results that go back to such a file have to name them so.

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
}

#[cfg(test)]
mod tests {
    use super::*;

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

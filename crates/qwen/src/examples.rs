//! Encoded examples: in memory, or in a file of which memory holds where each example lies.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bellows_chat::Encoded;
use bellows_runs::StoreError;

/// Some of the examples that were kept, in an order.
#[derive(Clone, Debug)]
pub struct Examples {
    store: Arc<Store>,
    picks: Vec<u32>,
}

#[derive(Debug)]
struct Store {
    facts: Vec<Facts>,
    place: Place,
}

/// What is asked of an example more often than its tokens.
#[derive(Clone, Copy, Debug)]
struct Facts {
    tokens: u32,
    targets: u32,
    cut: u32,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<Encoded>),
    /// Ids in four bytes each, then a byte for each that says whether it is learnt; and where each example begins.
    Disk {
        file: Mutex<File>,
        starts: Vec<u64>,
    },
}

impl From<Vec<Encoded>> for Examples {
    fn from(list: Vec<Encoded>) -> Self {
        let picks = (0..list.len() as u32).collect();
        let store = Store { facts: list.iter().map(Facts::of).collect(), place: Place::Memory(list) };
        Self { store: Arc::new(store), picks }
    }
}

impl Default for Examples {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Examples {
    /// How many.
    pub fn len(&self) -> usize {
        self.picks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.picks.is_empty()
    }

    /// Tokens of each.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.facts().map(|facts| facts.tokens as usize)
    }

    /// Learnt tokens of each.
    pub fn targets(&self) -> impl Iterator<Item = usize> {
        self.facts().map(|facts| facts.targets as usize)
    }

    /// How many of them lost tokens to truncation, where `per` that follow each other count as one.
    pub fn truncated(&self, per: usize) -> usize {
        let cut: Vec<bool> = self.facts().map(|facts| facts.cut > 0).collect();
        cut.chunks(per.max(1)).filter(|cut| cut.contains(&true)).count()
    }

    fn facts(&self) -> impl Iterator<Item = Facts> {
        self.picks.iter().map(|&pick| self.store.facts[pick as usize])
    }

    /// Example `index`, from 0.
    ///
    /// # Errors
    /// A file that cannot be read back.
    pub fn get(&self, index: usize) -> io::Result<Cow<'_, Encoded>> {
        self.store.get(self.picks[index] as usize)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = io::Result<Cow<'_, Encoded>>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Examples of the same store by their numbers in it.
    fn of(store: &Arc<Store>, picks: Vec<u32>) -> Self {
        Self { store: Arc::clone(store), picks }
    }
}

impl Facts {
    fn of(example: &Encoded) -> Self {
        let [tokens, targets, cut] = [example.len(), example.targets(), example.cut].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Self { tokens, targets, cut }
    }
}

impl Store {
    fn get(&self, number: usize) -> io::Result<Cow<'_, Encoded>> {
        match &self.place {
            Place::Memory(list) => Ok(Cow::Borrowed(&list[number])),
            Place::Disk { file, starts } => {
                let Facts { tokens, cut, .. } = self.facts[number];
                let tokens = tokens as usize;
                let mut bytes = vec![0; 5 * tokens];
                {
                    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                    file.seek(SeekFrom::Start(starts[number]))?;
                    file.read_exact(&mut bytes)?;
                }
                let (ids, trained) = bytes.split_at(4 * tokens);
                let ids = ids.as_chunks::<4>().0.iter().map(|&id| u32::from_le_bytes(id)).collect();
                Ok(Cow::Owned(Encoded { ids, trained: trained.iter().map(|&byte| byte == 1).collect(), cut: cut as usize }))
            }
        }
    }
}

/// Examples as they come.
pub(crate) struct Collector {
    facts: Vec<Facts>,
    place: Growing,
}

enum Growing {
    Memory(Vec<Encoded>),
    /// `path` is what the file was called when it was made.
    Disk {
        file: BufWriter<File>,
        path: PathBuf,
        starts: Vec<u64>,
        end: u64,
    },
}

/// What could not be done to a file of examples.
const WRITE: &str = "write";

impl Growing {
    fn on_disk((file, path): (File, PathBuf)) -> Self {
        Self::Disk { file: BufWriter::new(file), path, starts: Vec::new(), end: 0 }
    }
}

impl Collector {
    /// Keeps them in memory, or if `on_disk` in a file of the user's cache folder that goes with the process.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub(crate) fn new(on_disk: bool) -> Result<Self, StoreError> {
        let place = match on_disk {
            true => Growing::on_disk(nameless(&bellows_runs::cache_dir().unwrap_or_else(std::env::temp_dir))?),
            false => Growing::Memory(Vec::new()),
        };
        Ok(Self { facts: Vec::new(), place })
    }

    /// Keeps one more; returns its number.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn push(&mut self, example: Encoded) -> Result<u32, StoreError> {
        self.facts.push(Facts::of(&example));
        match &mut self.place {
            Growing::Memory(list) => list.push(example),
            Growing::Disk { file, path, starts, end } => {
                let ids: Vec<u8> = example.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                let trained: Vec<u8> = example.trained.iter().map(|&trained| u8::from(trained)).collect();
                file.write_all(&ids).and_then(|()| file.write_all(&trained)).map_err(|e| StoreError::new(WRITE, path, e))?;
                starts.push(*end);
                *end += (ids.len() + trained.len()) as u64;
            }
        }
        Ok(self.facts.len() as u32 - 1)
    }

    /// The examples of these lists of numbers.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn finish<const N: usize>(self, lists: [Vec<u32>; N]) -> Result<[Examples; N], StoreError> {
        let place = match self.place {
            Growing::Memory(list) => Place::Memory(list),
            Growing::Disk { file, path, starts, .. } => {
                let file = file.into_inner().map_err(|e| StoreError::new(WRITE, &path, e.into_error()))?;
                Place::Disk { file: Mutex::new(file), starts }
            }
        };
        let store = Arc::new(Store { facts: self.facts, place });
        Ok(lists.map(|picks| Examples::of(&store, picks)))
    }
}

/// A file in `dir` that nothing is left of when it is closed (on Windows, when a later one is made), and what it was called.
fn nameless(dir: &Path) -> Result<(File, PathBuf), StoreError> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    std::fs::create_dir_all(dir).map_err(|e| StoreError::new("make", dir, e))?;
    let path = dir.join(format!("examples-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.map_err(|e| StoreError::new(WRITE, &path, e))?;
    // An open file lives without its name.
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::debug!("{}: {error}", path.display());
    }
    Ok((file, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_what_memory_holds() {
        let example = |n: u32| Encoded { ids: (n..2 * n).collect(), trained: (0..n).map(|i| i % 3 == 1).collect(), cut: n as usize % 2 };
        let stored = |on_disk| {
            let mut all = Collector::new(on_disk).unwrap();
            let numbers: Vec<u32> = (0..40).map(|n| all.push(example(n * 7)).unwrap()).collect();
            all.finish([numbers.into_iter().rev().collect(), vec![3, 3]]).unwrap()
        };
        let ([all, twice], [kept, _]) = (stored(true), stored(false));
        for (a, b) in all.iter().zip(kept.iter()) {
            assert_eq!(a.unwrap(), b.unwrap());
        }
        assert_eq!((all.len(), all.truncated(1), twice.get(1).unwrap().into_owned()), (40, kept.truncated(1), example(21)));
        // Every other one was.
        assert_eq!([all.truncated(1), all.truncated(2)], [20; 2]);
        assert!(all.lengths().eq(kept.lengths()) && all.targets().eq(kept.iter().map(|e| e.unwrap().targets())));
    }

    /// It is no fault of the rows, and the cache folder may be on another disk than what the user looks at.
    #[test]
    fn a_file_that_cannot_be_written_is_named_and_no_mistake_of_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("taken");
        std::fs::write(&taken, "").unwrap();
        let error = nameless(&taken).unwrap_err();
        assert!(error.to_string().contains(&taken.display().to_string()), "{error}");
        #[cfg(target_os = "linux")]
        {
            let full = || (OpenOptions::new().write(true).open("/dev/full").unwrap(), PathBuf::from("/dev/full"));
            let collector = || Collector { facts: Vec::new(), place: Growing::on_disk(full()) };
            let example = |n: usize| Encoded { ids: vec![1; n], trained: vec![true; n], cut: 0 };
            let mut few = collector();
            few.push(example(9)).unwrap();
            for error in [collector().push(example(9999)).unwrap_err(), few.finish([vec![0]]).unwrap_err()] {
                assert_eq!((error.path.as_path(), error.is_no_space()), (Path::new("/dev/full"), true), "{error}");
                assert!(matches!(bellows_chat::Fault::from(error), bellows_chat::Fault::Save(_)));
            }
        }
    }
}

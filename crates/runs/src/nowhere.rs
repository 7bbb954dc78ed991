//! A store that keeps nothing: for a process that takes part in a run and writes nothing of it.

use std::io::ErrorKind;
use std::path::Path;

use crate::store::{Store, StoreError};

/// Every write succeeds and leaves nothing; there is nothing to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

fn nothing<T>(action: &'static str, path: &Path) -> Result<T, StoreError> {
    Err(StoreError::new(action, path, ErrorKind::NotFound.into()))
}

impl Store for Nowhere {
    fn create_dir(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn write_file(&self, _: &Path, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync_file(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn append(&self, _: &Path, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn truncate(&self, _: &Path, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn len(&self, path: &Path) -> Result<u64, StoreError> {
        nothing("measure", path)
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove_file(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove_dir_all(&self, _: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    fn read(&self, path: &Path, _: u64) -> Result<Vec<u8>, StoreError> {
        nothing("read", path)
    }

    fn read_part(&self, path: &Path, _: u64, _: usize) -> Result<Vec<u8>, StoreError> {
        nothing("read", path)
    }

    fn list(&self, _: &Path) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    fn free_space(&self, _: &Path) -> Result<u64, StoreError> {
        Ok(u64::MAX)
    }
}

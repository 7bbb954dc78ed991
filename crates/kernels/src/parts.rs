//! A batch of which others hold parts: an operation that computes something of the whole batch asks here for what is known of the other parts,
//! and the model around it need not know that there are any.
//!
//! It is a matter of the thread that trains: Burn's backward pass stays on the thread that asks for it, and ours does too.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread::LocalKey;

/// Given some numbers of this part of a batch: those of every part, in the order of the parts.
pub type Gather = Rc<dyn Fn(&[f64]) -> Vec<Vec<f64>>>;

thread_local! {
    static GATHER: RefCell<Option<Gather>> = const { RefCell::new(None) };
}

/// Does `work` while the thread's `key` holds `value`; then, also when the work panics, puts back what was there before.
pub(crate) fn with<T: 'static, R>(key: &'static LocalKey<RefCell<Option<T>>>, value: T, work: impl FnOnce() -> R) -> R {
    struct Before<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);

    impl<T: 'static> Drop for Before<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }

    let _before = Before(key, key.replace(Some(value)));
    work()
}

/// Does `work`, all of it on this thread, while the tensors it computes with hold one part of a batch and `gather` knows of the others.
pub fn with_parts<R>(gather: Gather, work: impl FnOnce() -> R) -> R {
    with(&GATHER, gather, work)
}

/// These numbers of every part of the batch: `mine` alone, where this is all of it.
pub fn of_all_parts(mine: Vec<f64>) -> Vec<Vec<f64>> {
    match GATHER.with_borrow(Clone::clone) {
        Some(gather) => gather(&mine),
        None => vec![mine],
    }
}

/// Whether there may be others.
pub(crate) fn has_others() -> bool {
    GATHER.with_borrow(Option::is_some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_asked_while_there_are_others() {
        assert_eq!(of_all_parts(vec![1.0]), [[1.0]]);
        let twice: Gather = Rc::new(|mine| vec![mine.to_vec(), vec![mine[0] + 1.0]]);
        assert_eq!(with_parts(twice.clone(), || of_all_parts(vec![1.0])), [[1.0], [2.0]]);
        std::panic::catch_unwind(|| with_parts(Rc::new(|_| Vec::new()), || panic!("memory ran out"))).unwrap_err();
        assert!(!has_others());
    }
}

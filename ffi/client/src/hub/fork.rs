//! What belongs to the process that connected, and not to its children.

use core::ops::{Deref, DerefMut};

use rowmill_port::Process;

/// A value that a forked child leaves alone: dropped there, it is leaked, since taking the connection down would take the parent's
/// down.
pub(crate) struct InParent<T> {
    process: Process,
    value: Option<T>,
}

impl<T> InParent<T> {
    pub(crate) fn new(process: Process, value: T) -> InParent<T> {
        let value = Some(value);
        InParent { process, value }
    }

    /// The value, in the process that it belongs to.
    pub(crate) fn into_inner(mut self) -> T {
        self.value.take().expect("it is there until the drop")
    }
}

impl<T> Deref for InParent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the drop")
    }
}

impl<T> DerefMut for InParent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until the drop")
    }
}

impl<T> Drop for InParent<T> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            core::mem::forget(self.value.take());
        }
    }
}

//! Memory of results that is lent to arrays and tensors: who holds it, and how they see it.
//!
//! Whoever sees it holds an [`Export`], which can be dropped by any thread, with the interpreter's lock or without it, and after
//! the interpreter's end: it touches no Python object.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use rowmill_client::{Lease, Output, Window};

use crate::buffer::Registered;
use crate::errors::{Fault, Outcome};

/// What keeps a result's memory.
#[derive(Clone)]
pub(crate) enum Keeper {
    /// A range of the pool.
    Lease(Lease),
    /// The caller's own, from this byte on. It stays mapped, and is written to again when the caller says so.
    Buffer(Arc<Registered>, usize),
}

impl Keeper {
    fn part(&self, offset: usize, bytes: usize) -> Option<Window<'_>> {
        match self {
            Keeper::Lease(lease) => lease.window().part(offset, bytes),
            Keeper::Buffer(registered, first) => registered.window().part(first + offset, bytes),
        }
    }
}

/// A result's memory, until it is released.
pub(crate) struct Held {
    keeper: Mutex<Option<Keeper>>,
    /// Arrays, tensors and capsules that see it.
    exports: AtomicUsize,
}

impl Held {
    pub(crate) fn new(keeper: Keeper) -> Arc<Held> {
        Arc::new(Held {
            keeper: Mutex::new(Some(keeper)),
            exports: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the memory back, unless somebody sees it.
    pub(crate) fn release(&self) -> PyResult<()> {
        let mut keeper = self.lock();
        match self.exports.load(Ordering::Acquire) {
            0 => {
                *keeper = None;
                Ok(())
            }
            views => Err(PyBufferError::new_err(format!(
                "{views} arrays or tensors see the result's memory; delete them first"
            ))),
        }
    }

    /// Refuses what was released.
    pub(crate) fn check(&self) -> Outcome<()> {
        match *self.lock() {
            Some(_) => Ok(()),
            None => Err(released()),
        }
    }

    /// Lends it.
    fn export(self: &Arc<Held>) -> Outcome<Export> {
        let keeper = self.lock();
        let Some(keeper) = &*keeper else {
            return Err(released());
        };
        self.exports.fetch_add(1, Ordering::Relaxed);
        Ok(Export {
            keeper: Some(keeper.clone()),
            held: Arc::clone(self),
        })
    }
}

fn released() -> Fault {
    Fault::input("the result was released; look up again, or release it later")
}

/// The right to see a result's memory.
pub(crate) struct Export {
    keeper: Option<Keeper>,
    held: Arc<Held>,
}

impl Drop for Export {
    fn drop(&mut self) {
        // The keeper goes first: who sees no exports may take the memory to be free.
        self.keeper = None;
        self.held.exports.fetch_sub(1, Ordering::Release);
    }
}

/// A matrix in a result's memory.
#[derive(Clone)]
pub(crate) struct Matrix {
    /// `None` where it has no elements.
    pub(crate) held: Option<Arc<Held>>,
    /// Bytes from the result's begin to its first element.
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    pub(crate) output: Output,
}

/// A matrix that is lent: while the export is held its elements are mapped.
pub(crate) struct Lent {
    pub(crate) address: usize,
    /// Rows and columns.
    pub(crate) shape: [isize; 2],
    /// Elements from one row to the next, and from one column to the next.
    pub(crate) strides: [isize; 2],
    pub(crate) output: Output,
    pub(crate) export: Option<Export>,
}

/// Where arrays without elements are said to lie.
static NOTHING: u64 = 0;

impl Matrix {
    pub(crate) fn is_contiguous(&self) -> bool {
        self.stride == self.columns || self.rows <= 1
    }

    pub(crate) fn lend(&self) -> Outcome<Lent> {
        let export = match &self.held {
            Some(held) => Some(held.export()?),
            None => None,
        };
        let keeper = export.as_ref().and_then(|export| export.keeper.as_ref());
        let bytes = match self.rows {
            0 => 0,
            rows => ((rows - 1) * self.stride + self.columns) * self.output.bytes() as usize,
        };
        let address = match keeper {
            Some(keeper) => {
                let part = keeper.part(self.offset, bytes);
                part.expect("vectors lie in their result").as_ptr().addr()
            }
            None => (&raw const NOTHING).addr(),
        };
        Ok(Lent {
            address,
            shape: [self.rows.cast_signed(), self.columns.cast_signed()],
            strides: [self.stride.cast_signed(), 1],
            output: self.output,
            export,
        })
    }
}

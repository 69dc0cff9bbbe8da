//! Handles: what callers hold instead of pointers.
//!
//! A handle is a number in the disguise of a pointer, and is looked up at each call: one that was closed, that is of another kind, or
//! that is no handle at all is refused with a sentence, and what it stood for lives as long as a call of another thread still
//! uses it. Numbers are not used again. A call that does nothing but look one up takes
//! some 70 ns.
//!
//! After a fork the child has a table of its own, since another thread may have held the parent's locked; handles from before are
//! told by their numbers.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use rowmill_client::Process;

use crate::abi::rowmill_status::{ROWMILL_CLOSED, ROWMILL_FORKED};
use crate::client::Client;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::region::Region;
use crate::schema::Schema;

/// What a handle can stand for.
#[derive(Clone)]
pub(crate) enum Entry {
    Client(Arc<Client>),
    Schema(Arc<Schema>),
    Region(Arc<Region>),
    Gpu(Arc<Gpu>),
}

/// A type that handles stand for.
pub(crate) trait Held: Sized {
    /// What it is called in sentences.
    const NAME: &'static str;
    /// Bits 1 and 2 of its handles.
    const KIND: u64;
    /// What to do about a handle that was given up.
    const GONE: (crate::abi::rowmill_status, &'static str);

    /// As an entry of the table.
    fn wrap(this: Arc<Self>) -> Entry;
    /// Back from one.
    fn unwrap(entry: &Entry) -> Option<&Arc<Self>>;
}

macro_rules! held {
    ($type:ident, $kind:literal, $name:literal, $status:expr, $gone:literal) => {
        impl Held for $type {
            const NAME: &'static str = $name;
            const KIND: u64 = $kind;
            const GONE: (crate::abi::rowmill_status, &'static str) = ($status, $gone);

            fn wrap(this: Arc<Self>) -> Entry {
                Entry::$type(this)
            }

            fn unwrap(entry: &Entry) -> Option<&Arc<Self>> {
                match entry {
                    Entry::$type(this) => Some(this),
                    _ => None,
                }
            }
        }
    };
}

held!(
    Client,
    0,
    "client",
    ROWMILL_CLOSED,
    "the client was closed with rowmill_close(); connect again"
);
held!(
    Schema,
    1,
    "schema",
    crate::abi::rowmill_status::ROWMILL_INVALID,
    "the schema was freed with rowmill_schema_free(); bind it again"
);
held!(
    Region,
    2,
    "region",
    crate::abi::rowmill_status::ROWMILL_INVALID,
    "the region was freed with rowmill_region_free(); create another one"
);

held!(
    Gpu,
    3,
    "GPU",
    crate::abi::rowmill_status::ROWMILL_INVALID,
    "the GPU was closed with rowmill_gpu_close(); open it again"
);

/// The names of all kinds, by their numbers.
const NAMES: [&str; 4] = [Client::NAME, Schema::NAME, Region::NAME, Gpu::NAME];

/// The handles of a process.
struct Table {
    process: Process,
    /// The first number of this process: those below are its parent's.
    first: u64,
    next: AtomicU64,
    entries: RwLock<BTreeMap<u64, Entry>>,
    /// The parent's, which is not used any more, and kept so that what it holds does not look like a leak.
    _parent: *const Table,
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The process' table; made at its first call.
fn table() -> Result<&'static Table, Error> {
    loop {
        let now = TABLE.load(Ordering::Acquire);
        // SAFETY: what is stored there is never freed.
        let found = unsafe { now.as_ref() };
        if let Some(table) = found.filter(|table| table.process.is_this()) {
            return Ok(table);
        }
        let first = found.map_or(1, |parent| parent.next.load(Ordering::Relaxed));
        let made = Box::into_raw(Box::new(Table {
            process: Process::this()?,
            first,
            next: AtomicU64::new(first),
            entries: RwLock::default(),
            _parent: now,
        }));
        let swapped = TABLE.compare_exchange(now, made, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: it comes from a box, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// A number that no handle and no ticket of this process had before.
pub(crate) fn number() -> Result<u64, Error> {
    Ok(table()?.next.fetch_add(1, Ordering::Relaxed))
}

/// Gives something a handle.
pub(crate) fn add<T: Held, Opaque>(value: Arc<T>) -> Result<*mut Opaque, Error> {
    let table = table()?;
    let number = number()?;
    let mut entries = table
        .entries
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    entries.insert(number, T::wrap(value));
    // Odd, so that no pointer to anything of the caller's is one.
    let handle = number << 3 | T::KIND << 1 | 1;
    Ok(ptr::without_provenance_mut(handle as usize))
}

/// The number of a handle of this kind.
fn number_of<T: Held, Opaque>(table: &Table, handle: *const Opaque) -> Result<u64, Error> {
    let (name, value) = (T::NAME, handle.addr() as u64);
    let (number, kind) = (value >> 3, value >> 1 & 3);
    if value == 0 {
        return Err(Error::invalid(format!("the {name} is NULL; give one")));
    }
    let known = number > 0 && number < table.next.load(Ordering::Relaxed);
    let Some(&found) = NAMES.get(kind as usize).filter(|_| value & 1 == 1 && known) else {
        return Err(Error::invalid(format!(
            "the {name} {handle:p} is no handle of librowmill; give one that it has made"
        )));
    };
    if kind != T::KIND {
        return Err(Error::invalid(format!(
            "a {found} was given where a {name} is wanted"
        )));
    }
    if number < table.first {
        return Err(Error::new(
            ROWMILL_FORKED,
            format!(
                "the {name} was made before this process was forked, and is the parent's; connect again in the child"
            ),
        ));
    }
    Ok(number)
}

fn gone<T: Held>() -> Error {
    let (status, text) = T::GONE;
    Error::new(status, text)
}

/// What a handle stands for.
pub(crate) fn find<T: Held, Opaque>(handle: *const Opaque) -> Result<Arc<T>, Error> {
    let table = table()?;
    let number = number_of::<T, Opaque>(table, handle)?;
    let entries = table.entries.read().unwrap_or_else(PoisonError::into_inner);
    let found = entries.get(&number).and_then(T::unwrap);
    found.map(Arc::clone).ok_or_else(gone::<T>)
}

/// Ends a handle.
pub(crate) fn remove<T: Held, Opaque>(handle: *const Opaque) -> Result<Arc<T>, Error> {
    let table = table()?;
    let number = number_of::<T, Opaque>(table, handle)?;
    let mut entries = table
        .entries
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let entry = entries.remove(&number);
    drop(entries);
    entry
        .as_ref()
        .and_then(T::unwrap)
        .map(Arc::clone)
        .ok_or_else(gone::<T>)
}

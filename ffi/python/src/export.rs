//! Writing a generation from memory, such as that of a model's tensors.

use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use rowmill_client::ReadWindow;
use rowmill_table::{
    MemoryTable, RowFormat, RowMemory, TableError, TableKind, TableSpec, silent, write_until,
};

use crate::arguments;
use crate::errors::{Class, Fault, Outcome};

/// How long a signal waits for its handler, which has to run in Python.
const SLICE: Duration = Duration::from_millis(20);

/// Memory of the caller's, which others may write to meanwhile.
struct Memory {
    /// Not 0.
    address: usize,
    bytes: usize,
}

impl RowMemory for Memory {
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        let start = NonNull::new(self.address as *mut u8).expect("nothing is at 0");
        // SAFETY: the caller of `write_generation` keeps so many bytes readable from here on while it runs. No Rust reference to
        // them is made, and what others write to them meanwhile a window stands.
        let window = unsafe { ReadWindow::from_raw(start, self.bytes) };
        window.read(at as usize, out);
    }
}

/// A table as Python gives it: name, rows, dim, type of its numbers, address of the first one, row format.
type Given = (String, u64, usize, String, usize, String);

/// Writes a generation of dense tables that lie in memory, row after row. Other threads of Python run meanwhile, and a signal
/// whose handler raises ends it; nothing is left behind then.
///
/// Args:
///     path: The generation's folder, which must not exist.
///     number: Its number.
///     tables: For each its name, rows, dim, the type of its numbers (``"f32"``, ``"f16"`` or ``"bf16"``), the address of the
///         first one, and the row format wanted. What the addresses say is believed.
///
/// Raises:
///     InputError: A table can't be stored so, or there is something at ``path``.
///     Error: It can't be written.
#[pyfunction]
pub(crate) fn write_generation(
    py: Python<'_>,
    path: PathBuf,
    number: i128,
    tables: Vec<Given>,
) -> PyResult<()> {
    let number = arguments::whole("generation", number, 0..=u64::MAX)?;
    let tables = tables.into_iter().map(table);
    let tables = tables.collect::<Outcome<Vec<(TableSpec, RowFormat, Memory)>>>()?;
    let stop = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let work = scope.spawn(|| {
            let tables: Vec<MemoryTable<'_>> = tables
                .iter()
                .map(|(spec, element, memory)| MemoryTable {
                    spec: spec.clone(),
                    element: *element,
                    memory,
                })
                .collect();
            write_until(&stop, &path, number, &tables, &silent)
        });
        let mut raised = Ok(());
        while !work.is_finished() {
            py.detach(|| thread::sleep(SLICE));
            if raised.is_ok() {
                raised = py.check_signals();
                stop.store(raised.is_err(), Ordering::Relaxed);
            }
        }
        match work.join() {
            Ok(written) => raised.map(|()| written),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    Ok(outcome.map_err(fault)?)
}

fn table(
    (name, rows, dim, element, address, format): Given,
) -> Outcome<(TableSpec, RowFormat, Memory)> {
    let parsed = |format: &str| -> Outcome<RowFormat> {
        format
            .parse()
            .map_err(|error| Fault::input(format!("table {name}: {error}")))
    };
    let (element, format) = (parsed(&element)?, parsed(&format)?);
    let spec = TableSpec {
        name,
        rows,
        dim,
        format,
        kind: TableKind::Dense,
    };
    spec.check().map_err(fault)?;
    if address == 0 {
        let text = format!("table {}: there is nothing at address 0", spec.name);
        return Err(Fault::input(text));
    }
    let bytes = element.row_bytes(dim) * rows as usize;
    let memory = Memory { address, bytes };
    Ok((spec, element, memory))
}

fn fault(error: TableError) -> Fault {
    let class = match error {
        TableError::BadName { .. }
        | TableError::DuplicateName { .. }
        | TableError::NoTables
        | TableError::TooManyTables { .. }
        | TableError::BadRows { .. }
        | TableError::BadDim { .. }
        | TableError::UnfitRow { .. }
        | TableError::AlreadyExists { .. } => Class::Input,
        _ => Class::Error,
    };
    Fault::new(class, error.to_string())
}

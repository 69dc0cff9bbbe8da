//! Memory of a GPU that is registered for results.

use std::mem;
use std::sync::Arc;

use pyo3::prelude::*;
use rowmill_client as client;
use rowmill_client::{ClientError, GpuRegion};

use super::{Gpu, Open};
use crate::errors::Fault;

/// Memory of the caller's that is registered, and what keeps it allocated.
pub(super) struct Registered {
    pub(super) region: GpuRegion,
    /// A tensor, which nobody reads here.
    pub(super) _owner: Py<PyAny>,
}

/// Memory of a GPU that is registered for results. Made by :meth:`Gpu.register`.
///
/// It is registered for as long as this object is held: the first one that is registered after it is gone gives it up.
#[pyclass(frozen, module = "rowmill", weakref)]
pub(crate) struct GpuMemory {
    pub(super) registered: Arc<Registered>,
}

impl Open {
    /// Closes the GPU, and gives up what is registered.
    pub(super) fn end(self) {
        self.gpu.close();
        let kept = self.kept.into_iter().map(Arc::new);
        for one in self.registered.into_iter().chain(kept) {
            if is_in_use(self.gpu.unregister(&one.region)) {
                // A NIC may still write there until the connection ends, so that it stays allocated as long as the process.
                mem::forget(one);
            }
        }
    }
}

/// Whether a request is in flight that is written there.
fn is_in_use(unregistered: Result<(), ClientError>) -> bool {
    matches!(unregistered, Err(ClientError::RegionInUse { .. }))
}

impl Gpu {
    /// Enters memory that was registered. Where the GPU was closed meanwhile it is given up again.
    pub(super) fn keep(&self, py: Python<'_>, gpu: &client::Gpu, registered: &Arc<Registered>) {
        if let Some(open) = &mut *self.lock() {
            open.registered.push(Arc::clone(registered));
        } else {
            // Nothing was sent there.
            let _ = py.detach(|| gpu.unregister(&registered.region));
        }
    }

    /// Gives up what was registered, and that nobody has any more.
    pub(super) fn give_up_unused(&self, py: Python<'_>, gpu: &client::Gpu) -> PyResult<()> {
        // Nobody can find one here that nobody has.
        let unused = |one: &mut Arc<Registered>| Arc::strong_count(one) == 1;
        let unused: Vec<_> = match &mut *self.lock() {
            Some(open) => open.registered.extract_if(.., unused).collect(),
            None => Vec::new(),
        };
        for one in unused.into_iter().filter_map(Arc::into_inner) {
            let given_up = py.detach(|| gpu.unregister(&one.region));
            if let Err(error) = given_up {
                if let Some(open) = &mut *self.lock() {
                    open.kept.push(one);
                }
                // Else a request still writes to it, and it stays registered.
                if !matches!(error, ClientError::RegionInUse { .. }) {
                    return Err(Fault::of(error, &[]).into());
                }
            }
        }
        Ok(())
    }
}

#[pymethods]
impl GpuMemory {
    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.registered.region.memory().len()
    }

    /// How results come there; see :attr:`Gpu.way`.
    #[getter]
    fn way(&self) -> String {
        self.registered.region.way().to_string()
    }

    /// What was tried, in order, and what came of it: a line each.
    #[getter]
    fn report(&self) -> Vec<String> {
        self.registered.region.report().to_vec()
    }

    fn __repr__(&self) -> String {
        format!("GpuMemory({} bytes, {})", self.nbytes(), self.way())
    }
}

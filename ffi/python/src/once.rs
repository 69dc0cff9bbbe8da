//! What is made once a process, such as an import.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What `make` gives at the first call. It is not called under a lock, since it may run anybody's code, such as that of a finaliser
/// which comes here itself: so two threads may make it at the same time, of which one is kept.
pub(crate) fn kept<'l, T>(
    py: Python<'_>,
    place: &'l PyOnceLock<T>,
    make: impl FnOnce() -> PyResult<T>,
) -> PyResult<&'l T> {
    if let Some(known) = place.get(py) {
        return Ok(known);
    }
    let unused = place.set(py, make()?);
    drop(unused);
    Ok(place.get(py).expect("it was set"))
}

/// A module's attribute.
pub(crate) fn import<'l>(
    py: Python<'_>,
    place: &'l PyOnceLock<Py<PyAny>>,
    module: &str,
    name: &str,
) -> PyResult<&'l Py<PyAny>> {
    kept(py, place, || Ok(py.import(module)?.getattr(name)?.unbind()))
}

//! Results, and the arrays of their features.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyIterator, PyString, PyTuple};
use rowmill_client::Output;

use crate::buffer_protocol;
use crate::dlpack::{self, CPU, Wish};
use crate::errors::{Class, Fault, Outcome};
use crate::memory::{Held, Lent, Matrix};
use crate::once;
use crate::schema::{Layout, Span, output_name};

/// The vectors of a batch, in memory that the dataplane wrote them to.
///
/// Arrays and tensors made of it see that memory, without a copy. It is used for other results when the result and all that see it
/// are gone, so keep what is needed and let go of the rest. The result itself, by the buffer protocol or DLPack, is its
/// :attr:`values`; by its features' names it is read as a dict of :class:`Array`.
#[pyclass(frozen, mapping, module = "rowmill")]
pub(crate) struct Result {
    pub(crate) layout: Arc<Layout>,
    pub(crate) names: Arc<[String]>,
    pub(crate) bags: usize,
    /// The vectors of each feature, where any is not pooled.
    pub(crate) vectors: Option<Vec<usize>>,
    /// `None` where there are no bags.
    pub(crate) held: Option<Arc<Held>>,
    /// The generation of the rows.
    #[pyo3(get)]
    pub(crate) generation: u64,
    /// The last delta of that generation of which each row is, or of a later one; 0 before the first.
    #[pyo3(get)]
    pub(crate) delta: u64,
    /// Seconds from the request's receipt to its end by the dataplane's clock.
    #[pyo3(get)]
    pub(crate) service_s: f64,
}

impl Result {
    fn matrix(&self, feature: Option<usize>) -> Matrix {
        let bytes = self.layout.output.bytes() as usize;
        let matrix = Matrix {
            held: self.held.clone(),
            offset: self.layout.matrix,
            rows: self.bags,
            columns: self.layout.width,
            stride: self.layout.width,
            output: self.layout.output,
        };
        match feature.map(|feature| (feature, self.layout.spans[feature])) {
            None => matrix,
            Some((_, Span::Column { first, dim })) => Matrix {
                offset: matrix.offset + first * bytes,
                columns: dim,
                ..matrix
            },
            Some((feature, Span::Block { offset, dim, .. })) => Matrix {
                offset,
                rows: self.vectors.as_ref().map_or(0, |vectors| vectors[feature]),
                columns: dim,
                stride: dim,
                ..matrix
            },
        }
    }

    /// The number of the feature with that name.
    fn place(&self, feature: &Bound<'_, PyAny>) -> Option<usize> {
        let feature = feature.cast::<PyString>().ok()?;
        let feature = feature.to_str().ok()?;
        self.names.iter().position(|name| name == feature)
    }

    /// The matrix of pooled features; or the only feature, where that is not pooled.
    fn whole(&self) -> Outcome<Matrix> {
        match (&*self.layout.spans, self.layout.width) {
            ([_], 0) => Ok(self.matrix(Some(0))),
            (_, 0) => {
                let text = "no feature of the result is pooled, so that they have no matrix in common; take one by its name: result[name]";
                Err(Fault::input(text))
            }
            _ => Ok(self.matrix(None)),
        }
    }
}

#[pymethods]
impl Result {
    /// The vectors of all features that are pooled, side by side: an :class:`Array` ``[bags, schema.width]``. Where the schema
    /// has one feature, which is not pooled, its ``[ids, dim]``.
    ///
    /// Raises:
    ///     InputError: The schema has several features of which none is pooled.
    #[getter]
    fn values(&self) -> PyResult<Array> {
        Ok(Array(self.whole()?))
    }

    /// The names of its features.
    fn keys(&self) -> Vec<String> {
        self.names.to_vec()
    }

    /// The names of its features, each with its vectors.
    fn items(&self) -> Vec<(String, Array)> {
        let each = |(at, name): (usize, &String)| (name.clone(), Array(self.matrix(Some(at))));
        self.names.iter().enumerate().map(each).collect()
    }

    /// A feature's vectors, or something else where there is no such feature.
    ///
    /// Args:
    ///     feature: Its name.
    ///     default: What is given where the result has no such feature.
    ///
    /// Returns:
    ///     What ``result[feature]`` is, or ``default``.
    #[pyo3(signature = (feature, default = None, /))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        feature: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.place(feature) {
            Some(at) => Ok(Some(
                Bound::new(py, Array(self.matrix(Some(at))))?.into_any(),
            )),
            None => Ok(default),
        }
    }

    /// A feature's vectors: an :class:`Array` ``[bags, dim]``, or ``[ids, dim]`` where it is not pooled.
    fn __getitem__(&self, feature: &Bound<'_, PyAny>) -> PyResult<Array> {
        let at = self.place(feature).ok_or_else(|| {
            let names = self.names.join("`, `");
            let text = format!("the result has no feature `{feature}`; it has `{names}`");
            Fault::new(Class::Feature, text)
        })?;
        Ok(Array(self.matrix(Some(at))))
    }

    /// How many features it has.
    fn __len__(&self) -> usize {
        self.names.len()
    }

    fn __contains__(&self, feature: &Bound<'_, PyAny>) -> bool {
        self.place(feature).is_some()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyTuple::new(py, &*self.names)?.try_iter()
    }

    /// Bags a feature.
    #[getter]
    fn bags(&self) -> usize {
        self.bags
    }

    /// :attr:`values` as a NumPy array that sees the result's memory.
    ///
    /// Returns:
    ///     numpy.ndarray: float32 or float16.
    ///
    /// Raises:
    ///     InputError: The result is bfloat16, which NumPy lacks; was released; or has no matrix.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let whole = slf.get().whole()?;
        to_numpy(slf.as_any(), &whole)
    }

    /// :attr:`values` as a torch tensor that sees the result's memory.
    ///
    /// Returns:
    ///     torch.Tensor: float32, float16 or bfloat16, on the CPU.
    ///
    /// Raises:
    ///     InputError: The result was released, or has no matrix.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_torch(py, &self.whole()?)
    }

    /// Gives the memory back now. Without it that happens when the result and all that see it are gone.
    ///
    /// Raises:
    ///     BufferError: Arrays or tensors see it.
    fn release(&self) -> PyResult<()> {
        self.held.as_ref().map_or(Ok(()), |held| held.release())
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let wish = Wish {
            stream,
            max_version,
            device: dl_device,
            copy,
        };
        wish.capsule(py, || Ok(self.whole()?.lend()?))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        CPU
    }

    /// What NumPy asks where there is no buffer for it, to be told why.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (dtype, copy);
        Result::numpy(slf)
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let whole = slf.get().whole()?;
        // SAFETY: the interpreter's view, to be filled.
        unsafe { fill(slf.into_any(), view, flags, &whole) }
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: it was filled above.
        unsafe { buffer_protocol::release(view) }
    }

    fn __repr__(&self) -> String {
        let names = self.names.join(", ");
        format!(
            "Result({names}; bags={}, output='{}', generation={})",
            self.bags,
            output_name(self.layout.output),
            self.generation
        )
    }
}

/// A matrix in a result's memory, for NumPy (buffer protocol), torch (DLPack) and whoever else knows one of both.
#[pyclass(frozen, module = "rowmill")]
pub(crate) struct Array(Matrix);

#[pymethods]
impl Array {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.0.rows, self.0.columns)
    }

    /// ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        output_name(self.0.output)
    }

    /// A NumPy array that sees the result's memory.
    ///
    /// Returns:
    ///     numpy.ndarray: float32 or float16.
    ///
    /// Raises:
    ///     InputError: It is bfloat16, which NumPy lacks, or the result was released.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        to_numpy(slf.as_any(), &slf.get().0)
    }

    /// A torch tensor that sees the result's memory.
    ///
    /// Returns:
    ///     torch.Tensor: float32, float16 or bfloat16, on the CPU.
    ///
    /// Raises:
    ///     InputError: The result was released.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_torch(py, &self.0)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let wish = Wish {
            stream,
            max_version,
            device: dl_device,
            copy,
        };
        wish.capsule(py, || Ok(self.0.lend()?))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        CPU
    }

    /// What NumPy asks where there is no buffer for it, to be told why.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (dtype, copy);
        Array::numpy(slf)
    }

    fn __len__(&self) -> usize {
        self.0.rows
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let matrix = slf.get().0.clone();
        // SAFETY: the interpreter's view, to be filled.
        unsafe { fill(slf.into_any(), view, flags, &matrix) }
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: it was filled above.
        unsafe { buffer_protocol::release(view) }
    }

    fn __repr__(&self) -> String {
        let Matrix {
            rows,
            columns,
            output,
            ..
        } = self.0;
        format!("Array([{rows}, {columns}], '{}')", output_name(output))
    }
}

/// # Safety
/// As [`buffer_protocol::fill`].
unsafe fn fill(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    matrix: &Matrix,
) -> PyResult<()> {
    let lend = || -> PyResult<Lent> { Ok(matrix.lend()?) };
    // SAFETY: the caller's contract.
    unsafe { buffer_protocol::fill(owner, view, flags, matrix.is_contiguous(), lend) }
}

fn check_numpy(matrix: &Matrix) -> Outcome<()> {
    match matrix.output {
        Output::Bf16 => {
            let text =
                "NumPy has no bfloat16; call .torch(), or bind the schema with output=\"float32\"";
            Err(Fault::new(Class::Dtype, text))
        }
        _ => Ok(()),
    }
}

fn to_numpy<'py>(owner: &Bound<'py, PyAny>, matrix: &Matrix) -> PyResult<Bound<'py, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    check_numpy(matrix)?;
    if let Some(held) = &matrix.held {
        held.check()?;
    }
    let asarray = once::import(owner.py(), &ASARRAY, "numpy", "asarray")?;
    asarray.bind(owner.py()).call1((owner,))
}

fn to_torch<'py>(py: Python<'py>, matrix: &Matrix) -> PyResult<Bound<'py, PyAny>> {
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let from_dlpack = once::import(py, &FROM_DLPACK, "torch.utils.dlpack", "from_dlpack")?;
    from_dlpack
        .bind(py)
        .call1((dlpack::plain_capsule(py, matrix.lend()?)?,))
}

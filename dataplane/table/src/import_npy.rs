//! Tables from NumPy's `.npy` files.

use std::path::Path;
use std::sync::Arc;

use npyz::{DType, NpyHeader, Order};

use crate::TableError;
use crate::format::RowFormat;
use crate::import_file::{Keys, SourceFile, Values};

/// Longest header that is read. NumPy writes 128 bytes for two dimensions of one type; the limit also
/// bounds how deep the parser can be made to recurse.
const MAX_NPY_HEADER_BYTES: u64 = 1024;
/// What a file starts with.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Most characters of the parser's errors that are shown.
const MAX_ERROR_CHARS: usize = 200;

/// An opened file whose header is checked, but not yet that it is as long as the header says.
struct Array {
    file: Arc<SourceFile>,
    header: NpyHeader,
    data_at: u64,
}

/// Opens an array of two dimensions of f32 or f16 as rows.
pub(crate) fn rows(path: &Path) -> Result<Values, TableError> {
    let array = Array::open(path)?;
    let element = array.element()?;
    let &[rows, dim] = array.header.shape() else {
        let found = array.header.shape().len();
        return Err(array.file.bad(format!(
            "has {found} dimensions; a table is an array of two, rows by columns"
        )));
    };
    // NumPy marks arrays of one row or column as either order; their bytes are the same.
    if array.header.order() == Order::Fortran && rows > 1 && dim > 1 {
        return Err(array
            .file
            .bad("is in Fortran order; save it with numpy.ascontiguousarray"));
    }
    array.has_bytes_of(element.row_bytes(1) as u64)?;
    Ok(Values {
        file: array.file,
        at: array.data_at,
        rows,
        dim,
        element,
    })
}

/// Opens an array of one dimension, or of one row, of f32 or f16 as a single row.
pub(crate) fn row(path: &Path) -> Result<Values, TableError> {
    let array = Array::open(path)?;
    let element = array.element()?;
    let (&[dim] | &[1, dim]) = array.header.shape() else {
        let found = array.header.shape();
        return Err(array.file.bad(format!(
            "has the shape {found:?}; a row is an array of one dimension"
        )));
    };
    array.has_bytes_of(element.row_bytes(1) as u64)?;
    Ok(Values {
        file: array.file,
        at: array.data_at,
        rows: 1,
        dim,
        element,
    })
}

/// Opens an array of one dimension of 64-bit integers as keys.
pub(crate) fn keys(path: &Path) -> Result<Keys, TableError> {
    let array = Array::open(path)?;
    if !array.holds("<i8") && !array.holds("<u8") {
        return Err(array.file.bad(format!(
            "holds {}; ids are 64-bit integers, as array.astype('<i8') makes them",
            array.header.dtype().descr()
        )));
    }
    let (&[count] | &[count, 1]) = array.header.shape() else {
        let found = array.header.shape();
        return Err(array.file.bad(format!(
            "has the shape {found:?}; ids are an array of one dimension"
        )));
    };
    array.has_bytes_of(8)?;
    Ok(Keys {
        file: array.file,
        at: array.data_at,
        count,
    })
}

impl Array {
    fn open(path: &Path) -> Result<Array, TableError> {
        let file = SourceFile::open(path)?;
        let start = file.start(MAX_NPY_HEADER_BYTES)?;
        let (header, data_at) = parse(&start).map_err(|reason| file.bad(reason))?;
        Ok(Array {
            file,
            header,
            data_at,
        })
    }

    fn holds(&self, kind: &str) -> bool {
        self.header.dtype() == DType::new_scalar(kind.parse().expect("a type"))
    }

    /// The type of values.
    fn element(&self) -> Result<RowFormat, TableError> {
        if self.holds("<f4") {
            return Ok(RowFormat::F32);
        }
        if self.holds("<f2") {
            return Ok(RowFormat::F16);
        }
        let found = self.header.dtype().descr();
        // NumPy has no bfloat16; ml_dtypes brings one, and NumPy saves it as two bytes of anything.
        let hint = if self.holds("|V2") {
            "; bfloat16 is lost in .npy files, so save it as safetensors"
        } else {
            ""
        };
        Err(self.file.bad(format!(
            "holds {found}; save it as little-endian f32, as array.astype('<f4') does, or '<f2'{hint}"
        )))
    }

    /// That the file ends with the last of its elements of `element_bytes`.
    fn has_bytes_of(&self, element_bytes: u64) -> Result<(), TableError> {
        // The product fits, see `parse`; with the rest it could be too much.
        let elements: u64 = self.header.shape().iter().product();
        let promised = elements
            .checked_mul(element_bytes)
            .and_then(|bytes| bytes.checked_add(self.data_at));
        if promised == Some(self.file.bytes) {
            return Ok(());
        }
        let promised = promised.map_or("too many".into(), |bytes| bytes.to_string());
        Err(self.file.bad(format!(
            "its header promises {promised} bytes and it has {}; it was not written or copied whole",
            self.file.bytes
        )))
    }
}

/// Whether `bytes` start with the header of a `.npy` file; for tests with bytes of any kind.
///
/// # Errors
/// What is wrong, in words.
#[doc(hidden)]
pub fn check_npy_header(bytes: &[u8]) -> Result<(), String> {
    let start = bytes.len().min(MAX_NPY_HEADER_BYTES as usize);
    parse(&bytes[..start]).map(|_| ())
}

/// Parses the header at the start of `bytes`, of which there are [`MAX_NPY_HEADER_BYTES`] unless the file
/// ends before, with the care that untrusted bytes need. Gives also where the data start. The product of the shape's numbers fits a u64.
fn parse(bytes: &[u8]) -> Result<(NpyHeader, u64), String> {
    let no_npy = |reason: &str| format!("is no .npy file: {reason}");
    let cut = |whole: &str| {
        let found = bytes.len();
        format!(
            "ends after {found} bytes, within its header{whole}; it was not written or copied whole"
        )
    };
    // Magic (6 bytes), version (2), length of the text (2 in version 1, else 4), text.
    let (text_at, length) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
            (10, u16::from_le_bytes([*low, *high]).into())
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', _, _, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([*a, *b, *c, *d]))
        }
        _ if bytes.len() < 12 && bytes.iter().zip(MAGIC).all(|(byte, magic)| byte == magic) => {
            return Err(cut(""));
        }
        _ => return Err(no_npy("it does not start as NumPy writes it")),
    };
    let end = text_at + length as usize;
    if end as u64 > MAX_NPY_HEADER_BYTES {
        return Err(no_npy(&format!(
            "its header is longer than {MAX_NPY_HEADER_BYTES} bytes, and that of an array of one type is not"
        )));
    }
    let text = bytes
        .get(text_at..end)
        .ok_or_else(|| cut(&format!(" of {end}")))?;
    // The parser goes back and forth in nested types, twice as long with each level. Arrays of one type have
    // a dictionary with a tuple in it.
    let opening = text.iter().filter(|byte| b"([{".contains(byte)).count();
    if opening > 4 {
        return Err(no_npy(
            "its header nests more than that of an array of one type",
        ));
    }
    // The parser multiplies the numbers of the shape. Numbers of d decimal digits together have a
    // product below 10^d, which fits a u64 up to 19; hexadecimal ones, which need an x, are left out.
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if digits > 19 || text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'x')) {
        return Err(no_npy("its header has numbers that no array's shape has"));
    }
    let header = NpyHeader::from_reader(&bytes[..end]).map_err(|error| {
        // The lines behind the first one quote all of the text.
        let said = error.to_string();
        let line = said.lines().next().unwrap_or_default();
        no_npy(&line.chars().take(MAX_ERROR_CHARS).collect::<String>())
    })?;
    Ok((header, end as u64))
}

//! Tables from NumPy's `.npy` files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use npyz::{DType, NpyHeader, Order};

use crate::blocks::read_at;
use crate::draft::{RowSource, write_generation};
use crate::format::{RowFormat, TableSpec};
use crate::{Progress, TableError};

/// Longest header that is read. NumPy writes 128 bytes for two dimensions of one type; the limit also
/// bounds how deep the parser can be made to recurse.
const MAX_NPY_HEADER_BYTES: u64 = 1024;
/// Rows are converted in pieces of about this many bytes, so that memory use is bounded.
const PIECE_BYTES: usize = 256 << 10;

/// A `.npy` file and the table that it is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpySource {
    /// The table's name.
    pub name: String,
    /// The file: a two-dimensional array of little-endian f32 in C order, a row an embedding.
    pub path: PathBuf,
    /// How rows are to be stored.
    pub format: RowFormat,
}

/// Makes generation `number` at `dir`, which must not exist, of `.npy` files, one a table.
///
/// Int8 rows are quantised as [`RowFormat::encode`] says. Memory use is bounded, whatever the size.
///
/// # Errors
/// [`TableError::BadNpy`] for files of another kind or size, [`TableError::NotFinite`] for the first
/// value found that is not finite, and all errors of [`generate`](crate::generate()).
pub fn import_npy(
    dir: impl AsRef<Path>,
    number: u64,
    sources: &[NpySource],
    progress: Progress<'_>,
) -> Result<(), TableError> {
    let arrays = sources
        .iter()
        .map(Array::open)
        .collect::<Result<Vec<_>, _>>()?;
    let specs: Vec<TableSpec> = arrays.iter().map(|array| array.spec.clone()).collect();
    write_generation(dir.as_ref(), number, &specs, &Arrays(arrays), progress)
}

/// An opened file whose header is checked.
struct Array {
    spec: TableSpec,
    path: PathBuf,
    file: File,
    data_at: u64,
}

impl Array {
    fn open(source: &NpySource) -> Result<Array, TableError> {
        let path = source.path.clone();
        let bad = |reason: String| TableError::BadNpy {
            path: path.clone(),
            reason,
        };
        let file = File::open(&path).map_err(TableError::io(&path))?;
        let size = file.metadata().map_err(TableError::io(&path))?.len();
        let (header, data_at) = read_header(&file, &path)?;
        if header.dtype() != DType::new_scalar("<f4".parse().expect("a type")) {
            let found = header.dtype().descr();
            return Err(bad(format!(
                "holds {found}; save it as little-endian f32, as array.astype('<f4') does"
            )));
        }
        let &[rows, dim] = header.shape() else {
            let found = header.shape().len();
            return Err(bad(format!(
                "has {found} dimensions; a table is an array of two, rows by columns"
            )));
        };
        // NumPy marks arrays of one row or column as either order; their bytes are the same.
        if header.order() == Order::Fortran && rows > 1 && dim > 1 {
            return Err(bad(
                "is in Fortran order; save it with numpy.ascontiguousarray".into(),
            ));
        }
        let name = source.name.clone();
        let dim = usize::try_from(dim).map_err(|_| TableError::BadDim {
            table: name.clone(),
            dim,
        })?;
        let spec = TableSpec {
            name,
            rows,
            dim,
            format: source.format,
        };
        spec.check()?;
        let promised = data_at + rows * dim as u64 * 4;
        if size != promised {
            return Err(bad(format!(
                "its header promises {promised} bytes and it has {size}; it was not written or copied whole"
            )));
        }
        Ok(Array {
            spec,
            path,
            file,
            data_at,
        })
    }
}

/// Reads the header; gives also where the data start.
fn read_header(file: &File, path: &Path) -> Result<(NpyHeader, u64), TableError> {
    let mut start = Vec::new();
    file.take(MAX_NPY_HEADER_BYTES)
        .read_to_end(&mut start)
        .map_err(TableError::io(path))?;
    parse_npy_header(&start).map_err(|reason| TableError::BadNpy {
        path: path.to_owned(),
        reason: format!("is no .npy file: {reason}"),
    })
}

/// Parses the header at the start of `bytes`, with the care that untrusted bytes need.
fn parse_npy_header(bytes: &[u8]) -> Result<(NpyHeader, u64), String> {
    // Magic (6 bytes), version (2), length of the text (2 in version 1, else 4), text.
    let (text_at, length) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
            (10, u16::from_le_bytes([*low, *high]).into())
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', _, _, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([*a, *b, *c, *d]))
        }
        _ => return Err("it does not start as NumPy writes it".into()),
    };
    let end = text_at + length as usize;
    let text = bytes.get(text_at..end).ok_or(format!(
        "its header is longer than {MAX_NPY_HEADER_BYTES} bytes"
    ))?;
    // The parser multiplies the numbers of the shape. Numbers of d decimal digits together have a
    // product below 10^d, which fits a u64 up to 19; hexadecimal ones, which need an x, are left out.
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if digits > 19 || text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'x')) {
        return Err("its header has numbers that no array's shape has".into());
    }
    let header = NpyHeader::from_reader(&bytes[..end]).map_err(|error| error.to_string())?;
    Ok((header, end as u64))
}

struct Arrays(Vec<Array>);

impl RowSource for Arrays {
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        let Array {
            spec,
            path,
            file,
            data_at,
        } = &self.0[table];
        let (stride, raw_stride) = (spec.stride(), spec.dim * 4);
        let piece_rows = (PIECE_BYTES / raw_stride).max(1);
        let mut raw = vec![0; raw_stride * piece_rows.min(out.len() / stride)];
        let mut values = vec![0.0; spec.dim];
        let mut row = first;
        for piece in out.chunks_mut(stride * piece_rows) {
            let raw = &mut raw[..piece.len() / stride * raw_stride];
            read_at(file, path, raw, data_at + row * raw_stride as u64)?;
            for (encoded, raw) in piece
                .chunks_exact_mut(stride)
                .zip(raw.chunks_exact(raw_stride))
            {
                RowFormat::F32.decode(raw, &mut values);
                if let Some(column) = values.iter().position(|value| !value.is_finite()) {
                    let (path, column, value) = (path.clone(), column as u64, values[column]);
                    return Err(TableError::NotFinite {
                        path,
                        row,
                        column,
                        value,
                    });
                }
                spec.format.encode(&values, encoded);
                row += 1;
            }
        }
        Ok(())
    }
}

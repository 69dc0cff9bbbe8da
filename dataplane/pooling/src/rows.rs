//! Rows in memory: format, dimension and stride over a run of bytes, checked once.

use core::fmt;
use rowmill_arena::ReadWindow;

/// The largest dimension of a row.
pub const DIM_MAX: usize = 2048;
/// Dimensions are multiples of this.
pub const DIM_STEP: usize = 4;
/// Bytes of the longest row. Codes with their scale and bias take less.
pub(crate) const ROW_BYTES_MAX: usize = RowFormat::F32.row_bytes(DIM_MAX);
const _: () = assert!(RowFormat::Int8.row_bytes(DIM_MAX) <= ROW_BYTES_MAX);
/// One more than the largest number of rows: ids are non-negative 32-bit integers.
const COUNT_END: u32 = 1 << 31;

/// How the values of a row are stored. All numbers are little-endian.
///
/// The formats with codes are FBGEMM's fused row-wise ones: a dimension's value is `scale * code + bias`,
/// and the row's scale and bias follow its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowFormat {
    /// An f32 a dimension.
    F32,
    /// An IEEE 754 binary16 a dimension.
    F16,
    /// A bfloat16, the upper half of an f32, a dimension.
    Bf16,
    /// A `u8` code a dimension, then an f32 scale and an f32 bias.
    Int8,
    /// A `u8` code a dimension, then an f16 scale and an f16 bias.
    Int8F16,
    /// A 4-bit code a dimension, the even one of two in the low half of a byte, then an f16 scale and an
    /// f16 bias.
    Int4,
}

impl RowFormat {
    /// All of them.
    pub const ALL: [RowFormat; 6] = [
        RowFormat::F32,
        RowFormat::F16,
        RowFormat::Bf16,
        RowFormat::Int8,
        RowFormat::Int8F16,
        RowFormat::Int4,
    ];

    /// Bytes that a row of `dim` dimensions takes, without padding.
    pub const fn row_bytes(self, dim: usize) -> usize {
        self.value_bytes(dim) + self.trailer_bytes()
    }

    /// Bytes that the values or codes of `dim` dimensions take; `dim` is even.
    pub const fn value_bytes(self, dim: usize) -> usize {
        match self {
            RowFormat::F32 => 4 * dim,
            RowFormat::F16 | RowFormat::Bf16 => 2 * dim,
            RowFormat::Int8 | RowFormat::Int8F16 => dim,
            RowFormat::Int4 => dim / 2,
        }
    }

    /// Bytes of the scale and the bias behind a row's codes; 0 where values are no codes.
    pub const fn trailer_bytes(self) -> usize {
        match self {
            RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16 => 0,
            RowFormat::Int8 => 8,
            RowFormat::Int8F16 | RowFormat::Int4 => 4,
        }
    }

    /// Whether values are codes that a row's scale and bias turn into numbers.
    pub const fn has_codes(self) -> bool {
        self.trailer_bytes() > 0
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RowFormat::F32 => "f32",
            RowFormat::F16 => "f16",
            RowFormat::Bf16 => "bf16",
            RowFormat::Int8 => "int8",
            RowFormat::Int8F16 => "int8-f16",
            RowFormat::Int4 => "int4",
        })
    }
}

/// Why bytes can't be taken as rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// The dimension is not a multiple of 4 from 4 to 2048.
    #[error("dimension {dim} is not a multiple of {DIM_STEP} from {DIM_STEP} to {DIM_MAX}")]
    Dim {
        /// The dimension that was asked for.
        dim: usize,
    },
    /// The stride is smaller than a row.
    #[error("a stride of {stride} bytes is too small for rows of {row_bytes} bytes")]
    Stride {
        /// The stride that was asked for, in bytes.
        stride: usize,
        /// The bytes of a row.
        row_bytes: usize,
    },
    /// More rows than ids can name.
    #[error("{count} rows are more than ids can name ({COUNT_END} at most)")]
    Count {
        /// The number of rows that was asked for.
        count: u32,
    },
    /// The bytes end before the last row does.
    #[error("{count} rows need {needed} bytes, but there are {have}")]
    Bytes {
        /// The number of rows that was asked for.
        count: u32,
        /// Bytes up to the end of the last row, saturated.
        needed: usize,
        /// Bytes that there are.
        have: usize,
    },
}

/// `count` rows of one dimension and format, `stride` bytes apart, all inside one run of bytes.
///
/// No alignment is asked for, though rows that start on cache lines are read fastest. Rows that no id names may be written
/// meanwhile, as the slots of a cache are: no reference to the bytes is made.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    window: ReadWindow<'a>,
    stride: usize,
    count: u32,
    dim: usize,
    format: RowFormat,
}

impl<'a> Rows<'a> {
    /// Takes `bytes` as `count` rows of `dim` dimensions, row i at byte `i * stride`.
    ///
    /// # Errors
    /// If the dimension is none that rows can have, the stride is smaller than a row, there are more
    /// than 2^31 - 1 rows, or the last row does not lie wholly inside `bytes`.
    pub fn new(
        bytes: &'a [u8],
        stride: usize,
        count: u32,
        dim: usize,
        format: RowFormat,
    ) -> Result<Rows<'a>, RowsError> {
        Rows::over(ReadWindow::over(bytes), stride, count, dim, format)
    }

    /// The same of memory that others may write. Of a row that is written while it is pooled the values are any.
    ///
    /// # Errors
    /// As [`Rows::new`].
    pub fn over(
        window: ReadWindow<'a>,
        stride: usize,
        count: u32,
        dim: usize,
        format: RowFormat,
    ) -> Result<Rows<'a>, RowsError> {
        if !(DIM_STEP..=DIM_MAX).contains(&dim) || !dim.is_multiple_of(DIM_STEP) {
            return Err(RowsError::Dim { dim });
        }
        let row_bytes = format.row_bytes(dim);
        if stride < row_bytes {
            return Err(RowsError::Stride { stride, row_bytes });
        }
        if count >= COUNT_END {
            return Err(RowsError::Count { count });
        }
        let needed = match count.checked_sub(1) {
            None => 0,
            Some(last) => (last as usize)
                .saturating_mul(stride)
                .saturating_add(row_bytes),
        };
        if needed > window.len() {
            return Err(RowsError::Bytes {
                count,
                needed,
                have: window.len(),
            });
        }
        Ok(Rows {
            window,
            stride,
            count,
            dim,
            format,
        })
    }

    /// The bytes that the rows lie in.
    pub fn window(&self) -> ReadWindow<'a> {
        self.window
    }

    /// Bytes from one row's start to the next's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// How many rows there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Dimensions of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How a row's values are stored.
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Bytes of a row, without padding.
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.dim)
    }

    /// Copies the bytes of row `id`.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not as long as one.
    pub fn read(&self, id: u32, out: &mut [u8]) {
        assert!(id < self.count, "row {id} of {}", self.count);
        assert_eq!(out.len(), self.row_bytes(), "bytes of a row");
        self.window.read(id as usize * self.stride, out);
    }
}

impl fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("count", &self.count)
            .field("dim", &self.dim)
            .field("format", &self.format)
            .field("stride", &self.stride)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_be_rows() {
        let bytes = [0u8; 160];
        let rows =
            |stride, count, dim, format| Rows::new(&bytes, stride, count, dim, format).map(|_| ());
        for dim in [0, 2, 6, 2052, usize::MAX] {
            assert_eq!(
                rows(16, 1, dim, RowFormat::F32),
                Err(RowsError::Dim { dim })
            );
        }
        assert_eq!(
            rows(15, 1, 4, RowFormat::F32),
            Err(RowsError::Stride {
                stride: 15,
                row_bytes: 16
            })
        );
        assert_eq!(
            rows(11, 1, 4, RowFormat::Int8),
            Err(RowsError::Stride {
                stride: 11,
                row_bytes: 12
            })
        );
        assert_eq!(
            rows(16, 1 << 31, 4, RowFormat::F32),
            Err(RowsError::Count { count: 1 << 31 })
        );
        assert_eq!(
            rows(16, 11, 4, RowFormat::F32),
            Err(RowsError::Bytes {
                count: 11,
                needed: 176,
                have: 160
            })
        );
        assert_eq!(
            rows(usize::MAX, 3, 4, RowFormat::F32),
            Err(RowsError::Bytes {
                count: 3,
                needed: usize::MAX,
                have: 160
            })
        );
        assert_eq!(rows(16, 10, 4, RowFormat::F32), Ok(()));
        assert_eq!(rows(usize::MAX, 1, 4, RowFormat::F32), Ok(()));
        assert_eq!(rows(16, 0, 4, RowFormat::F32), Ok(()));
    }

    #[test]
    fn last_row_needs_no_padding() {
        let mut bytes = [0u8; 20 + 12];
        bytes[20..].fill(7);
        let rows = Rows::new(&bytes, 20, 2, 4, RowFormat::Int8).unwrap();
        let mut row = [0; 12];
        rows.read(1, &mut row);
        assert_eq!(row, [7; 12]);
    }

    #[test]
    #[should_panic(expected = "row 2 of 2")]
    fn row_outside_panics() {
        let bytes = [0u8; 32];
        let rows = Rows::new(&bytes, 16, 2, 4, RowFormat::F32).unwrap();
        rows.read(2, &mut [0; 16]);
    }
}

//! Rows of numbers from elsewhere become rows of a table.

use crate::format::RowFormat;
use crate::{TableError, Unfit};

/// Values are converted in pieces of about this many, so that memory use is bounded and a piece stays
/// in a core's cache.
const PIECE_VALUES: usize = 32 << 10;

/// Rows of f32, f16 or bf16, one behind the other.
pub(crate) trait Numbers {
    /// The numbers' type, as a row of it is stored.
    fn element(&self) -> RowFormat;

    /// Numbers in a row.
    fn dim(&self) -> usize;

    /// Reads rows from row `first` on as their bytes are.
    fn read_raw(&self, first: u64, raw: &mut [u8]) -> Result<(), TableError>;

    /// That a row can't be stored, for a value at this column.
    fn unfit(&self, row: u64, unfit: Unfit) -> TableError;

    /// Reads rows from row `first` on: as many as `values` has room for. `raw` is scratch.
    fn read(&self, first: u64, raw: &mut Vec<u8>, values: &mut [f32]) -> Result<(), TableError> {
        raw.resize(self.element().row_bytes(values.len()), 0);
        self.read_raw(first, raw)?;
        self.element().decode(raw, values);
        Ok(())
    }
}

/// That a row can be stored.
pub(crate) fn check(
    format: RowFormat,
    numbers: &impl Numbers,
    row: u64,
    values: &[f32],
) -> Result<(), TableError> {
    let outcome = format.check(values);
    outcome.map_err(|unfit| numbers.unfit(row, unfit))
}

/// Fills `out` with rows from row `first` on, encoded as `format`.
pub(crate) fn transcode(
    numbers: &impl Numbers,
    format: RowFormat,
    first: u64,
    out: &mut [u8],
) -> Result<(), TableError> {
    if numbers.element() == format {
        return same(numbers, first, out);
    }
    let dim = numbers.dim();
    let stride = format.row_bytes(dim);
    let piece_rows = (PIECE_VALUES / dim).max(1).min(out.len() / stride);
    let (mut raw, mut values) = (Vec::new(), vec![0.0; piece_rows * dim]);
    let mut row = first;
    for piece in out.chunks_mut((piece_rows * stride).max(1)) {
        let values = &mut values[..piece.len() / stride * dim];
        numbers.read(row, &mut raw, values)?;
        for (encoded, values) in piece.chunks_exact_mut(stride).zip(values.chunks_exact(dim)) {
            check(format, numbers, row, values)?;
            format.encode(values, encoded);
            row += 1;
        }
    }
    Ok(())
}

/// The same where rows are stored as they come.
fn same(numbers: &impl Numbers, first: u64, out: &mut [u8]) -> Result<(), TableError> {
    let (dim, format) = (numbers.dim(), numbers.element());
    let stride = format.row_bytes(dim);
    let piece_rows = (PIECE_VALUES / dim).max(1);
    let mut row = first;
    for piece in out.chunks_mut(piece_rows * stride) {
        numbers.read_raw(row, piece)?;
        if !is_finite(format, piece) {
            let mut values = vec![0.0; dim];
            for (row, encoded) in (row..).zip(piece.chunks_exact(stride)) {
                format.decode(encoded, &mut values);
                check(format, numbers, row, &values)?;
            }
        }
        row += (piece.len() / stride) as u64;
    }
    Ok(())
}

/// Whether all numbers of `raw` are finite: none has all bits of the exponent set.
fn is_finite(element: RowFormat, raw: &[u8]) -> bool {
    // Comparing the greatest magnitude with the least that is not finite takes no branches.
    let halves = |infinity: u16| {
        let elements = raw.chunks_exact(2);
        let bits = elements.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]) & 0x7fff);
        bits.fold(0, u16::max) < infinity
    };
    match element {
        RowFormat::F16 => halves(0x7c00),
        RowFormat::Bf16 => halves(0x7f80),
        _ => {
            let elements = raw.chunks_exact(4);
            let bits = elements.map(|bytes| {
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7fff_ffff
            });
            bits.fold(0, u32::max) < 0x7f80_0000
        }
    }
}

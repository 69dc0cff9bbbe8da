//! The one place where tables meet kernels.

use rowmill_pooling::{RowFormat, Rows};
use rowmill_table::ResidentTable;

/// The rows of a resident table as kernels take them.
pub fn rows(table: &ResidentTable) -> Rows<'_> {
    Rows::new(
        table.bytes(),
        table.stride(),
        table.row_count(),
        table.dim(),
        row_format(table.format()),
    )
    .expect("a resident table has consistent shapes")
}

/// Rows of a table that lie elsewhere, each `stride` bytes from the one before.
pub(crate) fn rows_in<'b>(
    bytes: &'b [u8],
    stride: usize,
    count: u32,
    table: &ResidentTable,
) -> Rows<'b> {
    Rows::new(
        bytes,
        stride,
        count,
        table.dim(),
        row_format(table.format()),
    )
    .expect("there is room for the longest row at each place")
}

fn row_format(format: rowmill_table::RowFormat) -> RowFormat {
    use rowmill_table::RowFormat as Stored;
    match format {
        Stored::F32 => RowFormat::F32,
        Stored::F16 => RowFormat::F16,
        Stored::Bf16 => RowFormat::Bf16,
        Stored::Int8 => RowFormat::Int8,
        Stored::Int8F16 => RowFormat::Int8F16,
        Stored::Int4 => RowFormat::Int4,
    }
}

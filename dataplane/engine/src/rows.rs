//! The one place where tables meet kernels.

use rowmill_arena::ReadWindow;
use rowmill_pooling::{RowFormat, Rows};
use rowmill_table::ResidentTable;

/// The rows of a resident table as kernels take them, with those that may stand in for others.
pub fn rows(table: &ResidentTable) -> Rows<'_> {
    let format = row_format(table.format());
    let (stride, numbers) = (table.stride(), table.numbers());
    Rows::over(table.window(), stride, numbers, table.dim(), format)
        .expect("a resident table has consistent shapes")
}

/// Rows of a table that lie elsewhere: in `count` places, each `stride` bytes from the one before.
pub(crate) fn rows_in<'b>(
    (window, stride, count): (ReadWindow<'b>, usize, u32),
    table: &ResidentTable,
) -> Rows<'b> {
    let format = row_format(table.format());
    let rows = Rows::over(window, stride, count, table.dim(), format);
    rows.expect("there is room for a row at each place")
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

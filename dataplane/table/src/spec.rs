//! What a table is asked to be.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::TableError;
use crate::format::RowFormat;

/// Most rows of a table, the one for missing ids included: row numbers stay below 2^31, so that signed
/// and unsigned clients agree.
pub const MAX_ROWS: u64 = (1 << 31) - 1;
/// Most tables of a generation. DLRM-v2 has 26, the largest published models have some hundreds; a
/// table costs a file and one open descriptor while it is read, and 4096 fit every usual limit of those.
pub const MAX_TABLES: usize = 4096;
/// Smallest and largest number of dimensions; all multiples of [`DIM_STEP`] between are allowed.
pub(crate) const DIMS: std::ops::RangeInclusive<usize> = 4..=2048;
/// Rows are made of groups of four dimensions, which kernels take at a time at the least.
pub(crate) const DIM_STEP: usize = 4;
/// Longest name of a table in bytes, so that a name has its place in the header of a file.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// What is given for an id that a hashed table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    /// The request is refused.
    Error,
    /// A row of zeros.
    Zero,
    /// A row that was given when the table was made.
    Default,
}

impl Missing {
    /// The number that stands for it in file headers.
    pub(crate) fn code(self) -> u32 {
        match self {
            Missing::Error => 0,
            Missing::Zero => 1,
            Missing::Default => 2,
        }
    }

    pub(crate) const ALL: [Missing; 3] = [Missing::Error, Missing::Zero, Missing::Default];
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Missing::Error => "error",
            Missing::Zero => "zero",
            Missing::Default => "default",
        })
    }
}

impl FromStr for Missing {
    type Err = String;

    fn from_str(text: &str) -> Result<Missing, String> {
        let found = Missing::ALL.into_iter().find(|one| one.to_string() == text);
        found.ok_or_else(|| {
            format!("a missing id can be answered with `error`, `zero` or `default`, not `{text}`")
        })
    }
}

/// How ids lead to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// An id is a row number.
    Dense,
    /// Ids are any u64, each row has one, and an index finds it.
    Hashed(Missing),
}

impl TableKind {
    /// What is given for an id that the table does not have; for dense tables an error.
    pub fn missing(self) -> Missing {
        match self {
            TableKind::Dense => Missing::Error,
            TableKind::Hashed(missing) => missing,
        }
    }

    /// Rows behind those of the ids: the one for missing ids.
    pub(crate) fn extra_rows(self) -> u64 {
        u64::from(self.missing() != Missing::Error)
    }

    /// The kind without the answer to missing ids, as manifests have it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            TableKind::Dense => "dense",
            TableKind::Hashed(_) => "hashed",
        }
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TableKind::Dense => "dense",
            TableKind::Hashed(Missing::Error) => "hashed",
            TableKind::Hashed(Missing::Zero) => "hashed-zero",
            TableKind::Hashed(Missing::Default) => "hashed-default",
        })
    }
}

impl FromStr for TableKind {
    type Err = String;

    fn from_str(text: &str) -> Result<TableKind, String> {
        let kinds = Missing::ALL
            .map(TableKind::Hashed)
            .into_iter()
            .chain([TableKind::Dense]);
        let found = kinds.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| {
            format!(
                "a table can be `dense`, `hashed`, `hashed-zero` or `hashed-default`, not `{text}`"
            )
        })
    }
}

/// What a table is to be: its name, its number of rows and dimensions, and its row format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Name, unique in its generation: 1 to 128 of `A-Z a-z 0-9 _ - .`, not starting with a dot.
    pub name: String,
    /// Rows that ids lead to; with the one for missing ids 1 to [`MAX_ROWS`].
    pub rows: u64,
    /// Dimensions, a multiple of 4 from 4 to 2048.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
    /// How ids lead to rows.
    pub kind: TableKind,
}

impl TableSpec {
    /// Bytes of a row.
    pub fn stride(&self) -> usize {
        self.format.row_bytes(self.dim)
    }

    /// Rows that are stored: `rows`, and one for missing ids where these are answered.
    pub fn stored_rows(&self) -> u64 {
        self.rows.saturating_add(self.kind.extra_rows())
    }

    /// Bytes of all stored rows. For checked specs at most 2^44.
    pub fn row_region_bytes(&self) -> u64 {
        self.stored_rows().saturating_mul(self.stride() as u64)
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`TableError::BadName`], [`TableError::BadRows`], [`TableError::BadDim`].
    pub fn check(&self) -> Result<(), TableError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let length_ok = (1..=MAX_NAME_BYTES).contains(&self.name.len());
        if !length_ok || self.name.starts_with('.') || !self.name.bytes().all(allowed) {
            return Err(TableError::BadName {
                name: self.name.clone(),
            });
        }
        if self.rows == 0 || self.stored_rows() > MAX_ROWS {
            return Err(TableError::BadRows {
                table: self.name.clone(),
                rows: self.rows,
            });
        }
        if !DIMS.contains(&self.dim) || !self.dim.is_multiple_of(DIM_STEP) {
            return Err(TableError::BadDim {
                table: self.name.clone(),
                dim: self.dim as u64,
            });
        }
        Ok(())
    }
}

impl FromStr for TableSpec {
    type Err = String;

    /// Reads `name:rows:dim:format` or `name:rows:dim:format:kind`, as the command line has it.
    fn from_str(text: &str) -> Result<TableSpec, String> {
        let usage = || {
            format!(
                "a table is name:rows:dim:format, as in users:1000000:64:int8, or \
                 name:rows:dim:format:hashed, not `{text}`"
            )
        };
        let fields: Vec<&str> = text.split(':').collect();
        let (name, rows, dim, format, kind) = match fields[..] {
            [name, rows, dim, format] => (name, rows, dim, format, "dense"),
            [name, rows, dim, format, kind] => (name, rows, dim, format, kind),
            _ => return Err(usage()),
        };
        let spec = TableSpec {
            name: name.to_owned(),
            rows: rows.parse().map_err(|_| usage())?,
            dim: dim.parse().map_err(|_| usage())?,
            format: format.parse()?,
            kind: kind.parse()?,
        };
        spec.check().map_err(|error| error.to_string())?;
        Ok(spec)
    }
}

/// Checks all tables of a generation, and that their names differ.
///
/// # Errors
/// As [`TableSpec::check`], and [`TableError::NoTables`], [`TableError::TooManyTables`],
/// [`TableError::DuplicateName`].
pub fn check_specs(specs: &[TableSpec]) -> Result<(), TableError> {
    if specs.is_empty() {
        return Err(TableError::NoTables);
    }
    if specs.len() > MAX_TABLES {
        return Err(TableError::TooManyTables { found: specs.len() });
    }
    let mut names = HashSet::new();
    for spec in specs {
        spec.check()?;
        if !names.insert(spec.name.as_str()) {
            return Err(TableError::DuplicateName {
                name: spec.name.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_specs() {
        let good = TableSpec {
            name: "a".into(),
            rows: 1,
            dim: 4,
            format: RowFormat::F32,
            kind: TableKind::Dense,
        };
        assert!(good.check().is_ok());
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a b",
            ".hidden",
            &"x".repeat(129),
            "naïve",
        ] {
            let spec = TableSpec {
                name: name.into(),
                ..good.clone()
            };
            assert!(
                matches!(spec.check(), Err(TableError::BadName { .. })),
                "{name}"
            );
        }
        for rows in [0, MAX_ROWS + 1, u64::MAX] {
            assert!(matches!(
                TableSpec {
                    rows,
                    ..good.clone()
                }
                .check(),
                Err(TableError::BadRows { .. })
            ));
        }
        for dim in [0, 2, 5, 126, 2052, usize::MAX] {
            assert!(matches!(
                TableSpec {
                    dim,
                    ..good.clone()
                }
                .check(),
                Err(TableError::BadDim { .. })
            ));
        }
        let most = TableSpec {
            rows: MAX_ROWS,
            kind: TableKind::Hashed(Missing::Error),
            ..good.clone()
        };
        assert!(most.check().is_ok());
        assert!(matches!(check_specs(&[]), Err(TableError::NoTables)));
        assert!(matches!(
            check_specs(&[good.clone(), good]),
            Err(TableError::DuplicateName { .. })
        ));
    }

    #[test]
    fn specs_of_the_command_line() {
        let spec: TableSpec = "users:1000:64:int8".parse().unwrap();
        assert_eq!(
            (spec.rows, spec.dim, spec.format, spec.stride()),
            (1000, 64, RowFormat::Int8, 72)
        );
        for format in RowFormat::ALL {
            for missing in Missing::ALL {
                let kind = TableKind::Hashed(missing);
                let spec: TableSpec = format!("a:9:4:{format}:{kind}").parse().unwrap();
                assert_eq!((spec.format, spec.kind), (format, kind));
                assert_eq!(spec.stored_rows(), 9 + u64::from(missing != Missing::Error));
                assert_eq!(missing.to_string().parse(), Ok(missing));
            }
        }
        let spec: TableSpec = "a:9:4:int4:dense".parse().unwrap();
        assert_eq!((spec.kind, spec.stored_rows()), (TableKind::Dense, 9));
        for text in [
            "users",
            "users:1000:64",
            "users:x:64:f32",
            "users:1:64:f64",
            "users:1:63:f32",
            "a:1:4:f32:5",
            "a:1:4:f32:hashed:zero",
            "a:1:4:f32:",
            // The row for missing ids is one too many.
            "a:2147483647:4:f32:hashed-zero",
        ] {
            assert!(text.parse::<TableSpec>().is_err(), "{text}");
        }
    }
}

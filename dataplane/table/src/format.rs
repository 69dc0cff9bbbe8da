//! Row formats.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the values of a row are stored. All numbers are little-endian; the formats with codes are
/// FBGEMM's fused row-wise ones, and a value is `fma(scale, code, bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowFormat {
    /// `dim` f32.
    F32,
    /// `dim` IEEE 754 binary16.
    F16,
    /// `dim` bfloat16.
    Bf16,
    /// `dim` codes of one byte, then scale and bias as f32.
    Int8,
    /// `dim` codes of one byte, then scale and bias as f16.
    #[serde(rename = "int8-f16")]
    Int8F16,
    /// `dim` codes of four bits, the even one of two in the low half of a byte, then scale and bias as
    /// f16.
    Int4,
}

impl RowFormat {
    /// All of them, in the order of their codes.
    pub const ALL: [RowFormat; 6] = [
        RowFormat::F32,
        RowFormat::Int8,
        RowFormat::F16,
        RowFormat::Bf16,
        RowFormat::Int8F16,
        RowFormat::Int4,
    ];

    /// Bytes of a row of `dim` dimensions; at most 8192.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            RowFormat::F32 => dim * 4,
            RowFormat::F16 | RowFormat::Bf16 => dim * 2,
            RowFormat::Int8 => dim + 8,
            RowFormat::Int8F16 => dim + 4,
            RowFormat::Int4 => dim / 2 + 4,
        }
    }

    /// The number that stands for the format in file headers.
    pub(crate) fn code(self) -> u32 {
        match self {
            RowFormat::F32 => 1,
            RowFormat::Int8 => 2,
            RowFormat::F16 => 3,
            RowFormat::Bf16 => 4,
            RowFormat::Int8F16 => 5,
            RowFormat::Int4 => 6,
        }
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

impl FromStr for RowFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<RowFormat, String> {
        let found = RowFormat::ALL
            .into_iter()
            .find(|format| format.to_string() == text);
        found.ok_or_else(|| {
            format!(
                "a row format can be `f32`, `f16`, `bf16`, `int8`, `int8-f16` or `int4`, not `{text}`"
            )
        })
    }
}

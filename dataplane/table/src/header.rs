//! The first 4096 bytes of a table file.

use crate::format::RowFormat;
use crate::spec::{MAX_NAME_BYTES, Missing, TableKind, TableSpec};

/// Bytes of the header; rows start behind it.
pub const HEADER_BYTES: usize = 4096;
/// The version of table files.
pub(crate) const FILE_VERSION: u32 = 3;

const MAGIC: &[u8; 8] = b"ROWMILLT";
/// Where each field lies, little-endian; the rest is zero.
const VERSION_AT: usize = 8;
const FORMAT_AT: usize = 12;
const ROWS_AT: usize = 16;
const DIM_AT: usize = 24;
const STRIDE_AT: usize = 28;
const KIND_AT: usize = 32;
const MISSING_AT: usize = 36;
const NAME_LEN_AT: usize = 40;
const NAME_AT: usize = 44;
const CRC_AT: usize = HEADER_BYTES - 4;
/// What stands for the kinds of tables.
const DENSE: u32 = 0;
const HASHED: u32 = 1;
const _: () = assert!(NAME_AT + MAX_NAME_BYTES <= CRC_AT);

/// The header of a table file, as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the table is.
    pub spec: TableSpec,
}

impl Header {
    /// The bytes at the start of the file.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let spec = &self.spec;
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(VERSION_AT, &FILE_VERSION.to_le_bytes());
        put(FORMAT_AT, &spec.format.code().to_le_bytes());
        put(ROWS_AT, &spec.rows.to_le_bytes());
        put(DIM_AT, &(spec.dim as u32).to_le_bytes());
        put(STRIDE_AT, &(spec.stride() as u32).to_le_bytes());
        let kind = match spec.kind {
            TableKind::Dense => DENSE,
            TableKind::Hashed(_) => HASHED,
        };
        put(KIND_AT, &kind.to_le_bytes());
        put(MISSING_AT, &spec.kind.missing().code().to_le_bytes());
        put(NAME_LEN_AT, &(spec.name.len() as u32).to_le_bytes());
        put(NAME_AT, spec.name.as_bytes());
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Reads and checks a header. Never panics, whatever the bytes.
///
/// # Errors
/// A phrase that continues "its header ...".
pub fn parse_header(bytes: &[u8]) -> Result<Header, String> {
    let bytes: &[u8; HEADER_BYTES] = bytes
        .try_into()
        .map_err(|_| format!("has {} bytes instead of {HEADER_BYTES}", bytes.len()))?;
    if &bytes[..8] != MAGIC {
        return Err("does not start with ROWMILLT, so it is no table file".into());
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    if word(CRC_AT) != crc32fast::hash(&bytes[..CRC_AT]) {
        return Err("does not match its checksum".into());
    }
    if word(VERSION_AT) != FILE_VERSION {
        return Err(format!(
            "has version {} and this program reads {FILE_VERSION}",
            word(VERSION_AT)
        ));
    }
    let format = RowFormat::ALL
        .into_iter()
        .find(|format| format.code() == word(FORMAT_AT))
        .ok_or_else(|| format!("has the unknown row format {}", word(FORMAT_AT)))?;
    let missing = Missing::ALL
        .into_iter()
        .find(|missing| missing.code() == word(MISSING_AT))
        .ok_or_else(|| format!("has the unknown answer {} to missing ids", word(MISSING_AT)))?;
    let kind = match (word(KIND_AT), missing) {
        (DENSE, Missing::Error) => TableKind::Dense,
        (DENSE, _) => return Err("says that a dense table answers missing ids".into()),
        (HASHED, missing) => TableKind::Hashed(missing),
        (other, _) => return Err(format!("has the unknown kind {other}")),
    };
    let name_len = word(NAME_LEN_AT) as usize;
    if name_len > MAX_NAME_BYTES {
        return Err(format!("has a name of {name_len} bytes"));
    }
    let (name, rest) = bytes[NAME_AT..CRC_AT].split_at(name_len);
    if rest.iter().any(|&byte| byte != 0) {
        return Err("has bytes that must be zero and are not".into());
    }
    let name = std::str::from_utf8(name)
        .map_err(|_| "has a name that is no text".to_owned())?
        .to_owned();
    let rows = u64::from_le_bytes(bytes[ROWS_AT..ROWS_AT + 8].try_into().expect("8 bytes"));
    let spec = TableSpec {
        name,
        rows,
        dim: word(DIM_AT) as usize,
        format,
        kind,
    };
    spec.check()
        .map_err(|error| format!("is impossible: {error}"))?;
    if word(STRIDE_AT) as usize != spec.stride() {
        return Err(format!(
            "says {} bytes a row instead of {}",
            word(STRIDE_AT),
            spec.stride()
        ));
    }
    Ok(Header { spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            spec: TableSpec {
                name: "cat_0".into(),
                rows: 40_000_000,
                dim: 128,
                format: RowFormat::Int8,
                kind: TableKind::Hashed(Missing::Zero),
            },
        }
    }

    #[test]
    fn read_back() {
        assert_eq!(parse_header(&header().to_bytes()), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = header().to_bytes();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_header(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn impossible_headers_with_right_checksums() {
        let put = |at: usize, field: &[u8]| {
            let mut bytes = header().to_bytes();
            bytes[at..at + field.len()].copy_from_slice(field);
            let crc = crc32fast::hash(&bytes[..CRC_AT]);
            bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            parse_header(&bytes).unwrap_err()
        };
        assert!(put(VERSION_AT, &[2]).contains("version 2"));
        assert!(put(KIND_AT, &[2]).contains("unknown kind 2"));
        assert!(put(KIND_AT, &[0]).contains("dense table answers"));
        assert!(put(MISSING_AT, &[3]).contains("unknown answer 3"));
        assert!(put(FORMAT_AT, &[9]).contains("row format 9"));
        assert!(put(ROWS_AT, &[0; 8]).contains("0 rows"));
        assert!(put(ROWS_AT, &[255; 8]).contains("rows are not possible"));
        assert!(put(DIM_AT, &[127]).contains("127 dimensions"));
        assert!(put(STRIDE_AT, &[1, 0]).contains("bytes a row"));
        assert!(put(NAME_LEN_AT, &[255; 4]).contains("name of"));
        assert!(put(NAME_LEN_AT, &[0]).contains("must be zero"));
        assert!(put(NAME_AT, &[255]).contains("no text"));
        assert!(put(NAME_AT, b"../").contains("can't name a table"));
        assert!(put(3000, &[1]).contains("must be zero"));
        assert!(parse_header(&[]).unwrap_err().contains("0 bytes"));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let _ = parse_header(&bytes);
        }
    }
}

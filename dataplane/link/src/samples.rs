//! Sampled lookups as bytes.
//!
//! All numbers are little-endian. A body is a head and the tables' parts, one behind the other:
//!
//! | bytes | head |
//! |---|---|
//! | 0 | `rowsmpl1` |
//! | 8 | the dataplane's instance, 16 bytes |
//! | 24 | number of this body, u64, from 1 on: one that is not the next tells that some are lost |
//! | 32 | how many parts follow, u32, at most [`TABLES_MAX`] |
//! | 36 | 0, u32 |
//!
//! | bytes | a part |
//! |---|---|
//! | 0 | lookups of the table since its last part, sampled or not, u64 |
//! | 8 | sampled lookups that were dropped, since nobody took them in time, u64 |
//! | 16 | the threshold that was in force, u32 |
//! | 20 | how many samples follow, u32 |
//! | 24 | length of the table's name, u16, and the name, of UTF-8, at most 255 bytes |
//! | | the samples, 8 bytes each: row u32, place u32; in the order in which they were looked up |

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The media type of a body.
pub const MEDIA_TYPE: &str = "application/x-rowmill-samples";
/// Longest body: 32,000 samples or so. A dataplane that has more sends several.
pub const BODY_MAX: usize = 256 << 10;
/// Most parts of a body.
pub const TABLES_MAX: u32 = 4096;

const MAGIC: &[u8; 8] = b"rowsmpl1";
const HEAD: usize = 40;
const SAMPLE: usize = 8;
const NAME_MAX: usize = 255;

/// A row that was looked up and is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Its number.
    pub row: u32,
    /// Where the dataplane's hash puts it, of 2^32, evenly. It is less than the threshold; those of rows with a place below a lower one
    /// are a rarer sample of the same kind. It stays as long as the dataplane's instance.
    pub place: u32,
}

/// Sampled lookups of a table, since the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSamples {
    /// Its name.
    pub table: String,
    /// All of its lookups, sampled or not.
    pub lookups: u64,
    /// Sampled lookups that are missing in between.
    pub dropped: u64,
    /// The threshold that was in force.
    pub threshold: u32,
    /// In the order in which they were looked up, as far as there is one between workers.
    pub samples: Vec<Sample>,
}

/// Sampled lookups of a dataplane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// The dataplane's [`instance`](crate::Report::instance).
    pub instance: u128,
    /// Number of this body.
    pub number: u64,
    /// One for each table of which there is something to tell.
    pub tables: Vec<TableSamples>,
}

/// Why a body is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SamplesError {
    /// It does not begin like one, or is of another version.
    #[error("it does not begin with `rowsmpl1`: it is none, or another version's")]
    Magic,
    /// It ends too early, or something follows.
    #[error("its length is not what it says of itself")]
    Length,
    /// It is too long, or has too many parts.
    #[error("it is longer than {BODY_MAX} bytes, or has more than {TABLES_MAX} parts")]
    TooLarge,
    /// A table's name is none.
    #[error("a table's name is empty, too long, or not UTF-8")]
    Name,
    /// A sample's place is not below its part's threshold.
    #[error("a sample is not below the threshold that it was drawn with")]
    Place,
}

/// What was read of a body.
pub type Decoded = Result<Samples, SamplesError>;

impl Samples {
    /// Bytes that [`encode`](Self::encode) will make of it.
    pub fn encoded_len(&self) -> usize {
        let part = |table: &TableSamples| 26 + table.table.len() + SAMPLE * table.samples.len();
        HEAD + self.tables.iter().map(part).sum::<usize>()
    }

    /// As bytes. Nothing is checked: a body of too much is refused by whoever reads it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.instance.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&(self.tables.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for table in &self.tables {
            bytes.extend_from_slice(&table.lookups.to_le_bytes());
            bytes.extend_from_slice(&table.dropped.to_le_bytes());
            bytes.extend_from_slice(&table.threshold.to_le_bytes());
            bytes.extend_from_slice(&(table.samples.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&(table.table.len() as u16).to_le_bytes());
            bytes.extend_from_slice(table.table.as_bytes());
            for sample in &table.samples {
                bytes.extend_from_slice(&sample.row.to_le_bytes());
                bytes.extend_from_slice(&sample.place.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`SamplesError`] where it is none.
    pub fn decode(bytes: &[u8]) -> Decoded {
        if bytes.len() > BODY_MAX {
            return Err(SamplesError::TooLarge);
        }
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len()) != Ok(MAGIC) {
            return Err(SamplesError::Magic);
        }
        let instance = u128::from_le_bytes(reader.array()?);
        let number = u64::from_le_bytes(reader.array()?);
        let (parts, zero) = (reader.u32()?, reader.u32()?);
        if zero != 0 {
            return Err(SamplesError::Magic);
        }
        if parts > TABLES_MAX {
            return Err(SamplesError::TooLarge);
        }
        let tables = (0..parts).map(|_| reader.part());
        let tables = tables.collect::<Result<_, _>>()?;
        if !reader.0.is_empty() {
            return Err(SamplesError::Length);
        }
        Ok(Samples {
            instance,
            number,
            tables,
        })
    }
}

/// What is still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], SamplesError> {
        let (part, rest) = self.0.split_at_checked(len).ok_or(SamplesError::Length)?;
        self.0 = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SamplesError> {
        Ok(self.take(N)?.try_into().expect("as many as were asked for"))
    }

    fn u32(&mut self) -> Result<u32, SamplesError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn part(&mut self) -> Result<TableSamples, SamplesError> {
        let lookups = u64::from_le_bytes(self.array()?);
        let dropped = u64::from_le_bytes(self.array()?);
        let (threshold, count) = (self.u32()?, self.u32()?);
        let name = usize::from(u16::from_le_bytes(self.array()?));
        if !(1..=NAME_MAX).contains(&name) {
            return Err(SamplesError::Name);
        }
        let name = str::from_utf8(self.take(name)?).map_err(|_| SamplesError::Name)?;
        // What is claimed is there before memory is taken for it.
        let len = SAMPLE.checked_mul(count as usize);
        let samples = self.take(len.ok_or(SamplesError::Length)?)?;
        let samples = samples.chunks_exact(SAMPLE).map(|sample| {
            let mut sample = Reader(sample);
            let (row, place) = (sample.u32()?, sample.u32()?);
            if place >= threshold {
                return Err(SamplesError::Place);
            }
            Ok(Sample { row, place })
        });
        Ok(TableSamples {
            table: name.into(),
            lookups,
            dropped,
            threshold,
            samples: samples.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> Samples {
        let sample = |row| Sample {
            row,
            place: row * 7,
        };
        Samples {
            instance: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            number: 3,
            tables: vec![
                TableSamples {
                    table: "cat_0".into(),
                    lookups: 5000,
                    dropped: 1,
                    threshold: 100,
                    samples: [3, 1, 3].map(sample).into(),
                },
                TableSamples {
                    table: "é".into(),
                    ..TableSamples::default()
                },
            ],
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_text() {
        let bytes = some().encode();
        let mut expected = b"rowsmpl1".to_vec();
        expected.extend((1..=16).rev());
        expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0x88, 0x13, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([100, 0, 0, 0, 3, 0, 0, 0, 5, 0]);
        expected.extend(b"cat_0");
        for (row, place) in [(3, 21), (1, 7), (3, 21)] {
            expected.extend([row, 0, 0, 0, place, 0, 0, 0]);
        }
        expected.extend([0; 24]);
        expected.extend([2, 0, 0xc3, 0xa9]);
        assert_eq!(bytes, expected);
        assert_eq!(bytes.len(), some().encoded_len());
        assert_eq!(Samples::decode(&bytes), Ok(some()));
    }

    #[test]
    fn what_is_none_is_refused() {
        let bytes = some().encode();
        for len in 0..bytes.len() {
            assert!(Samples::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Samples::decode(&bytes)
        };
        assert_eq!(with(0, b'x'), Err(SamplesError::Magic));
        assert_eq!(with(36, 1), Err(SamplesError::Magic));
        assert_eq!(with(33, 0x20), Err(SamplesError::TooLarge));
        assert_eq!(with(32, 1), Err(SamplesError::Length));
        assert_eq!(with(64, 0), Err(SamplesError::Name), "an empty name");
        assert_eq!(with(66, 0xff), Err(SamplesError::Name), "no UTF-8");
        assert_eq!(with(56, 21), Err(SamplesError::Place));
        assert_eq!(with(63, 0xff), Err(SamplesError::Length), "4 G samples");
        let long = vec![0; BODY_MAX + 1];
        assert_eq!(Samples::decode(&long), Err(SamplesError::TooLarge));
    }

    proptest! {
        #[test]
        fn what_is_read_was_written(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..40) {
            let mut whole = some().encode();
            whole.truncate(at.max(8));
            whole.extend(bytes);
            if let Ok(samples) = Samples::decode(&whole) {
                prop_assert_eq!(samples.encode(), whole);
            }
        }
    }
}

//! Tables from safetensors files: the header's parser, and tensors of it as rows and keys.
//!
//! A file is 8 bytes with the length of the header, the header in JSON, and the tensors' bytes, which
//! lie one behind the other without gaps. The parser is our own: the format's crate wants the whole file
//! in one slice, and takes the last of two tensors of one name.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::TableError;
use crate::format::RowFormat;
use crate::import_file::{Keys, SourceFile, Values};

/// Longest header that is read: 16 MiB hold 100 000 tensors. The format's own limit is 100 MB.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 16 << 20;
/// Longest header of the format: a longer one is of something else.
const FORMAT_HEADER_BYTES: u64 = 100_000_000;
/// The name in the header that is no tensor.
const METADATA: &str = "__metadata__";
/// Most characters of the JSON parser's errors that are shown.
const MAX_ERROR_CHARS: usize = 300;
/// Most tensors that an error names.
const MAX_LISTED: usize = 8;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(non_camel_case_types, missing_docs)]
pub enum TensorType {
    Bool,
    F4,
    F6_E2M3,
    F6_E3M2,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    U8,
    I8,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    C64,
}

impl TensorType {
    /// Bits of an element.
    fn bits(self) -> u64 {
        use TensorType as T;
        match self {
            T::F4 => 4,
            T::F6_E2M3 | T::F6_E3M2 => 6,
            T::Bool | T::F8_E4M3 | T::F8_E5M2 | T::F8_E8M0 | T::U8 | T::I8 => 8,
            T::U16 | T::I16 | T::F16 | T::Bf16 => 16,
            T::U32 | T::I32 | T::F32 => 32,
            T::U64 | T::I64 | T::F64 | T::C64 => 64,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_uppercase())
    }
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, any text.
    pub name: String,
    /// The type of its elements.
    pub dtype: TensorType,
    /// Elements in each dimension.
    pub shape: Vec<u64>,
    /// Its first byte, counted from the first byte behind the header.
    pub begin: u64,
    /// The byte after its last one.
    pub end: u64,
}

/// An entry of the header. Fields that are not known could change what the others mean.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: TensorType,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Parses the JSON of a header in front of `data_bytes` bytes of tensors, which the tensors must cover
/// without gaps. They come back in the order of their bytes.
///
/// # Errors
/// What is wrong, in words.
pub fn parse_safetensors_header(json: &[u8], data_bytes: u64) -> Result<Vec<Tensor>, String> {
    if json.first() != Some(&b'{') {
        return Err("its header is no JSON object".into());
    }
    let text = json.trim_ascii_end();
    if text.ends_with(&[0]) {
        return Err(
            "its header is filled up with NUL bytes, where the format has spaces; write it again with the \
             safetensors library"
                .into(),
        );
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut tensors = Header
        .deserialize(&mut reader)
        .and_then(|tensors| reader.end().map(|()| tensors))
        .map_err(|error| {
            // The error quotes what it found, at any length and with any character.
            let text = error.to_string().replace(char::is_control, "?");
            let short: String = text.chars().take(MAX_ERROR_CHARS).collect();
            format!("its header can't be understood: {short}")
        })?;
    // Tensors without elements lie before the one that begins where they do.
    tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
    tensors.iter().try_for_each(Tensor::check)?;
    let mut covered = 0;
    for Tensor {
        name, begin, end, ..
    } in &tensors
    {
        let name = shown(name);
        if *begin < covered {
            return Err(format!(
                "its tensor {name} begins at byte {begin}, before the one in front of it ends at {covered}; \
                 tensors may not overlap"
            ));
        }
        if *begin > covered {
            return Err(format!(
                "no tensor has its bytes {covered} to {begin}, in front of tensor {name}; there may be no gaps"
            ));
        }
        covered = *end;
    }
    if covered != data_bytes {
        return Err(format!(
            "its header promises {covered} bytes of tensors and it has {data_bytes}; it was not written or \
             copied whole"
        ));
    }
    Ok(tensors)
}

/// Reads the map of a header.
struct Header;

impl<'de> DeserializeSeed<'de> for Header {
    type Value = Vec<Tensor>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Vec<Tensor>, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Header {
    type Value = Vec<Tensor>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by their names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Tensor>, A::Error> {
        let (mut tensors, mut names) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                let name = shown(&name);
                return Err(A::Error::custom(format!("two entries are named {name}")));
            }
            if name == METADATA {
                map.next_value::<BTreeMap<String, String>>()?;
                continue;
            }
            let Entry {
                dtype,
                shape,
                data_offsets: (begin, end),
            } = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {}: {error}", shown(&name))))?;
            let tensor = Tensor {
                name,
                dtype,
                shape,
                begin,
                end,
            };
            tensors.push(tensor);
        }
        Ok(tensors)
    }
}

impl Tensor {
    /// Checks that the bytes are those of the shape.
    fn check(&self) -> Result<(), String> {
        let Tensor {
            dtype,
            shape,
            begin,
            end,
            ..
        } = self;
        let name = shown(&self.name);
        let bits = shape
            .iter()
            .try_fold(dtype.bits(), |bits, &size| bits.checked_mul(size))
            .filter(|bits| bits.is_multiple_of(8))
            .ok_or_else(|| {
                let shape = self.describe();
                format!("its tensor {shape} has a shape that no {dtype} tensor has")
            })?;
        let found = end.checked_sub(*begin).ok_or_else(|| {
            format!("its tensor {name} ends at byte {end}, before it begins at {begin}")
        })?;
        if found != bits / 8 {
            let promised = bits / 8;
            return Err(format!(
                "its tensor {} has {found} bytes, and its type and shape promise {promised}",
                self.describe()
            ));
        }
        Ok(())
    }
}

/// A name as errors show it: quoted, and short.
fn shown(name: &str) -> String {
    const LONGEST: usize = 80;
    let short: String = name.chars().take(LONGEST).collect();
    let dots = if short.len() < name.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}

/// A safetensors file whose header is checked.
#[derive(Clone, Debug)]
pub struct Safetensors {
    file: Arc<SourceFile>,
    /// The byte behind the header.
    data_at: u64,
    tensors: Arc<[Tensor]>,
}

impl Safetensors {
    /// Opens a file and reads its header; memory use is bounded, whatever the file says.
    ///
    /// # Errors
    /// [`TableError::BadSource`] for anything but a whole safetensors file, [`TableError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Safetensors, TableError> {
        let file = SourceFile::open(path.as_ref())?;
        let mut length = [0; 8];
        if file.bytes < 8 {
            return Err(file.bad(format!(
                "is no safetensors file, or was cut: it has {} bytes",
                file.bytes
            )));
        }
        file.read_at(&mut length, 0)?;
        let length = u64::from_le_bytes(length);
        if length > FORMAT_HEADER_BYTES {
            return Err(file.bad(format!(
                "is no safetensors file: it promises a header of {length} bytes, and the format has \
                 {FORMAT_HEADER_BYTES} at most"
            )));
        }
        let data_at = 8 + length;
        let Some(data_bytes) = file.bytes.checked_sub(data_at) else {
            return Err(file.bad(format!(
                "promises a header up to byte {data_at} and has {} bytes; it is no safetensors file, or was \
                 not written or copied whole",
                file.bytes
            )));
        };
        if length > MAX_SAFETENSORS_HEADER_BYTES {
            return Err(file.bad(format!(
                "has a header of {length} bytes, and {MAX_SAFETENSORS_HEADER_BYTES} are the most that is read; \
                 write the tensors that are tables to a file of their own"
            )));
        }
        let mut json = vec![0; length as usize];
        file.read_at(&mut json, 8)?;
        let tensors =
            parse_safetensors_header(&json, data_bytes).map_err(|reason| file.bad(reason))?;
        Ok(Safetensors {
            file,
            data_at,
            tensors: tensors.into(),
        })
    }

    /// What it holds, in the order of the bytes.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`TableError::BadSource`], which says what there is instead.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, TableError> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| {
            let (name, listing) = (shown(name), self.listing());
            self.file
                .bad(format!("has no tensor {name}; it has {listing}"))
        })
    }

    /// Names, types and shapes of the first few tensors, in a line.
    pub fn listing(&self) -> String {
        let some: Vec<String> = self
            .tensors
            .iter()
            .take(MAX_LISTED)
            .map(Tensor::describe)
            .collect();
        match self.tensors.len().saturating_sub(MAX_LISTED) {
            0 if some.is_empty() => "no tensors".into(),
            0 => some.join(", "),
            more => format!("{} and {more} more", some.join(", ")),
        }
    }

    /// The tensor `name` as rows.
    pub(crate) fn values(&self, name: &str) -> Result<Values, TableError> {
        let tensor = self.tensor(name)?;
        let shown = tensor.describe();
        let element = match tensor.dtype {
            TensorType::F32 => RowFormat::F32,
            TensorType::F16 => RowFormat::F16,
            TensorType::Bf16 => RowFormat::Bf16,
            _ => {
                return Err(self.file.bad(format!(
                    "its tensor {shown} can't be rows; they are F32, F16 or BF16, so convert it"
                )));
            }
        };
        let [rows, dim] = tensor.shape[..] else {
            return Err(self.file.bad(format!(
                "its tensor {shown} can't be rows; they have two dimensions, rows by columns, so reshape it"
            )));
        };
        Ok(Values {
            file: self.file.clone(),
            at: self.data_at + tensor.begin,
            rows,
            dim,
            element,
        })
    }

    /// The tensor `name` as keys.
    pub(crate) fn keys(&self, name: &str) -> Result<Keys, TableError> {
        let tensor = self.tensor(name)?;
        let (TensorType::I64 | TensorType::U64, [count] | [count, 1]) =
            (tensor.dtype, &tensor.shape[..])
        else {
            let shown = tensor.describe();
            return Err(self.file.bad(format!(
                "its tensor {shown} can't be ids; they are I64 or U64 with one dimension, so convert it"
            )));
        };
        Ok(Keys {
            file: self.file.clone(),
            at: self.data_at + tensor.begin,
            count: *count,
        })
    }
}

impl Tensor {
    /// Name, type and shape.
    fn describe(&self) -> String {
        const LONGEST: usize = 6;
        let shape: Vec<String> = self
            .shape
            .iter()
            .take(LONGEST)
            .map(u64::to_string)
            .collect();
        let dots = if self.shape.len() > LONGEST {
            "..."
        } else {
            ""
        };
        format!(
            "{} ({} [{}{dots}])",
            shown(&self.name),
            self.dtype,
            shape.join(", ")
        )
    }
}

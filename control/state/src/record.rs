//! Records as bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that is kept under a key. What is read back has been written by this version of the kind or an earlier one.
pub trait Record: Serialize + DeserializeOwned {
    /// What records of the kind are called in the file: letters, digits and `-`.
    const KIND: &'static str;

    /// The version of what [`Serialize`] writes. To be raised when older ones can't be read as they are.
    const VERSION: u32;

    /// Makes what an older version wrote that of the version after it, or `None` where there is no such version.
    fn upgrade(_version: u32, _value: Value) -> Option<Value> {
        None
    }
}

/// Why a record can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It is none of the kind.
    #[error("it can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A later version of the program wrote it.
    #[error(
        "it has version {found}, and this program knows versions up to {known}: start the newer program, or bring back a file from before it"
    )]
    Newer {
        /// Its version.
        found: u32,
        /// The kind's.
        known: u32,
    },
    /// There is no way from its version to the present one.
    #[error("it has version {0}, from which there is no way to the present one")]
    Older(u32),
}

/// A record in the file.
#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    record: T,
}

/// A record as it is written.
pub(crate) fn encode<R: Record>(record: &R) -> Vec<u8> {
    let envelope = Envelope {
        version: R::VERSION,
        record,
    };
    serde_json::to_vec(&envelope).expect("records have keys of text and can be written to memory")
}

/// What was written by [`encode`], now or long ago.
pub(crate) fn decode<R: Record>(bytes: &[u8]) -> Result<R, Fault> {
    let Envelope {
        version: found,
        mut record,
    } = serde_json::from_slice::<Envelope<Value>>(bytes)?;
    if found > R::VERSION {
        let known = R::VERSION;
        return Err(Fault::Newer { found, known });
    }
    for version in found..R::VERSION {
        record = R::upgrade(version, record).ok_or(Fault::Older(version))?;
    }
    Ok(serde_json::from_value(record)?)
}

/// The key in the file.
pub(crate) fn key_of<R: Record>(key: &str) -> Vec<u8> {
    let mut bytes = R::KIND.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Share {
        slots: u64,
        why: String,
    }

    impl Record for Share {
        const KIND: &'static str = "share";
        const VERSION: u32 = 3;

        fn upgrade(version: u32, mut value: Value) -> Option<Value> {
            let object = value.as_object_mut()?;
            match version {
                1 => {
                    let rows = object.remove("rows")?;
                    object.insert("slots".into(), rows);
                }
                2 => _ = object.insert("why".into(), "not known".into()),
                _ => return None,
            }
            Some(value)
        }
    }

    #[test]
    fn older_versions_are_read() {
        let share = Share {
            slots: 5,
            why: "not known".into(),
        };
        for old in [
            r#"{"version":1,"record":{"rows":5}}"#,
            r#"{"version":2,"record":{"slots":5}}"#,
        ] {
            assert_eq!(decode::<Share>(old.as_bytes()).unwrap(), share, "{old}");
        }
        assert_eq!(decode::<Share>(&encode(&share)).unwrap(), share);
    }

    #[test]
    fn what_is_none_is_refused_with_what_to_do() {
        let error = |text: &str| decode::<Share>(text.as_bytes()).unwrap_err().to_string();
        let newer = error(r#"{"version":4,"record":{}}"#);
        assert!(
            newer.contains("versions up to 3: start the newer"),
            "{newer}"
        );
        assert!(error(r#"{"version":0,"record":{}}"#).contains("no way"));
        assert!(error(r#"{"version":1,"record":{}}"#).contains("no way"));
        assert!(error(r#"{"version":3,"record":{"slots":-1,"why":""}}"#).contains("invalid value"));
        assert!(error("{").contains("EOF"));
        assert!(error("").contains("EOF"));
    }
}

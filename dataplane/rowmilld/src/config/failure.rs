//! `on_failure` of a table: written as a word, or as a list of what is done first and what then.

use core::fmt;

use rowmill_cache::OnFailure;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// What is done about a row that can't be read from the model's own files, or not in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Whether it is read from the next tier.
    pub next_tier: bool,
    /// What becomes of what wants it, if it is not to be had there either.
    pub then: OnFailure,
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Failure, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Failure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "`\"error\"`, `\"default-row\"`, or what is done when the next tier fails too: `[\"next-tier\", \"error\"]` or \
                     `[\"next-tier\", \"default-row\"]`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Failure, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Str(text), &self);
                let then = end(text).ok_or_else(unexpected)?;
                Ok(Failure {
                    next_tier: false,
                    then,
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Failure, A::Error> {
                let mut steps: Vec<String> = Vec::new();
                while let Some(step) = list.next_element()? {
                    steps.push(step);
                }
                let (next_tier, then) = match steps.iter().map(String::as_str).collect::<Vec<_>>()[..]
                {
                    ["next-tier", last] => (true, end(last)),
                    [last] => (false, end(last)),
                    _ => (false, None),
                };
                let unexpected = || {
                    let given = format!("{steps:?}");
                    de::Error::invalid_value(de::Unexpected::Other(&given), &self)
                };
                let then = then.ok_or_else(unexpected)?;
                Ok(Failure { next_tier, then })
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// What a word says of rows that no tier gave.
fn end(word: &str) -> Option<OnFailure> {
    match word {
        "error" => Some(OnFailure::Error),
        "default-row" => Some(OnFailure::DefaultRow),
        _ => None,
    }
}

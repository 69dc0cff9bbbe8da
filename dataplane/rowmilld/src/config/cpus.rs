//! `workers.cpus`: written as a word, a number or a list.

use core::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// How many workers, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// All CPUs but one.
    Auto,
    /// As many workers, on the last CPUs this process may use, but for those that a disk's interrupts come to.
    Count(usize),
    /// One worker on each of these CPUs.
    List(Vec<usize>),
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cpus, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Cpus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`\"auto\"`, a number of workers, or a list of CPU numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cpus, E> {
                match text {
                    "auto" => Ok(Cpus::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Cpus, E> {
                let unexpected = |_| E::invalid_value(de::Unexpected::Signed(count), &self);
                usize::try_from(count).map(Cpus::Count).map_err(unexpected)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Cpus, A::Error> {
                let mut cpus = Vec::new();
                while let Some(cpu) = list.next_element()? {
                    cpus.push(cpu);
                }
                Ok(Cpus::List(cpus))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

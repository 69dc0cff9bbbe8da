//! Traces: which rows of a table were asked for, one after another.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::generators::Generator;
use crate::workload::read_trace;

/// A trace whose rows are numbered anew by their first access, so that policies can keep arrays by row.
pub(crate) struct Trace {
    /// Its name in a case.
    pub(crate) name: String,
    /// Distinct rows; all numbers are below this.
    pub(crate) rows: usize,
    /// The rows asked for.
    pub(crate) accesses: Vec<u32>,
}

impl Trace {
    /// A trace of these ids.
    pub(crate) fn new(name: &str, ids: &[u32]) -> Trace {
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let number = |id: &u32| {
            let next = numbers.len() as u32;
            *numbers.entry(*id).or_insert(next)
        };
        let accesses: Vec<u32> = ids.iter().map(number).collect();
        Trace {
            name: name.into(),
            rows: numbers.len(),
            accesses,
        }
    }

    /// The trace in a file of ids, one a line, named as the file is.
    ///
    /// # Errors
    /// Where it can't be read, or a line is no row number.
    pub(crate) fn read(path: &Path) -> Result<Trace> {
        let name = path.file_stem().context("--trace needs a file")?;
        // Its name becomes part of a case, which slashes divide.
        let name = name.to_string_lossy().replace('/', "-");
        Ok(Trace::new(&name, &read_trace(path, 1)?))
    }

    /// A synthetic trace.
    pub(crate) fn generate(generator: &Generator) -> Trace {
        Trace::new(generator.name, &generator.trace())
    }
}

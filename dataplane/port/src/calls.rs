//! Control calls of a client that are the same over every port that has a control stream.

use rowmill_wire::Schema;
use rowmill_wire::control::{Control, TableEntry};

use crate::PortError;

/// Tables that a client takes from a dataplane at most: more than a model has by orders of magnitude, and few enough that a
/// dataplane that goes on and on does not fill the client's memory.
const TABLES_MAX: usize = 1 << 20;

/// Asks for all tables, page by page.
pub(crate) fn tables(
    mut ask: impl FnMut(&Control) -> Result<Control, PortError>,
) -> Result<Vec<TableEntry>, PortError> {
    let mut all = Vec::new();
    loop {
        let asked = all.len() as u32;
        match ask(&Control::ListTables { first: asked })? {
            Control::Tables {
                total,
                first,
                tables,
            } if first == asked && total as usize <= TABLES_MAX => {
                let is_last = tables.is_empty();
                all.extend(tables);
                if is_last || all.len() >= total as usize {
                    return Ok(all);
                }
            }
            other => return Err(unexpected(&other)),
        }
    }
}

/// Asks for a schema's number.
pub(crate) fn bind(
    mut ask: impl FnMut(&Control) -> Result<Control, PortError>,
    schema: &Schema,
) -> Result<u32, PortError> {
    match ask(&Control::Bind(schema.clone()))? {
        Control::Bound { schema } => Ok(schema),
        other => Err(unexpected(&other)),
    }
}

/// An answer that the question does not have.
pub(crate) fn unexpected(answer: &Control) -> PortError {
    PortError::Protocol(format!("an answer that was not asked for: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(total: u32, first: u32, names: &[&str]) -> Control {
        let entry = |name: &&str| TableEntry {
            name: (*name).into(),
            rows: 1,
            dim: 4,
            format: 0,
            kind: 0,
        };
        Control::Tables {
            total,
            first,
            tables: names.iter().map(entry).collect(),
        }
    }

    #[test]
    fn pages_are_put_together_and_have_an_end() {
        let mut pages = [page(3, 0, &["a", "b"]), page(3, 2, &["c"])].into_iter();
        let all = tables(|_| Ok(pages.next().expect("two pages"))).expect("three tables");
        assert_eq!(all.len(), 3);
        let lied = tables(|_| Ok(page(u32::MAX, 0, &["a"])));
        assert!(matches!(lied, Err(PortError::Protocol(_))), "too many");
        let astray = tables(|_| Ok(page(3, 1, &["a"])));
        assert!(matches!(astray, Err(PortError::Protocol(_))));
        let short = tables(|_| Ok(page(3, 0, &[]))).expect("an empty page is the last");
        assert!(short.is_empty());
    }
}

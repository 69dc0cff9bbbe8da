//! Changes that a visitor of the admin pages asks for: `POST /tables/NAME?placement=cached`.

use serde_json::{Value, json};

use crate::config::Placement;
use crate::overview::{Overview, Page, State};
use crate::places::PlaceError;

/// Where tables are moved.
const PATH: &str = "/tables/";

/// What a visitor asks for, and who it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Path and query.
    pub(crate) path: &'a str,
    /// Whether the visitor is on this host.
    pub(crate) is_local: bool,
    /// Whether it is a page in a browser, which anybody may have made.
    pub(crate) is_of_a_page: bool,
}

/// What the path names.
fn parse(path: &str) -> Option<(&str, Result<Placement, String>)> {
    let rest = path.strip_prefix(PATH)?;
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    let to = match query {
        "placement=cached" => Ok(Placement::Cached),
        "placement=resident" => Ok(Placement::Resident),
        _ => Err(format!(
            "`{query}` is no placement; write placement=cached or placement=resident"
        )),
    };
    Some((table, to))
}

impl Overview {
    /// Does what a visitor asks for with POST, or says why not. A change goes on when this returns; `/status` has what comes of it.
    pub(crate) fn change(&self, wish: Wish<'_>) -> Page {
        let refused = |code, why: &str| Page {
            code,
            kind: "text/plain; charset=utf-8",
            body: format!("{why}\n"),
        };
        let answer = |code, answer: &Value| Page {
            code,
            kind: "application/json",
            body: format!("{answer}\n"),
        };
        let Some((table, to)) = parse(wish.path) else {
            return refused(405, "only GET and HEAD, and POST to /tables/NAME");
        };
        if !wish.is_local {
            return refused(403, "tables are moved by visitors from this host only");
        }
        if wish.is_of_a_page {
            return refused(403, "tables are not moved by pages in a browser");
        }
        if self.state() != State::Serving {
            return refused(503, self.state().name());
        }
        let Some(places) = self.places() else {
            return refused(
                403,
                "admin.allow_changes is false in the configuration, so tables stay where they are",
            );
        };
        let to = match to {
            Ok(to) => to,
            Err(why) => return refused(400, &why),
        };
        let outcome = match places {
            Some(places) => places.change(table, to),
            None => Err(PlaceError::NotListed(table.into())),
        };
        match outcome {
            Ok(None) => answer(200, &json!({"table": table, "placement": to})),
            Ok(Some(number)) => answer(202, &json!({"change": number, "table": table, "to": to})),
            Err(why @ PlaceError::UnknownTable(_)) => refused(404, &why.to_string()),
            Err(why) => refused(409, &why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_table_and_a_place() {
        assert_eq!(parse("/status"), None);
        assert_eq!(
            parse("/tables/a.b?placement=cached"),
            Some(("a.b", Ok(Placement::Cached)))
        );
        let resident = parse("/tables/a?placement=resident");
        assert_eq!(resident, Some(("a", Ok(Placement::Resident))));
        for wrong in [
            "/tables/a",
            "/tables/a?",
            "/tables/a?placement=arena",
            "/tables/a?cached",
        ] {
            let (table, to) = parse(wrong).unwrap();
            assert!(table == "a" && to.is_err(), "{wrong}");
        }
    }
}

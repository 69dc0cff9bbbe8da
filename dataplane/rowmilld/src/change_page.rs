//! Changes that a visitor of the admin pages asks for: `POST /tables/NAME?placement=cached&cache_bytes=N`.

use serde_json::{Value, json};

use crate::config::Placement;
use crate::overview::{Overview, Page, State};
use crate::places::PlaceError;

mod delta_page;
mod generation_page;

/// What is said to who posts something else.
pub(crate) const NO_POST: &str =
    "only GET and HEAD, and POST to /tables/NAME, /generations/CHANGE and /deltas/apply";
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

/// Where a table is to be, and the bytes of its share if they are to be others.
type Place = (Placement, Option<u64>);

/// What the path names.
fn parse(path: &str) -> Option<(&str, Result<Place, String>)> {
    let rest = path.strip_prefix(PATH)?;
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (placement, share) = match query.split_once('&') {
        Some((placement, share)) => (placement, Some(share)),
        None => (query, None),
    };
    let to = match placement {
        "placement=cached" => Ok(Placement::Cached),
        "placement=resident" => Ok(Placement::Resident),
        _ => Err(format!(
            "`{query}` is no placement; write placement=cached or placement=resident"
        )),
    };
    let bytes = |share: &str| {
        let bytes = share.strip_prefix("cache_bytes=");
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        bytes
            .ok_or_else(|| format!("`{share}` is no share; write cache_bytes=N, a number of bytes"))
    };
    let share = share.map(bytes).transpose();
    Some((table, to.and_then(|to| Ok((to, share?)))))
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
        let table = parse(wish.path);
        let generation = generation_page::parse(wish.path);
        let delta = delta_page::parse(wish.path);
        let what = match (&table, &generation, &delta) {
            (None, None, None) => {
                return refused(405, NO_POST);
            }
            (Some(_), ..) => ["tables are", "moved", "tables stay where they are"],
            (None, Some(_), _) => ["generations are", "changed", "the one that is served stays"],
            (None, None, Some(_)) => ["deltas are", "applied", "rows stay as they are"],
        };
        let [whose, done, stays] = what;
        if !wish.is_local {
            return refused(
                403,
                &format!("{whose} {done} by visitors from this host only"),
            );
        }
        if wish.is_of_a_page {
            return refused(403, &format!("{whose} not {done} by pages in a browser"));
        }
        if self.state() != State::Serving {
            return refused(503, self.state().name());
        }
        if !self.allows_changes() {
            let why = format!("admin.allow_changes is false in the configuration, so {stays}");
            return refused(403, &why);
        }
        if let Some(wish) = generation {
            return self.change_generation(wish);
        }
        if let Some(wish) = delta {
            return self.apply_delta(wish);
        }
        let Some((table, to)) = table else {
            return refused(405, NO_POST);
        };
        let (to, share) = match to {
            Ok(to) => to,
            Err(why) => return refused(400, &why),
        };
        let outcome = match self.places() {
            Some(places) => places.change(table, to, share),
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
            Some(("a.b", Ok((Placement::Cached, None))))
        );
        let resident = parse("/tables/a?placement=resident");
        assert_eq!(resident, Some(("a", Ok((Placement::Resident, None)))));
        let path = "/tables/a?placement=cached&cache_bytes=4096";
        assert_eq!(
            parse(path),
            Some(("a", Ok((Placement::Cached, Some(4096)))))
        );
        for wrong in [
            "/tables/a",
            "/tables/a?",
            "/tables/a?placement=arena",
            "/tables/a?cached",
            "/tables/a?placement=cached&cache_bytes=",
            "/tables/a?placement=cached&cache_bytes=-1",
            "/tables/a?placement=cached&cache_bytes=1&",
            "/tables/a?cache_bytes=1",
        ] {
            let (table, to) = parse(wrong).unwrap();
            assert!(table == "a" && to.is_err(), "{wrong}");
        }
    }
}

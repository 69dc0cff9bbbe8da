//! `POST /deltas/apply?file=PATH`, with `&local=true` where deltas come from a control plane otherwise.

use std::path::PathBuf;

use serde_json::json;

use super::generation_page::decode;
use crate::overview::{Overview, Page};

/// Where deltas are applied.
const PATH: &str = "/deltas/";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    file: PathBuf,
    /// Whether it is applied though deltas come from a control plane.
    local: bool,
}

/// What the path asks for.
pub(super) fn parse(path: &str) -> Option<Result<Wish, String>> {
    let rest = path.strip_prefix(PATH)?;
    let Some(query) = rest.strip_prefix("apply?") else {
        return Some(Err(format!(
            "`{rest}` is nothing that is done with deltas; write apply?file=PATH"
        )));
    };
    let (query, local) = match query.strip_suffix("&local=true") {
        Some(query) => (query, true),
        None => (query, false),
    };
    let file = query.strip_prefix("file=").map(decode);
    let file = file.unwrap_or_else(|| Err(format!("`{query}` names no file; write file=PATH")));
    Some(file.and_then(|file| match file.is_absolute() {
        true => Ok(Wish { file, local }),
        false => Err(format!(
            "{} does not begin with /, as files of deltas do here",
            file.display()
        )),
    }))
}

impl Overview {
    /// Begins to apply a delta, or says why not. It goes on when this returns; `/status` has what comes of it.
    pub(super) fn apply_delta(&self, wish: Result<Wish, String>) -> Page {
        let refused = |code, why: &str| Page {
            code,
            kind: "text/plain; charset=utf-8",
            body: format!("{why}\n"),
        };
        let Wish { file, local } = match wish {
            Ok(wish) => wish,
            Err(why) => return refused(400, &why),
        };
        let Some(deltas) = self.deltas() else {
            let why = "deltas.directory is not set in the configuration, so rows stay as they are: set it, and restart";
            return refused(409, why);
        };
        if let Some(control) = self.control().filter(|_| !local) {
            let why = format!(
                "deltas come from the control plane at {}, which would give none after one that it does not keep: give it to that one with `rowmill delta \
                 publish`, or apply it here alone with --local",
                control.address()
            );
            return refused(409, &why);
        }
        match deltas.apply(file.clone(), file) {
            Ok(number) => Page {
                code: 202,
                kind: "application/json",
                body: format!("{}\n", json!({"change": number})),
            },
            Err(why) => refused(409, &why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_file() {
        let good = parse("/deltas/apply?file=/d/1%20.delta");
        let wish = |local| Wish {
            file: "/d/1 .delta".into(),
            local,
        };
        assert_eq!(good, Some(Ok(wish(false))));
        let good = parse("/deltas/apply?file=/d/1%20.delta&local=true");
        assert_eq!(good, Some(Ok(wish(true))));
        assert_eq!(parse("/generations/rollback"), None);
        for wrong in [
            "",
            "apply",
            "apply?",
            "apply?file=",
            "apply?file=a",
            "apply?file=/%2",
            "apply?file=/a&local=false",
            "apply?local=true",
            "remove?file=/a",
        ] {
            let file = parse(&format!("/deltas/{wrong}"));
            assert!(matches!(file, Some(Err(_))), "{wrong}: {file:?}");
        }
    }
}

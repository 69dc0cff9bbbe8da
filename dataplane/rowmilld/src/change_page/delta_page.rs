//! `POST /deltas/apply?file=PATH`.

use std::path::PathBuf;

use serde_json::json;

use super::generation_page::decode;
use crate::overview::{Overview, Page};

/// Where deltas are applied.
const PATH: &str = "/deltas/";

/// The file that the path asks for.
pub(super) fn parse(path: &str) -> Option<Result<PathBuf, String>> {
    let rest = path.strip_prefix(PATH)?;
    let Some(query) = rest.strip_prefix("apply?") else {
        return Some(Err(format!(
            "`{rest}` is nothing that is done with deltas; write apply?file=PATH"
        )));
    };
    let file = query.strip_prefix("file=").map(decode);
    let file = file.unwrap_or_else(|| Err(format!("`{query}` names no file; write file=PATH")));
    Some(file.and_then(|file| match file.is_absolute() {
        true => Ok(file),
        false => Err(format!(
            "{} does not begin with /, as files of deltas do here",
            file.display()
        )),
    }))
}

impl Overview {
    /// Begins to apply a delta, or says why not. It goes on when this returns; `/status` has what comes of it.
    pub(super) fn apply_delta(&self, file: Result<PathBuf, String>) -> Page {
        let refused = |code, why: &str| Page {
            code,
            kind: "text/plain; charset=utf-8",
            body: format!("{why}\n"),
        };
        let file = match file {
            Ok(file) => file,
            Err(why) => return refused(400, &why),
        };
        let Some(deltas) = self.deltas() else {
            let why = "deltas.directory is not set in the configuration, so rows stay as they are: set it, and restart";
            return refused(409, why);
        };
        match deltas.apply(file) {
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
        assert_eq!(good, Some(Ok("/d/1 .delta".into())));
        assert_eq!(parse("/generations/rollback"), None);
        for wrong in [
            "",
            "apply",
            "apply?",
            "apply?file=",
            "apply?file=a",
            "apply?file=/%2",
            "remove?file=/a",
        ] {
            let file = parse(&format!("/deltas/{wrong}"));
            assert!(matches!(file, Some(Err(_))), "{wrong}: {file:?}");
        }
    }
}

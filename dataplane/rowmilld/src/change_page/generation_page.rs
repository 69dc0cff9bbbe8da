//! `POST /generations/load?number=N` or `?directory=PATH`, `/generations/activate?number=N`, `/generations/rollback`,
//! `/generations/unload?number=N`.

use std::path::PathBuf;

use serde_json::json;

use crate::generations::{ChangeError, Source, Wish};
use crate::overview::{Overview, Page};

/// Where generations are changed.
const PATH: &str = "/generations/";

/// What the path asks for.
pub(super) fn parse(path: &str) -> Option<Result<Wish, String>> {
    let rest = path.strip_prefix(PATH)?;
    let (change, query) = rest.split_once('?').unwrap_or((rest, ""));
    let number = || {
        let number = query
            .strip_prefix("number=")
            .and_then(|number| number.parse().ok());
        number.ok_or_else(|| format!("`{query}` names no generation; write number=N"))
    };
    Some(match change {
        "load" => match query.strip_prefix("directory=") {
            Some(directory) => decode(directory).map(|path| Wish::Load(Source::Directory(path))),
            None => number().map(|number| Wish::Load(Source::Number(number))),
        },
        "activate" => number().map(Wish::Activate),
        "rollback" if query.is_empty() => Ok(Wish::Rollback),
        "rollback" => Err(format!(
            "`{query}`: rollback takes nothing, since it goes back to the one before"
        )),
        "unload" => number().map(Wish::Unload),
        _ => Err(format!(
            "there is no change `{change}`; there are load, activate, rollback and unload"
        )),
    })
}

/// A path of which some bytes are written as `%` and two hexadecimal digits.
pub(super) fn decode(text: &str) -> Result<PathBuf, String> {
    let bad = || {
        format!("`{text}` is no path: bytes other than letters, digits and /._- are written as %XX")
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let pair = digit().and_then(|high| Some(16 * high + digit()?));
                pair.ok_or_else(bad)? as u8
            }
            b'&' | b'=' | b'+' => return Err(bad()),
            byte => byte,
        });
    }
    let path = String::from_utf8(bytes).map_err(|_| bad())?;
    match path.is_empty() || path.contains('\0') {
        true => Err(bad()),
        false => Ok(path.into()),
    }
}

impl Overview {
    /// Begins a change of generations, or says why not. It goes on when this returns; `/status` has what comes of it.
    pub(super) fn change_generation(&self, wish: Result<Wish, String>) -> Page {
        let refused = |code, why: String| Page {
            code,
            kind: "text/plain; charset=utf-8",
            body: format!("{why}\n"),
        };
        let wish = match wish {
            Ok(wish) => wish,
            Err(why) => return refused(400, why),
        };
        let Some(generations) = self.generations() else {
            return refused(503, self.state().name().into());
        };
        let (code, change) = match generations.change(wish) {
            Ok(None) => (200, json!({})),
            Ok(Some(number)) => (202, json!({"change": number})),
            Err(why @ (ChangeError::Busy(_) | ChangeError::Impossible(_))) => {
                return refused(409, why.to_string());
            }
        };
        Page {
            code,
            kind: "application/json",
            body: format!("{change}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_change() {
        let directory = |path: &str| Ok(Wish::Load(Source::Directory(path.into())));
        let good = [
            ("load?number=5", Ok(Wish::Load(Source::Number(5)))),
            ("load?directory=gen-5", directory("gen-5")),
            ("load?directory=/m/a%20%c3%bcb%25", directory("/m/a üb%")),
            (
                "activate?number=18446744073709551615",
                Ok(Wish::Activate(u64::MAX)),
            ),
            ("rollback", Ok(Wish::Rollback)),
            ("unload?number=4", Ok(Wish::Unload(4))),
        ];
        for (path, wish) in good {
            assert_eq!(parse(&format!("/generations/{path}")), Some(wish));
        }
        for path in [
            "",
            "load",
            "load?",
            "load?number=-1",
            "load?number=five",
            "load?directory=",
            "load?directory=%2",
            "load?directory=%zz",
            "load?directory=%ff",
            "load?directory=%00",
            "load?directory=a&number=5",
            "activate",
            "activate?number=18446744073709551616",
            "rollback?number=4",
            "unload?directory=a",
            "remove?number=4",
        ] {
            let wish = parse(&format!("/generations/{path}"));
            assert!(matches!(wish, Some(Err(_))), "{path}: {wish:?}");
        }
        assert_eq!(parse("/tables/a?placement=cached"), None);
    }
}

//! What an operator has of a control plane on this host: where it listens, dataplanes that follow it, and `rowmill` on it.

use anyhow::{Context, Result};

use super::site::{Settings, Site, patience, until};

/// Where it listens.
pub(super) fn address(site: &Site) -> String {
    format!("unix:{}", site.path("control.sock").display())
}

/// The same settings, of a dataplane that follows it.
pub(super) fn following(site: &Site, own: Settings) -> Settings {
    let control = format!(
        "[control]\naddress = \"{}\"\nname = \"test\"\n",
        address(site)
    );
    Settings {
        cached: own.cached + &control,
        ..own
    }
}

/// Runs `rowmill` on it. Returns whether it ended well, and what it said.
pub(super) fn wishes(site: &Site, words: &[&str]) -> Result<(bool, String)> {
    wishes_at(site, &address(site), words)
}

/// The same on one that listens elsewhere.
fn wishes_at(site: &Site, control: &str, words: &[&str]) -> Result<(bool, String)> {
    let words = [words, &["--control", control]].concat();
    let (status, said) = site.command("rowmill", &words)?;
    Ok((status.success(), said))
}

/// The same until it is done: for a while after its start the control plane does not know of the dataplane. What was said.
pub(super) fn wishes_until(site: &Site, words: &[&str]) -> Result<String> {
    wishes_until_at(site, &address(site), words)
}

/// The same on one that listens elsewhere.
pub(super) fn wishes_until_at(site: &Site, control: &str, words: &[&str]) -> Result<String> {
    let mut last = String::new();
    let is_done = until(2 * patience(), || {
        wishes_at(site, control, words).is_ok_and(|(is_done, said)| {
            last = said;
            is_done
        })
    });
    is_done.with_context(|| format!("{words:?}: {last}"))?;
    Ok(last)
}

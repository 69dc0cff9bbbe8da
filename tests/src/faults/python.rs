//! Wrong uses of the Python package, as `ffi/python/tests/misuse.py` tries them, a section of it at a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Verdict;
use super::capi::misused;
use super::site::Site;

/// A machine of the lab does not have it.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ffi/python/tests/misuse.py");

/// A Python that has what the package needs, which `deploy/test-python.sh` keeps in the cache; the reason where there is none.
fn interpreter() -> Result<PathBuf, String> {
    let cache = match (std::env::var_os("ROWMILL_CACHE"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => Path::new(&home).join(".cache/rowmill"),
        (None, None) => return Err("needs a cache: set HOME or ROWMILL_CACHE".into()),
    };
    let python = cache.join("python/bin/python");
    let find = "import importlib.util as u, sys; sys.exit(u.find_spec('numpy') is None)";
    let mut command = Command::new(&python);
    let found = command
        .args(["-I", "-c", find])
        .stdin(Stdio::null())
        .status();
    match found {
        Ok(status) if status.success() => Ok(python),
        _ => Err(format!(
            "needs Python with NumPy in {}: make test-python",
            cache.join("python").display()
        )),
    }
}

/// Runs a section against a service of its own, which has to hold nothing of it afterwards.
pub(super) fn misuse(site: &Site, section: &str) -> Result<Verdict> {
    if !Path::new(PROGRAM).exists() {
        let why = format!("needs {PROGRAM}: run it where it was built");
        return Ok(Verdict::Skipped(why));
    }
    let python = match interpreter() {
        Ok(python) => python,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    // Of this build, and not what is installed there.
    let package = site.programs.path("python");
    if !package.exists() {
        let why = format!("needs {}: deploy/stage-python.sh", package.display());
        return Ok(Verdict::Skipped(why));
    }
    let package = format!("PYTHONPATH={}", package.display());
    let python = python.to_str().context("a path in UTF-8")?;
    // With the interpreter's own checks.
    let arguments = [&package, python, "-s", "-P", "-X", "dev", PROGRAM];
    misused(site, "/usr/bin/env", &arguments, section)
}

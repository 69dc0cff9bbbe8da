//! Wrong uses of the C interface, as `ffi/capi/examples/misuse.c` tries them, a section of it at a time.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::site::{Site, patience, until};

/// What it is made of lies in the folder of the sources, which a machine of the lab does not have.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ffi/capi");

/// Builds the example; the reason where that can't be.
fn build(site: &Site) -> Result<Result<PathBuf, String>> {
    let archive = site.programs.path("librowmill_capi.a");
    let sources = Path::new(SOURCES);
    for (needed, advice) in [
        (&archive, "make archive"),
        (
            &sources.join("examples/misuse.c"),
            "run it where it was built",
        ),
    ] {
        if !needed.exists() {
            return Ok(Err(format!("needs {}: {advice}", needed.display())));
        }
    }
    let program = site.path("misuse");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-O1", "-I"])
        .arg(sources.join("include"))
        .arg(sources.join("examples/misuse.c"))
        .arg(&archive)
        .arg("-o")
        .arg(&program)
        .args(["-lrdmacm", "-libverbs", "-lpthread", "-lm", "-ldl"]);
    match compiler.output() {
        Err(error) => Ok(Err(format!("needs a C compiler: cc: {error}"))),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "cc: {said}");
            Ok(Ok(program))
        }
    }
}

/// Runs a section against a service of its own, which has to hold nothing of it afterwards.
pub(super) fn misuse(site: &Site, section: &str) -> Result<Verdict> {
    let program = match build(site)? {
        Ok(program) => program,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let program = program.to_str().context("a path in UTF-8")?;
    misused(site, program, &[], section)
}

/// Runs a section of a program, whose arguments are these and then the service's endpoint, its process and the section.
pub(super) fn misused(
    site: &Site,
    program: &str,
    arguments: &[&str],
    section: &str,
) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    let before = service.holdings()?;
    let process = service.process().0.id().to_string();
    let arguments = [arguments, &[&service.endpoint, &process, section]].concat();
    let (status, said) = site.command(program, &arguments)?;
    ensure!(status.success(), "it ended with {status}:\n{said}");
    if section != "killed" {
        service.is_alive()?;
        service.is_healthy()?;
        let gone = || service.holdings().is_ok_and(|now| now == before);
        until(patience(), gone).context("what the service holds of it")?;
    }
    let cases = said.lines().filter(|line| line.starts_with("ok ")).count();
    Ok(Verdict::Pass(format!("{cases} cases")))
}

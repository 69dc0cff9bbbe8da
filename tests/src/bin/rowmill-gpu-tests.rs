//! Checks what has to hold with a GPU; see `make test-gpu`. Skips, with the reason, where there is none.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Context;
use rowmill_tests::gpu;

/// Bytes of the model, unless an argument says otherwise.
const BYTES: u64 = 1 << 30;

const USAGE: &str = "usage: rowmill-gpu-tests [BYTES [RESULTS.json]]
  BYTES         of the model, at most; 1 GiB by default
  RESULTS.json  a file for the results";

fn main() -> ExitCode {
    if let Err(why) = gpu::device() {
        println!("skipped: {why}");
        return ExitCode::SUCCESS;
    }
    let mut given = std::env::args().skip(1);
    let bytes = given.next().map_or(Ok(BYTES), |text| text.parse());
    let (Ok(bytes), results, None) = (bytes, given.next(), given.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ran = gpu::run(bytes).and_then(|outcome| {
        if let Some(file) = results {
            let text = format!("{:#}\n", outcome.results);
            std::fs::write(&file, text).with_context(|| format!("writing {file}"))?;
        }
        Ok(outcome.failed)
    });
    match ran {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            println!("{failed} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

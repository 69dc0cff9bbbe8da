//! A control group of one's own with a limit of memory, so that the page cache can't hold what is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};

/// Where the groups' files are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// This process, and those that it starts, in a group with a limit; back in its group when this is dropped.
pub(crate) struct Limited {
    group: PathBuf,
    parent: PathBuf,
}

impl Limited {
    /// Enters a new group below this process's own, with at most `bytes` of memory.
    ///
    /// # Errors
    /// Where there are no control groups for memory, or this user may not make any.
    pub(crate) fn enter(bytes: u64) -> Result<Limited> {
        let (parent, limit) = own_group().context("no control group for memory")?;
        let group = parent.join(format!("rowmill-bench-{}", process::id()));
        fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
        let limited = Limited { group, parent };
        let write = |file: &Path, text: String| {
            fs::write(file, text).with_context(|| format!("writing {}", file.display()))
        };
        write(&limited.group.join(limit), bytes.to_string())?;
        write(
            &limited.group.join("cgroup.procs"),
            process::id().to_string(),
        )?;
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A group that stays behind is empty and has no effect.
        let _ = fs::write(self.parent.join("cgroup.procs"), process::id().to_string());
        let _ = fs::remove_dir(&self.group);
    }
}

/// The folder of this process's group for memory, and the file of its limit: of version 1, or else of version 2.
fn own_group() -> Option<(PathBuf, &'static str)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group_of = |wanted: &str| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let found = controllers.split(',').any(|name| name == wanted);
            found.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let Some(path) = group_of("memory") {
        return Some((
            Path::new(ROOT).join("memory").join(path),
            "memory.limit_in_bytes",
        ));
    }
    Some((Path::new(ROOT).join(group_of("")?), "memory.max"))
}

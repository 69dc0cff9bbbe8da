//! How much memory can be had: the machine's, and that of the control groups above this process.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::ArenaError;
use crate::mapping::page_bytes;

/// What a bound by `RLIMIT_AS` is called.
const ADDRESS_SPACE: &str = "under this process's limit of address space, `ulimit -v`";

/// The bytes that can be allocated now without swapping or being killed, and what sets that bound.
///
/// The least of the machine's `MemAvailable`, what each control group (version 2 or 1) that holds this
/// process has left, its inactive file cache counted as free, and what `RLIMIT_AS` leaves.
pub fn available_bytes() -> (u64, String) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = (
        kib_line(&meminfo, "MemAvailable:").unwrap_or(u64::MAX),
        "of the machine's memory".to_owned(),
    );
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_available(Path::new("/sys/fs/cgroup"), &groups);
    let addresses = address_space_left().map(|left| (left, ADDRESS_SPACE.to_owned()));
    [Some(machine), group, addresses]
        .into_iter()
        .flatten()
        .min_by_key(|(bytes, _)| *bytes)
        .expect("the machine's is there")
}

/// The bytes of address space that this process may still map, where `RLIMIT_AS` bounds them.
pub fn address_space_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let mapped = pages.unwrap_or(0).saturating_mul(page_bytes() as u64);
    Some(limit.saturating_sub(mapped))
}

/// Fails if `bytes` and the page tables for them are not available.
pub(crate) fn check_available(bytes: usize) -> Result<(), ArenaError> {
    // A page table entry of 8 bytes for each 4 KiB, the worst case.
    let needed = bytes as u64 + bytes as u64 / 512;
    let (available, limited_by) = available_bytes();
    if needed > available {
        return Err(ArenaError::TooLittleMemory {
            needed,
            available,
            limited_by,
        });
    }
    Ok(())
}

/// The value in bytes of a line like `MemAvailable:   123 kB`.
fn kib_line(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// What is left in the tightest control group, and its name; `None` where no group has a limit.
fn group_available(root: &Path, groups: &str) -> Option<(u64, String)> {
    let mut tightest: Option<(u64, String)> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let files = if controllers.is_empty() {
            Files {
                root: root.to_owned(),
                limit: "memory.max",
                usage: "memory.current",
                cache: "inactive_file ",
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            Files {
                root: root.join("memory"),
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                cache: "total_inactive_file ",
            }
        } else {
            continue;
        };
        // A limit anywhere above binds too.
        for group in Path::new(path).ancestors() {
            let Some(left) = files.left(group) else {
                continue;
            };
            if tightest.as_ref().is_none_or(|(least, _)| left < *least) {
                tightest = Some((
                    left,
                    format!("under the limit of control group {}", group.display()),
                ));
            }
        }
    }
    tightest
}

/// Where a version of control groups keeps its figures.
struct Files {
    root: std::path::PathBuf,
    limit: &'static str,
    usage: &'static str,
    cache: &'static str,
}

impl Files {
    /// The bytes left in `group`, or `None` where it has no limit or is not visible here.
    fn left(&self, group: &Path) -> Option<u64> {
        let folder = self.root.join(group.strip_prefix("/").unwrap_or(group));
        let number = |name: &str| {
            fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let limit = number(self.limit)?; // "max" is no number: no limit
        let usage = number(self.usage)?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.cache)?.trim().parse::<u64>().ok());
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let (bytes, why) = available_bytes();
        assert!(bytes > 1 << 20 && bytes < u64::MAX, "{bytes} {why}");
    }

    #[test]
    fn too_much_is_refused_with_figures() {
        let error = check_available(1 << 46).unwrap_err().to_string();
        assert!(
            error.contains("too little memory") && error.contains("smaller or fewer tables"),
            "{error}"
        );
    }

    #[test]
    fn tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("rowmill-groups-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(inner.join("memory.current"), "5\n").unwrap();
        fs::write(root.join("a/memory.max"), "1000\n").unwrap();
        fs::write(root.join("a/memory.current"), "700\n").unwrap();
        fs::write(root.join("a/memory.stat"), "anon 600\ninactive_file 100\n").unwrap();
        let found = group_available(&root, "4:cpu:/\n0::/a/b\n");
        let without = group_available(&root, "4:cpu:/\n");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            Some((400, "under the limit of control group /a".to_owned()))
        );
        assert_eq!(without, None);
    }
}

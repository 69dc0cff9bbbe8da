//! The kinds of pages that memory can be made of, and what is known of them.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Bytes of the larger huge page of x86-64 and arm64.
pub const HUGE_1G: usize = 1 << 30;
/// Bytes of the common huge page.
pub const HUGE_2M: usize = 2 << 20;

/// What is wanted of huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Only pages of the reserved pools, which nothing can split or take away; refuse otherwise.
    Require,
    /// The best that can be had: reserved pools, else transparent huge pages, else small pages.
    #[default]
    Prefer,
    /// Small pages, and no transparent huge pages either.
    Off,
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            HugePages::Require => "require",
            HugePages::Prefer => "prefer",
            HugePages::Off => "off",
        })
    }
}

impl FromStr for HugePages {
    type Err = String;

    fn from_str(text: &str) -> Result<HugePages, String> {
        match text {
            "require" => Ok(HugePages::Require),
            "prefer" => Ok(HugePages::Prefer),
            "off" => Ok(HugePages::Off),
            _ => Err(format!(
                "huge pages can be `require`, `prefer` or `off`, not `{text}`"
            )),
        }
    }
}

/// What an arena is really made of. `Display` gives a sentence with what it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backing {
    /// Reserved pages of 1 GiB.
    Huge1G,
    /// Reserved pages of 2 MiB.
    Huge2M,
    /// Transparent huge pages, as far as the kernel had them.
    Transparent {
        /// The share of the bytes that lie in 2 MiB pages, 0 to 1, as the kernel counts it.
        fraction: f64,
    },
    /// Pages of 4 KiB.
    Small,
}

impl Backing {
    /// The share of the bytes that lie in huge pages, 0 to 1.
    pub fn huge_fraction(&self) -> f64 {
        match self {
            Backing::Huge1G | Backing::Huge2M => 1.0,
            Backing::Transparent { fraction } => *fraction,
            Backing::Small => 0.0,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Huge1G => write!(
                f,
                "1 GiB pages from the reserved pool: nothing better is to be had"
            ),
            Backing::Huge2M => write!(
                f,
                "2 MiB pages from the reserved pool: random rows miss the TLB, each miss costs one short walk"
            ),
            Backing::Transparent { fraction } if *fraction >= 0.995 => write!(
                f,
                "transparent 2 MiB pages: as fast as reserved ones, but the kernel may split them under pressure"
            ),
            Backing::Transparent { fraction } => write!(
                f,
                "transparent 2 MiB pages for {:.0} % of the bytes: rows in the rest cost a longer TLB walk; \
                 restart after freeing memory, or reserve pages with vm.nr_hugepages",
                fraction * 100.0
            ),
            Backing::Small => write!(
                f,
                "4 KiB pages: nearly every random row costs a full TLB walk; allow transparent huge pages \
                 (/sys/kernel/mm/transparent_hugepage/enabled) or reserve pages with vm.nr_hugepages"
            ),
        }
    }
}

/// One pool of reserved pages as sysfs shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages it has, those in use and those set aside included.
    pub total: u64,
    /// Pages that can be had.
    pub free: u64,
}

impl Pool {
    /// The pool of pages of `page` bytes; all zero where the machine has no such pool.
    fn now(page: usize) -> Pool {
        let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page / 1024);
        let number = |name: &str| -> u64 {
            let text = fs::read_to_string(Path::new(&folder).join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let free = number("free_hugepages").saturating_sub(number("resv_hugepages"));
        Pool {
            total: number("nr_hugepages"),
            free,
        }
    }

    fn take(&mut self, pages: u64) -> bool {
        let left = self.free.checked_sub(pages);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }
}

/// The pools of reserved pages: as they are, or as they would be if they had given some. `Display` tells what is free of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Of pages of 2 MiB.
    pub common: Pool,
    /// Of pages of 1 GiB.
    pub large: Pool,
}

impl Pools {
    /// As they are now.
    pub fn now() -> Pools {
        Pools {
            common: Pool::now(HUGE_2M),
            large: Pool::now(HUGE_1G),
        }
    }

    /// Takes the pages of an arena of so many bytes, from the pool that [`Arena::allocate`](crate::Arena::allocate) takes them from.
    /// Returns the pages of 2 MiB that it needs, which is none where it has its pages from the other pool, and whether it has its pages.
    pub fn take(&mut self, bytes: u64) -> (u64, bool) {
        if fits_large_pages(bytes) && self.large.take(bytes.div_ceil(HUGE_1G as u64)) {
            return (0, true);
        }
        self.take_common(bytes)
    }

    /// Takes pages of 2 MiB for so many bytes, as a [`Reserve`](crate::Reserve) does. Returns how many they are, and whether there were
    /// as many.
    pub fn take_common(&mut self, bytes: u64) -> (u64, bool) {
        let pages = bytes.div_ceil(HUGE_2M as u64);
        (pages, self.common.take(pages))
    }

    /// The size, for `vm.nr_hugepages`, that the pool of 2 MiB pages has to have so that so many are free beside those in use.
    pub fn size_for(&self, pages: u64) -> u64 {
        self.common.total.saturating_sub(self.common.free) + pages
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pools { common, large } = self;
        write!(
            f,
            "{} of {} pages of 2 MiB and {} of {} pages of 1 GiB are free",
            common.free, common.total, large.free, large.total
        )
    }
}

/// Whether an arena of so many bytes may lie in pages of 1 GiB: what is rounded up must stay below the 5 % that tables may cost beyond
/// their rows.
pub(crate) fn fits_large_pages(bytes: u64) -> bool {
    bytes.next_multiple_of(HUGE_1G as u64) - bytes <= bytes / 25
}

/// The share of the mappings in an address range that lies in transparent huge pages, by the text of `/proc/self/smaps`.
pub(crate) fn transparent_fraction(smaps: &str, start: usize, len: usize) -> f64 {
    match bytes_of(smaps, start, len, "Size:") {
        0 => 0.0,
        bytes => huge_bytes(smaps, start, len) as f64 / bytes as f64,
    }
}

/// The bytes of these mappings in transparent huge pages.
pub(crate) fn huge_bytes(smaps: &str, start: usize, len: usize) -> usize {
    bytes_of(smaps, start, len, "AnonHugePages:")
}

/// The bytes of these mappings that have pages.
#[cfg(test)]
pub(crate) fn present_bytes(smaps: &str, start: usize, len: usize) -> usize {
    bytes_of(smaps, start, len, "Rss:")
}

/// The sum of what a line of `smaps` says of each mapping in an address range.
fn bytes_of(smaps: &str, start: usize, len: usize, key: &str) -> usize {
    let (mut kib, mut inside) = (0, false);
    for line in smaps.lines() {
        if let Some((from, to)) = address_range(line) {
            inside = from < start + len && start < to;
        } else if inside && let Some(rest) = line.strip_prefix(key) {
            let rest = rest.trim().trim_end_matches(" kB");
            kib += rest.parse::<usize>().unwrap_or(0);
        }
    }
    kib * 1024
}

/// The addresses of a mapping if `line` is a mapping's first line in smaps.
fn address_range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_counts_only_the_mappings_asked_for() {
        let smaps = "\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
AnonHugePages:      6144 kB
7f0001000000-7f0001800000 rw-p 00000000 00:00 0 [heap]
Size:               8192 kB
AnonHugePages:         0 kB
VmFlags: rd wr
";
        assert_eq!(transparent_fraction(smaps, 0x7f0000000000, 0x800000), 0.75);
        assert_eq!(transparent_fraction(smaps, 0x7f0001000000, 4096), 0.0);
        assert_eq!(
            transparent_fraction(smaps, 0x7f0000000000, 0x2000000),
            0.375
        );
        assert_eq!(transparent_fraction("", 1, 1), 0.0);
    }

    #[test]
    fn pools_give_pages_as_arenas_take_them() {
        let pool = |total, free| Pool { total, free };
        let mut pools = Pools {
            common: pool(600, 515),
            large: pool(2, 1),
        };
        let (gib, page) = (HUGE_1G as u64, HUGE_2M as u64);
        // A page more than 1 GiB would leave the second page of 1 GiB empty.
        assert_eq!(pools.take(gib + 1), (513, true));
        assert_eq!(pools.take(gib - gib / 50), (0, true));
        assert_eq!(pools.take(gib), (512, false));
        assert_eq!(pools.take(2 * page), (2, true));
        assert_eq!(pools.take(1), (1, false));
        assert_eq!(pools.size_for(7), 607);
        assert_eq!(
            pools.to_string(),
            "0 of 600 pages of 2 MiB and 0 of 2 pages of 1 GiB are free"
        );
    }

    #[test]
    fn policies_are_read_back() {
        for policy in [HugePages::Require, HugePages::Prefer, HugePages::Off] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("maybe".parse::<HugePages>().unwrap_err().contains("maybe"));
    }
}

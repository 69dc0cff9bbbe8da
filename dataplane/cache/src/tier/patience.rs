//! How long a tier is waited for: time in which its worker did not run is not the disk's.

/// The longest time from one poll to the next that counts. A worker that has rows on their way polls each turn, many times in this.
const PAUSE_NS: u64 = 5_000_000;

/// A clock that stands still while nobody looks at it: where the process was stopped, or its core was another's.
#[derive(Debug, Default)]
pub(super) struct Patience {
    looked_ns: u64,
    lost_ns: u64,
}

impl Patience {
    /// What it shows.
    pub(super) fn at(&mut self, now_ns: u64) -> u64 {
        let paused_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = self.looked_ns.max(now_ns);
        self.lost_ns += paused_ns.saturating_sub(PAUSE_NS);
        self.looked_ns - self.lost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_short_however_long_it_was() {
        let mut patience = Patience::default();
        let began_ns = patience.at(1 << 50);
        assert_eq!(patience.at((1 << 50) + 1000), began_ns + 1000);
        assert_eq!(
            patience.at((1 << 50) + 2_000_000_000),
            began_ns + 1000 + PAUSE_NS
        );
        assert_eq!(
            patience.at((1 << 50) + 2_000_000_001),
            began_ns + 1001 + PAUSE_NS
        );
    }
}
